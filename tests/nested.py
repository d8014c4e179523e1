"""A run of pytest inside a test, to see what plugins do."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

LEFT_OUT = [f"-pno:{plugin}" for plugin in ("cacheprovider", "timeout", "xdist")]


def run_tests(folder: Path, source: str, plugin: object, chosen: str = "") -> tuple[int, str]:
    """The exit status and the output of a run of these tests, without this suite's options."""
    tests = folder / "test_nested.py"
    tests.write_text(source)
    options = ["-s", "-c/dev/null", f"--rootdir={folder}", "--import-mode=importlib", *LEFT_OUT]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        sys.modules.pop(tests.stem, None)  # that of an earlier run
        status = pytest.main([*options, f"{tests}{chosen}"], plugins=[plugin])
    return int(status), output.getvalue()
