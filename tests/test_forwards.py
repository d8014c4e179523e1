"""Modules of the Triton device library under their old names: they are there for one release."""

from __future__ import annotations

import importlib

import pytest

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
LIBRARY = "diglot.triton_ops.lib"


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_an_old_module_has_the_same_objects(old, new):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{new}")
    public = [name for name in vars(after) if not name.startswith("_") and name != "annotations"]
    assert public and all(getattr(before, name) is getattr(after, name) for name in public)


@pytest.mark.parametrize(("old", "name", "new", "renamed"), RENAMED)
def test_an_old_name_is_the_same_object(old, name, new, renamed):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{new}")
    assert getattr(before, name) is getattr(after, renamed)
