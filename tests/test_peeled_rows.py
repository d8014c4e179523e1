"""Rows in CUDA C++ that begin or end between multiples of 16 bytes. If all arrays lie alike, only
their ends are single elements, and the rest are 16-byte accesses.
"""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, launched, needs_cuda
from norms import OPS as NORMS
from norms import is_centered

from diglot.backends.tunables import use_tunables

LAUNCHERS = [
    *(f"{op}_{way}" for op in ("softmax", "log_softmax") for way in ("forward", "backward")),
    *(f"{op}_forward" for op in NORMS),
]
# Rows, elements of a row, from one row to the next, and before the first. Rows of one element, of
# less than an access, in lanes, in a block, in a cluster and in tiles begin anywhere.
LAYOUTS = [
    (9, 1, 1, 0),
    (5, 3, 3, 1),
    (70, 7, 7, 2),
    (33, 77, 79, 5),
    (6, 255, 255, 3),
    (3, 64, 67, 0),
    (3, 513, 515, 1),
    (5, 1021, 1021, 1),
    (3, 1024, 1027, 3),
    (3, 2049, 2050, 6),
    (2, 12_293, 12_293, 7),
    (2, 30_001, 30_011, 1),
]
LONG = (1, 400_003, 400_003, 3)  # registers of sixteen blocks do not hold it
GUARD = 77.0


def rows_of(layout, dtype, fill=None):
    """A view of rows of this layout, and the memory around it."""
    rows, n, pitch, offset = layout
    memory = torch.full((offset + rows * pitch + 24,), GUARD, device=DEVICE).to(dtype)
    view = memory[offset : offset + rows * pitch].view(rows, pitch)[:, :n]
    if fill is not None:
        view.copy_(fill)
    return view, memory


def call(name, layout, layout_out, dtype, backend, arrays, parameters):
    """The variant, and what each output of a call has been written to."""
    given = [rows_of(layout, dtype, array)[0] for array in arrays]
    op, way = name.rsplit("_", 1)
    outs = [rows_of(layout_out, dtype) for _ in range(2 if name.startswith("add") else 1)]
    if "norm" in op:
        names = parameters[: 1 + is_centered(op)]
        if not name.startswith("add"):
            given = given[:1]
        arguments = (*given, *names, 1e-5, None)
    else:
        arguments = (given[0], 1) if way == "forward" else (*given, 1)
    return launched(backend, name, *arguments, *(out for out, _ in outs)), outs


def check(name, layout, dtype, layout_out=None, parameters=None):
    """Against PyTorch's operators, of the rows in memory of their own; returns the variant."""
    rows, n, *_ = layout
    layout_out = layout_out or layout
    arrays = [torch.randn(rows, n, device=DEVICE).to(dtype) for _ in range(2)]
    if name.endswith("backward"):
        theirs = torch.softmax if name.startswith("softmax") else torch.log_softmax
        arrays[1] = theirs(arrays[1].double(), 1).to(dtype)
    if parameters is None:
        parameters = [torch.randn(n, device=DEVICE).to(dtype) for _ in range(2)]
    plain = (rows, n, n, 0)
    _, expected = call(name, plain, plain, dtype, "torch", arrays, parameters)
    variant, outs = call(name, layout, layout_out, dtype, "cuda", arrays, parameters)
    # Sums are in another order, and of 16-bit types PyTorch's intermediate results may be, too.
    error = max(4 * torch.finfo(dtype).eps, 3e-5)
    for (out, memory), (wanted, _) in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, wanted, rtol=error, atol=error)
        out.fill_(GUARD)
        assert (memory == GUARD).all(), (name, layout)
    return variant


def is_dense(name, dtype, n):
    """Whether a warp accesses few peeled rows of n elements one by one."""
    if "norm" in name:
        return 120 < n <= (512 if dtype.itemsize == 4 else 1024)
    return dtype.itemsize == 2 and 512 < n <= 1024 and name.endswith("forward")


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_arrays_that_lie_alike(name, dtype):
    elements = 16 // dtype.itemsize
    for layout in LAYOUTS:
        variant = check(name, layout, dtype)
        _, n, pitch, offset = layout
        if n % elements or pitch % elements or offset % elements:
            if is_dense(name, dtype, n):
                assert variant == "rows in lanes", (layout, variant)
                area = "norm_forward" if "norm" in name else "rows"
                with use_tunables(
                    {f"{area}.cuda.skipped_shapes": 2 if n <= 512 and dtype.itemsize == 2 else 1}
                ):
                    variant = check(name, layout, dtype)
            assert variant.endswith(", peeled accesses"), (layout, variant)


@needs_cuda
@pytest.mark.parametrize("name", LAUNCHERS)
def test_rows_that_registers_do_not_hold(name):
    assert check(name, LONG, torch.bfloat16).endswith(", peeled accesses")


@needs_cuda
@pytest.mark.parametrize("name", LAUNCHERS)
def test_arrays_that_do_not_lie_alike(name):
    """In starts, and in steps from row to row: element by element."""
    for layout, other in (
        ((5, 61, 61, 1), (5, 61, 61, 2)),
        ((5, 61, 61, 1), (5, 61, 62, 1)),
        ((3, 1024, 1024, 0), (3, 1024, 1025, 0)),
        ((2, 12_293, 12_293, 0), (2, 12_293, 12_293, 1)),
    ):
        for first, second in ((layout, other), (other, layout)):
            assert "accesses" not in check(name, first, torch.float32, second)
    # The same remainder by 16 bytes, but not the same start, is alike.
    assert "peeled" in check(name, (5, 61, 61, 1), torch.float32, (5, 61, 65, 5))


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAUNCHERS[4:])
def test_weights_that_begin_anywhere(name, dtype):
    """Of the rows' type, or of float32; with or without each. They end where their memory does."""
    for n in (1, 5, 16, 61, 1024, 3001):
        for offset in range(5):
            for of in {dtype, torch.float32}:
                weight, bias = (
                    torch.randn(n + start, device=DEVICE).to(of)[start:]
                    for start in (offset, (offset + 3) % 5)
                )
                for parameters in ((weight, bias), (weight, None), (None, bias), (None, None)):
                    check(name, (3, n, n, 1), dtype, parameters=list(parameters))
