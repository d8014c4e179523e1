"""Runs the Python of documents, each in a process of its own, forked from one that has PyTorch.

    python tests/run_snippets.py DOCUMENT...

A document's blocks run in order, in one process. The first document's first block also runs without
the interpreters. Exits with 1 if one fails. Prints what they print, below the document's name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path

# Asking for a GPU must not start CUDA, which processes forked later could not use.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
from documents import NEEDS, python_of

HAS_GPU = torch.cuda.is_available()


def can_run(source: str) -> bool:
    """Whether this machine has what a block's first line asks for."""
    needs = NEEDS.match(source)
    if needs is None:
        return True
    return HAS_GPU if needs[1] == "a GPU" else importlib.util.find_spec(needs[1]) is not None


def run(blocks: list[tuple[int, str]], name: str) -> None:
    """Runs blocks in a file whose line numbers are the document's."""
    lines: list[str] = []
    for first, source in blocks:
        if can_run(source):
            lines += [""] * (first - 1 - len(lines)) + source.splitlines()
        compile(source, name, "exec")
    # A Triton kernel's source is read from its file.
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{name}.py"
        script.write_text("\n".join(lines) + "\n")
        os.chdir(folder)
        code = compile(script.read_text(), str(script), "exec")
        exec(code, {"__name__": "__main__", "__file__": str(script)})


def run_forked(blocks: list[tuple[int, str]], name: str) -> bool:
    """Whether blocks ran in another process without an error."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        shown = io.StringIO()
        try:
            with contextlib.redirect_stdout(shown):
                run(blocks, name)
            status = 0
        except BaseException:
            traceback.print_exc()
        print(shown.getvalue(), end="", flush=True)
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def main(paths: list[Path]) -> bool:
    print("## as it stands")
    is_right = run_forked(python_of(paths[0])[:1], paths[0].name)
    if not HAS_GPU:
        os.environ["DIGLOT_INTERPRET"] = "1"
    import diglot  # noqa: F401 (so that the processes forked below have it)

    for path in paths:
        print(f"## {path.name}")
        is_right &= run_forked(python_of(path), path.name)
    return is_right


if __name__ == "__main__":
    sys.exit(not main([Path(name).absolute() for name in sys.argv[1:]]))
