"""Builds kernels.cu for the interpreter; what its one function takes."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCKS, THREADS = 4, 256


class Options(ctypes.Structure):
    """As in kernels.cu."""

    _fields_ = (
        ("blocks", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("shared_bytes", ctypes.c_ulonglong),
        ("is_cooperative", ctypes.c_int),
        ("seed", ctypes.c_ulonglong),
        ("finds_races", ctypes.c_int),
        ("patience_ms", ctypes.c_uint),
    )


def build_planted(folder: Path, *, sanitized: bool = False) -> Path:
    where = ROOT / "csrc/interpreter/build.py"
    specification = importlib.util.spec_from_file_location("build", where)
    assert specification is not None and specification.loader is not None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    library = folder / "planted.so"
    builder.build(library, [ROOT / "tests/planted/kernels.cu"], folder, sanitized=sanitized)
    return library
