"""Modules and headers of the device libraries under their old names, kept for one release."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import diglot

MOVED = [
    ("global_reduce", "reduce.global_"),
    ("grid_barrier", "sync.grid_barrier"),
    ("norm", "norm.forward"),
    ("norm_backward", "norm.backward"),
    ("reduce", "reduce.states"),
    ("row_exchange", "sync.mailbox"),
    ("row_reduce", "rows.rows"),
    ("row_reduce", "rows.tile"),
]
RENAMED = [
    ("global_reduce", "own_tiles", "reduce.global_", "count_tiles"),
    ("norm_backward", "store_sums", "norm.group_sums", "store_sums"),
    ("norm_backward", "sum_groups", "norm.group_sums", "sum_groups"),
    ("norm_backward", "walk_rows", "norm.backward_resident", "norm_backward_resident"),
    ("norm_backward", "walk_rows_in_tiles", "norm.backward_streaming", "norm_backward_streaming"),
    ("row_reduce", "MAPPED_COLUMNS", "rows.rows", "MAPPED_CHUNKS"),
    ("row_reduce", "REDUCED_COLUMNS", "rows.rows", "REDUCED_CHUNKS"),
    ("row_reduce", "SHARED_COLUMNS", "rows.rows", "SPLIT_COLUMNS"),
    ("row_reduce", "SHARED_ROWS", "rows.rows", "SPLIT_ROWS"),
    ("row_reduce", "kept", "rows.tile", "keep_narrow"),
    ("row_reduce", "load_shared", "rows.tile", "load_parameters"),
    ("row_reduce", "map_tile", "rows.operation", "map_tile"),
    ("row_reduce", "share_rows", "rows.split", "map_split_rows"),
    ("row_reduce", "take_chunk", "rows.split_columns", "reduce_or_map_column_chunk"),
]
HEADERS = [
    "cluster.cuh",
    "dispatch.h",
    "elementwise_launch.h",
    "global_launch.h",
    "global_reduce.cuh",
    "grid_barrier.cuh",
    "launch.cuh",
    "next_launch.cuh",
    "norm.cuh",
    "norm_backward.cuh",
    "norm_backward_launch.h",
    "norm_launch.h",
    "operand.h",
    "reduce.cuh",
    "row_launch.h",
    "row_reduce.cuh",
]
# Walks of elements and of rows have one name, and one file has either.
TOGETHER = [header for header in HEADERS if not header.startswith("elementwise")]
ALONE = [pytest.param([header], marks=pytest.mark.slow) for header in TOGETHER]
LIBRARY = "diglot.triton_ops.lib"


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_an_old_module_has_the_same_objects(old, new):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{new}")
    # What the file defines or imports by name: Triton's interpreter adds objects to its globals.
    named = re.findall(r"^(?:def )?([A-Za-z]\w*)(?= = |\()", Path(after.__file__).read_text(), re.M)
    public = [name for name in named if name in vars(after)]
    assert public and all(getattr(before, name) is getattr(after, name) for name in public)


@pytest.mark.parametrize(("old", "name", "new", "renamed"), RENAMED)
def test_an_old_name_is_the_same_object(old, name, new, renamed):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{new}")
    assert getattr(before, name) is getattr(after, renamed)


@pytest.mark.parametrize(
    "headers",
    [TOGETHER, TOGETHER[::-1], ["elementwise_launch.h"], *ALONE],
    ids=lambda headers: "-".join(headers[:2]),
)
def test_old_headers_compile(tmp_path, headers):
    """All or alone, by the host's compiler, as the interpreter's kernels are."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    include = Path(diglot.get_include())
    stand_ins = [p for p in (include / "interpreter", include.parent / "interpreter") if p.is_dir()]
    source = tmp_path / "kernel.cpp"
    source.write_text("".join(f'#include "diglot/{header}"\n' for header in headers))
    command = [compiler, "-std=c++17", "-fsyntax-only", "-DDIGLOT_INTERPRETER", f"-I{include}"]
    command += [f"-I{q}" for p in stand_ins for q in (p / "include", p.parent)]
    subprocess.run([*command, source], check=True)
