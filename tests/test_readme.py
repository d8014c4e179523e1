"""The Python in README.md runs, on a machine without a GPU too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.backends.registry import has_interpreter

README = Path(__file__).parent.parent / "README.md"


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Line number and source of every fenced block of Python."""
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)) + 1, block.group(1)) for block in blocks]


@pytest.mark.skipif(not has_interpreter(), reason="its first snippet needs both interpreters")
def test_snippets_run(tmp_path):
    blocks = python_blocks(README.read_text())
    assert len(blocks) >= 3
    # One process runs them all, in order: later ones use what earlier ones imported. Blank lines
    # keep the line numbers of a traceback those of the README.
    lines: list[str] = []
    for first, source in blocks:
        lines += [""] * (first - 1 - len(lines)) + source.splitlines()
    script = tmp_path / "README.md.py"
    script.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "DIGLOT_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    # The first prints what is shown below it; PyTorch's kernel, not everywhere the same.
    shown = re.search(r"^cuda   tensor.*\ntriton tensor.*$", README.read_text(), re.MULTILINE)
    assert answer.stdout.startswith(shown.group())


def test_links_lead_somewhere():
    text = README.read_text()
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert targets
    missing = [target for target in targets if not (README.parent / target).exists()]
    assert missing == []
