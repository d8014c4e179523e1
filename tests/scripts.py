"""Scripts, run in the tests' own process: another one would take seconds to import PyTorch."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest import mock


def run_here(path: Path, *arguments: str) -> tuple[object, str]:
    """What a script ends with, as `sys.exit` was told or None, and what it prints."""
    status: object = None
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        mock.patch.object(sys, "argv", [str(path), *arguments]),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            status = ended.code
    return status, output.getvalue()
