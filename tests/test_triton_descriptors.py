"""Tensor descriptors in Triton's launches: made by the host, and by the programs of a kernel."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from apart import run_apart
from backends import DEVICE, KERNELS

if "triton" not in KERNELS:
    pytest.skip("there is no Triton", allow_module_level=True)

import descriptor_kernels as kernels
import triton
from descriptor_kernels import TILE
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime import _allocation

from diglot.backends.plans import Scratch
from diglot.backends.scratch import provide
from diglot.triton_ops.launch import handles, launch
from diglot.triton_ops.launch.descriptors import DESCRIPTOR_BYTES, Descriptor, with_room
from diglot.triton_ops.launch.plan import Device, Launch, Operand, Part, Plan

H200 = (90, 132, 228 << 10, True)
SIZES = [(32, 64), (72, 136), (200, 8)]
DTYPES = [torch.float32, torch.float16]


def operand(shape=(72, 136), strides=(136, 1), address=0, dtype=torch.float32):
    return Operand(0, dtype, shape, strides, address, Device(*H200))


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


# --- what fits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "block", "reason"),
    [
        ({"address": 4}, (32, 64), "address must be a multiple of 16"),
        ({"address": None}, (32, 64), "while a graph is compiled"),
        ({"dtype": torch.bool}, (32, 64), "dtype is torch.bool"),
        ({"strides": (1, 72)}, (32, 64), "strides"),
        ({"strides": (138, 1)}, (32, 64), "a multiple of 16 bytes"),
        ({"strides": (0, 1)}, (32, 64), "positive"),
        ({"strides": (1 << 38, 1)}, (32, 64), "below 2\\^40"),
        ({"shape": (0, 136)}, (32, 64), "sizes must be 1"),
        ({"shape": (1 << 31, 136)}, (32, 64), "sizes must be 1"),
        ({"shape": (1,) * 6, "strides": (4,) * 5 + (1,)}, (1,) * 5 + (4,), "6 dimensions"),
        ({"shape": (), "strides": ()}, (), "0 dimensions"),
        ({}, (64,), "same number"),
        ({}, (32, 48), "powers of two"),
        ({}, (32, 0), "powers of two"),
        ({}, (32, 2), "at least 16 bytes"),
        ({}, (1024, 2048), "at most 1048576 elements"),
    ],
)
def test_an_operand_that_does_not_fit(change, block, reason):
    wrong = dataclasses.replace(operand(), **change)
    assert Descriptor.fits(operand(), (32, 64)) and not Descriptor.fits(wrong, block)
    with pytest.raises(ValueError, match=reason):
        Descriptor(wrong, block)


def test_limits_that_fit():
    assert Descriptor.fits(operand(), (32, 4))
    assert Descriptor.fits(operand(), (1024, 1024))
    assert Descriptor.fits(operand(((1 << 31) - 1, 8), ((1 << 38) - 4, 1)), (1, 4))
    assert Descriptor.fits(operand((1,) * 5, (4, 4, 4, 4, 1)), (1, 1, 1, 1, 4))
    assert Descriptor.fits(operand((7,), (1,), dtype=torch.uint8), (16,))


def test_padding_is_checked():
    for wrong in ("one", "NaN"):
        with pytest.raises(ValueError, match="padding"):
            Descriptor(operand(), TILE, wrong)
    with pytest.raises(ValueError, match="padding is 'nan'"):
        Descriptor(operand(dtype=torch.int32), TILE, "nan")


# --- plans ----------------------------------------------------------------------------------------


def test_a_descriptor_is_part_of_what_is_compiled():
    meta = torch.empty(72, 136, device="meta"), 2, torch.empty(136, 72, device="meta")
    (made,) = launch.plan(kernels.transpose, H200, *meta).launches
    expected = ("tensordesc<fp32[32, 64]>", "tensordesc<fp32[64, 32]>")
    assert made.specialization.dtypes == expected
    types = made.specialization.source().signature
    assert tuple(types.values()) == (*expected, "i64", "constexpr", "constexpr")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, Scratch(3 * 2 * 128, 0, "call")),
        (Scratch(300, 20, "stream"), Scratch(512 + 3 * 2 * 128, 20, "stream")),
    ],
)
def test_room_is_added_to_the_scratch(before, expected):
    x = operand()
    plain = Launch(kernels.copy_padded, (5,), (x,), (), (), 4)
    few = dataclasses.replace(plain, grid=(2, 1, 2), descriptors=1)
    many = dataclasses.replace(plain, grid=(3,), descriptors=1, num_ctas=2)
    made = with_room(Plan("", (plain, few, many), before))
    assert made.scratch == expected
    room = Part(torch.uint8, 3 * 2 * 128, expected.bytes - 3 * 2 * 128)
    assert [launch.room for launch in made.launches] == [None, room, room]
    nothing = Plan("", (plain,), before)
    assert with_room(nothing) is nothing


def test_a_compiled_graph_plans_another_kernel():
    with FakeTensorMode():
        x, out = torch.empty(72, 136), torch.empty(136, 72)
        assert launch.plan(kernels.transpose, None, x, 1, out).variant == "by pointers"
        # The compiler gives room to kernels that make descriptors.
        assert launch.plan(kernels.sum_rows, None, x, 1, out[0]).scratch is None


# --- launches, without a GPU ----------------------------------------------------------------------


class Handle:
    """A compiled kernel that keeps what it is started with."""

    def __init__(self, scratch_bytes: int) -> None:
        self.function, self.packed_metadata, self.calls = 1, (), []
        self.metadata = SimpleNamespace(global_scratch_size=scratch_bytes)

    def run(self, *arguments) -> None:
        room = None
        if self.metadata.global_scratch_size:
            room = _allocation._allocator.get()(128, 128, None)
        self.calls.append((arguments[9:], room))


def test_each_launch_has_descriptors_of_its_own_addresses():
    meta = torch.empty(72, 136, device="meta"), 2, torch.empty(136, 72, device="meta")
    (made,) = launch.plan(kernels.transpose, H200, *meta).launches
    handle = Handle(0)
    start = handles._starter(made, handle, [])
    for addresses in ((16, 32), (48, 64), (16, 32)):
        start((None, *addresses), 0, (2,))
    for (arguments, _), addresses in zip(handle.calls, ((16, 32), (48, 64), (16, 32)), strict=True):
        input, out, *rest = arguments
        assert (input.base.data_ptr(), out.base.data_ptr()) == addresses
        assert rest == [2, *TILE]
        assert (input.shape, input.strides, input.padding) == ((72, 136), (136, 1), "zero")
        assert (out.shape, out.strides, out.round_f32_to_tf32) == ((136, 72), (72, 1), False)


def forbidden(size, alignment, stream):
    raise AssertionError("the caller's allocator was asked")


def test_room_reaches_the_launch_and_no_allocator_stays():
    meta = torch.empty(72, 136, device="meta"), 1, torch.empty(72, device="meta")
    made = launch.plan(kernels.sum_rows, H200, *meta)
    assert made.scratch == Scratch(3 * 128, 0, "call")
    handle = Handle(128)
    start = handles._starter(made.launches[0], handle, [made.launches[0].room])
    before = _allocation._allocator.get()

    def run(first: int) -> None:
        for address in range(first, first + 100):
            start((None, 16, 32, address), 0, ())

    run(0)
    assert _allocation._allocator.get() is before

    def run_with_allocator() -> None:
        triton.set_allocator(forbidden)
        run(100)
        assert _allocation._allocator.get() is forbidden

    contextvars.copy_context().run(run_with_allocator)
    threads = [threading.Thread(target=run, args=(first,)) for first in (200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(room for _, room in handle.calls) == list(range(400))
    assert {arguments[:2] for arguments, _ in handle.calls} == {(16, 32)}


def test_room_that_is_not_enough():
    meta = torch.empty(72, 136, device="meta"), 1, torch.empty(72, device="meta")
    (made,) = launch.plan(kernels.sum_rows, H200, *meta).launches
    with pytest.raises(ValueError, match=r"plan Launch\(descriptors=2\)"):
        handles._starter(made, Handle(129), [made.room])
    (made,) = launch.plan(kernels.sum_rows, H200, meta[0], 0, meta[2]).launches
    with pytest.raises(ValueError, match="sum_rows_by_descriptor: each program needs 128 bytes"):
        handles._starter(made, Handle(128), [])


# --- what kernels compute: interpreted, or on a GPU -----------------------------------------------


def forget(launcher) -> None:
    launcher.__globals__["plans"].clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SIZES)
def test_transposes(shape, dtype):
    """One plan runs at several addresses: a descriptor kept with an old address would fail."""
    forget(kernels.transpose)
    inputs = [draw(*shape, dtype=dtype) for _ in range(3)]
    outs = [torch.full(shape[::-1], -1.0, dtype=dtype, device=DEVICE) for _ in inputs]
    for factor, (x, out) in enumerate(zip(inputs, outs, strict=True), 1):
        assert kernels.transpose(x, factor, out, None) == "by descriptors"
    for factor, (x, out) in enumerate(zip(inputs, outs, strict=True), 1):
        torch.testing.assert_close(out, (x * factor).t(), rtol=0, atol=0)
    assert len(kernels.transpose.__globals__["plans"]) == 1


@pytest.mark.parametrize(
    "view", [lambda x: x[:, 1:], lambda x: x[:, :-1], lambda x: x.t().contiguous().t()]
)
def test_transposes_what_no_descriptor_fits(view):
    x = view(draw(72, 137))
    out = torch.empty(x.shape[::-1], device=DEVICE)
    assert kernels.transpose(x, 1, out, None) == "by pointers"
    torch.testing.assert_close(out, x.t(), rtol=0, atol=0)


def test_strides_are_the_operands():
    x, out = draw(72, 144)[::2, :136], torch.full((136, 40), -1.0, device=DEVICE)
    assert kernels.transpose(x, 1, out[:, :36], None) == "by descriptors"
    torch.testing.assert_close(out[:, :36], x.t(), rtol=0, atol=0)
    assert (out[:, 36:] == -1).all()


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_padding(padding):
    x, out = draw(5, 12), torch.empty(8, 16, device=DEVICE)
    kernels.pad(x, padding, out, None)
    value = 0.0 if padding == "zero" else float("nan")
    expected = torch.full((8, 16), value, device=DEVICE)
    expected[:5, :12] = x
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SIZES)
def test_sums_rows(shape, dtype):
    forget(kernels.sum_rows)

    def run() -> None:
        triton.set_allocator(forbidden)
        for _ in range(2):
            x, out = draw(*shape, dtype=dtype), torch.empty(shape[0], device=DEVICE)
            need = kernels.sum_rows(x, 1, out, None)
            assert need == Scratch(-(-shape[0] // TILE[0]) * DESCRIPTOR_BYTES, 0, "call")
            assert kernels.sum_rows(x, 1, out, provide(need, x.device)) == "by descriptors"
            torch.testing.assert_close(out, x.float().sum(1), rtol=1e-5, atol=1e-5)
            kept.append((x, out))  # so that the next call has other addresses
        assert _allocation._allocator.get() is forbidden

    kept = []
    before = _allocation._allocator.get()
    contextvars.copy_context().run(run)
    assert _allocation._allocator.get() is before
    assert len(kernels.sum_rows.__globals__["plans"]) == 1


@pytest.mark.gpu
def test_room_is_checked_when_a_plan_is_prepared():
    x, out = draw(72, 136), torch.empty(72, device=DEVICE)
    with pytest.raises(ValueError, match=r"plan Launch\(descriptors=1\)"):
        kernels.sum_rows(x, 0, out, None)


@pytest.mark.gpu
def test_a_captured_launch_keeps_its_descriptors():
    """What a graph replays has the descriptors of its capture, after other calls of the plan."""
    x, out = draw(72, 136), torch.empty(136, 72, device=DEVICE)
    other, sums = draw(72, 136), torch.empty(72, device=DEVICE)
    room = torch.empty(3 * DESCRIPTOR_BYTES, dtype=torch.uint8, device=DEVICE)

    def run() -> None:
        kernels.transpose(x, 1, out, None)
        kernels.sum_rows(x, 1, sums, room)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    kernels.transpose(other, 1, torch.empty_like(out), None)
    x.copy_(other)
    graph.replay()
    torch.testing.assert_close(out, other.t(), rtol=0, atol=0)
    torch.testing.assert_close(sums, other.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_compiled_graphs():
    """A compiled graph has the kernels by pointers, and those that make their descriptors."""

    @torch.library.triton_op("diglot_descriptors::both", mutates_args={})
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, sums = x.new_empty(x.shape[::-1]), x.new_empty(x.shape[0])
        kernels.transpose(x, 3, out, None)
        kernels.sum_rows(x, 1, sums, None)
        return out, sums

    compiled = torch.compile(both, fullgraph=True)
    for _ in range(2):
        x = draw(72, 136)
        out, sums = compiled(x)
        torch.testing.assert_close(out, (3 * x).t(), rtol=0, atol=0)
        torch.testing.assert_close(sums, x.sum(1), rtol=1e-5, atol=1e-5)


# --- compilation ---------------------------------------------------------------------------------

COMPILED = """
import torch
from triton.backends.compiler import GPUTarget
import descriptor_kernels as kernels
from diglot.triton_ops.launch import launch
from diglot.triton_ops.launch.descriptors import DESCRIPTOR_BYTES, needs_room
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x, out = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((72, 136), (136, 72)))
    tile = torch.empty(32, 64, dtype=dtype, device="meta")
    for architecture in (80, 90):
        device = (architecture, 132, 228 << 10, True)
        for launcher, arguments in (
            (kernels.transpose, (x, 1, out)),
            (kernels.pad, (x, "nan", tile)),
            (kernels.sum_rows, (x, 1, out[0].float())),
        ):
            (made,) = launch.plan(launcher, device, *arguments).launches
            kernel = made.specialization.compile(GPUTarget("cuda", architecture, 32))
            is_bulk = "cp.async.bulk.tensor" in kernel.asm["ptx"]
            takes_room = needs_room(made, kernel.metadata)
            print(launcher.__name__, architecture, is_bulk, takes_room)
"""


@pytest.mark.ahead_of_time
def test_kernels_copy_tiles_in_bulk():
    done = run_apart(COMPILED, environment={"PYTHONPATH": str(Path(__file__).parent)})
    expected = [
        f"{name} {architecture} {architecture == 90} {architecture == 90 and name == 'sum_rows'}"
        for architecture in (80, 90)
        for name in ("transpose", "pad", "sum_rows")
    ]
    assert done.stdout.splitlines() == 3 * expected, done.stderr
