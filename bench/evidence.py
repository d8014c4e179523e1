"""What a result was measured on: a hash of the sources, versions, the commit, the GPU.

Both the tests (`tests/conftest.py`) and the benchmarks write these beside their results, so that a
result can be told to be of this tree or of an older one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"


def find_tree() -> Path | None:
    """The source tree: the one that this file is of or, where it is installed, the current folder.

    None: neither is one.
    """
    for folder in (Path(__file__).parent.parent, Path.cwd()):
        if (folder / "csrc/ops").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    return None


ROOT = find_tree()
RESULTS = (ROOT or Path.cwd()) / "bench/results"
PICTURED = RESULTS / "h200"  # of the GPU that pictures show
# What can change the outcome of a test or a measurement. That is the package, and how it is built
# and run (pyproject.toml has pytest's options too). It is the tests, the examples, which tests
# compile and read, and the benchmarks. A file too many costs a run that was not needed; one too few
# lets an old result pass for this tree's.
#
# Not documentation, nor the results, which would make each other stale: documents hold tables of
# them, although a test runs its snippets. Not requirements-dev.txt: the installed versions stand
# beside the hash (`versions`), and where there is a GPU they often come from elsewhere.
SOURCES = (
    "Makefile",
    "bench",
    "configs",
    "csrc",
    "examples",
    "pyproject.toml",
    "python",
    "setup.py",
    "tests",
    "triton_ops",
)
IGNORED_FOLDERS = ("bench/distributions", "bench/results")
IGNORED_SUFFIXES = (".md", ".pyc", ".pyo", ".so", ".orig", ".rej")


def source_files(root: Path) -> list[Path]:
    """The files that `source_hash` covers, in its order."""
    found = []
    for name in SOURCES:
        top = root / name
        for path in [top] if top.is_file() else top.rglob("*"):
            parts = path.relative_to(root).parts
            if any(p.startswith(".") or p == "__pycache__" or p.endswith("-info") for p in parts):
                continue
            if any(root / folder in path.parents for folder in IGNORED_FOLDERS):
                continue
            if path.is_file() and path.suffix not in IGNORED_SUFFIXES:
                found.append(path)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def source_hash(root: Path | None = ROOT) -> str:
    """A hash of the sources below `root`: of each file's path and bytes; "unknown" without one."""
    if root is None:
        return UNKNOWN
    total = hashlib.sha256()
    for path in source_files(root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()[:16]


def commit(root: Path | None = ROOT) -> str:
    """The commit: DIGLOT_COMMIT where it is set, what git says otherwise, or "unknown".

    The variable is for machines that hold the tree without its history.
    """
    if os.environ.get("DIGLOT_COMMIT"):
        return os.environ["DIGLOT_COMMIT"]
    if root is None:
        return UNKNOWN
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return answer.stdout.strip()


def load_example(name: str) -> Any:
    """A module of examples/, which the source tree has. Other modules may have its name."""
    if ROOT is None:
        raise ImportError(f"this benchmark runs examples/{name}.py, which the source tree has")
    if str(ROOT / "examples") not in sys.path:
        sys.path.append(str(ROOT / "examples"))  # examples import each other
    path = ROOT / f"examples/{name}.py"
    specification = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert specification is not None and specification.loader is not None
    module = sys.modules[specification.name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def gpu_short_name(name: str) -> str:
    """The folder of a GPU's results: "NVIDIA H200" gives "h200"."""
    from diglot.backends.tunables import short_name  # later than tests say how kernels run

    return short_name(name)


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of what ran: Python, torch, Triton, diglot, CUDA (PyTorch's) and the driver."""
    import torch

    from diglot.tools.device import ask_driver

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": installed("triton"),
        "diglot": installed("diglot"),
        "cuda": torch.version.cuda,
        "driver": ask_driver(["driver_version"]).get("driver_version"),
    }


if __name__ == "__main__":
    print(source_hash())
