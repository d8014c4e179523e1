"""docs/rows.md: its tables say where rows are held, as plans for an H200 do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from backends import needs_extension

import diglot
from diglot.backends.plans import Device, plan_runs

PAGE = Path(__file__).parent.parent / "docs/rows.md"
H200 = Device(90, 132, 228 << 10, True, name="h200")
KINDS = {
    "lanes of a warp": "rows in lanes",
    "a block": "a row in (registers|shared memory)",
    "a cluster": "(a row|columns) across a cluster",
    "the grid": "a row across the grid",
    "registers": "columns in registers",
    "shared memory": "columns in shared memory",
    "one program": "(rows|columns) in registers",
    "programs together": "(a row|columns) shared by programs",
}
BEYOND = {False: "a row read twice", True: "columns in two launches"}
Limits = list[tuple[str, int]]


def cases() -> Iterator[tuple[str, bool, str, str, str, Limits]]:
    """Backend, whether of columns, op, direction, dtype, and the limits of each place."""
    backend, places, is_column = "", [], False
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            is_column = line == "## Columns"
            backend = {"## CUDA C++": "cuda", "## Triton": "triton"}.get(line, backend)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1:3] == ["direction", "dtype"]:
            backend = {"CUDA C++": "cuda", "Triton": "triton"}.get(cells[0], backend)
            places = cells[3:]
        elif len(cells) > 3 and cells[3].isdigit():
            limits = list(zip(places, map(int, cells[3:]), strict=True))
            for op in cells[0].split(", "):
                for dtype in cells[2].split(", "):
                    yield backend, is_column, op, cells[1], dtype, limits


def variant(backend: str, is_column: bool, op: str, direction: str, dtype: str, n: int) -> str:
    """The planned kernel's name for rows, or columns, of n elements."""
    shape = (n, 64) if is_column else (2, n)
    x = torch.empty(shape, dtype=getattr(torch, dtype), requires_grad=direction == "backward")
    weight = torch.empty(n if "norm" in op else 0, dtype=x.dtype)
    function = getattr(diglot, op)
    with plan_runs(H200) as runs, diglot.use_plans("model"):
        if "norm" not in op:
            result = function(x, 0 if is_column else -1, backend=backend)
        elif op.startswith("add"):
            result, _ = function(x, torch.empty_like(x), (n,), weight, backend=backend)
        else:
            result = function(x, (n,), weight, backend=backend)
        if direction == "backward":
            result.backward(torch.empty_like(result))
    return runs[-1].plan.variant


@needs_extension
@pytest.mark.parametrize(
    ("backend", "is_column", "op", "direction", "dtype", "limits"), list(cases())
)
def test_a_row_is_held_up_to_the_limit(backend, is_column, op, direction, dtype, limits):
    kinds = [*(KINDS[place] for place, _ in limits), BEYOND[is_column]]
    for (_, limit), kind, following in zip(limits, kinds[:-1], kinds[1:], strict=True):
        for n, expected in ((limit, kind), (limit + 8, following)):
            found = variant(backend, is_column, op, direction, dtype, n)
            assert re.match(expected, found), (n, found, expected)


def test_the_tables_have_every_op_in_both_languages():
    ops = {"softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"}
    found = {(backend, op, way) for backend, _, op, way, _, _ in cases()}
    directions = ("forward", "backward")
    backends = ("cuda", "triton")
    assert found == {(b, op, way) for b in backends for op in ops for way in directions}
