"""Modules of the Triton device library under their old names: they are there for one release."""

from __future__ import annotations

import importlib

import pytest

MOVED = {
    "global_reduce": "reduce.global_",
    "grid_barrier": "sync.grid_barrier",
    "reduce": "reduce.states",
    "row_exchange": "sync.mailbox",
}
RENAMED = [("global_reduce", "own_tiles", "reduce.global_", "count_tiles")]
LIBRARY = "diglot.triton_ops.lib"


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_has_the_same_objects(old):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{MOVED[old]}")
    public = [name for name in vars(after) if not name.startswith("_")]
    assert public and all(getattr(before, name) is getattr(after, name) for name in public)


@pytest.mark.parametrize(("old", "name", "new", "renamed"), RENAMED)
def test_an_old_name_is_the_same_object(old, name, new, renamed):
    before = importlib.import_module(f"{LIBRARY}.{old}")
    after = importlib.import_module(f"{LIBRARY}.{new}")
    assert getattr(before, name) is getattr(after, renamed)
