"""What softmax and log_softmax share: variants by the length of a row, layouts, derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    by_turns,
    examples,
    launched,
    mostly_slow,
    sum_error,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, in_order
from planning import plan_anew

import diglot
from diglot.backends.plans import Scratch
from diglot.backends.registry import BACKENDS as REGISTRY
from diglot.backends.scratch import provide
from diglot.backends.tunables import use_tunables
from diglot.reference.specs import find_spec
from diglot.tools.accuracy import measure_error

OPS = ["softmax", "log_softmax"]
LAUNCHERS = [f"{op}_{direction}" for op in OPS for direction in ("forward", "backward")]
THEIRS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
}

# Shapes and dimensions, and the variants that run forward and backward: of CUDA without the words
# about accesses, of Triton without the size of a block.
LANES, REGISTERS = "rows in lanes", "a row in registers"
CLUSTER = "a row across a cluster"
COLUMNS, MANY = "columns in registers", "columns in shared memory"
HELD, HELD_COLUMNS = "rows in registers", "columns in registers"
SHARES, COLUMN_SHARES = "a row shared by programs", "columns shared by programs"
CHUNKED = "columns in two launches"
INF, NAN = math.inf, math.nan
CASES = {
    "one element": ((3, 1), 1, LANES, HELD),
    "a few": ((70, 7), 1, LANES, HELD),
    "lanes": ((9, 128), 1, LANES, HELD),
    "a warp": ((5, 512), 1, LANES, HELD),
    "a block": ((3, 2048), 1, REGISTERS, HELD),
    "a block, not whole": ((2, 4092), 1, REGISTERS, HELD),
    "three blocks": ((2, 12_000), 1, CLUSTER, HELD),
    "a block of odd rows": ((2, 3001), 1, REGISTERS, HELD),
    "a cluster": ((2, 40_004), 1, CLUSTER, SHARES),
    "a cluster, not whole": ((1, 40_003), 1, CLUSTER, SHARES),
    "columns": ((19, 2, 64), 0, COLUMNS, HELD_COLUMNS),
    "odd columns": ((5, 21, 13), 1, COLUMNS, HELD_COLUMNS),
    "many columns": ((700, 36), 0, MANY, COLUMN_SHARES),
    "a cluster of columns": ((4000, 20), 0, "columns across a cluster", COLUMN_SHARES),
    "a cluster of odd columns": ((4000, 3), 0, "columns across a cluster", "columns read twice"),
    "tall columns": ((16_500, 8), 0, CHUNKED, CHUNKED),
    "tall odd columns": ((17_001, 3), 0, CHUNKED, CHUNKED),
}


def tensors(shape: Any, dtype: torch.dtype, count: int = 2) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE).to(dtype) for _ in range(count)]


def assert_right(op: str, result: torch.Tensor, x: torch.Tensor, dim: int) -> None:
    error = measure_error(result.detach(), find_spec(op).forward(x.detach(), dim=dim))
    assert error.failing == 0, error


def assert_summed_in_line(op: str, result: torch.Tensor, x: torch.Tensor, dim: int) -> None:
    """Likewise for columns in Triton's interpreter, which adds one row after the other."""
    oracle = THEIRS[op](x.detach().double(), dim)
    compute = torch.promote_types(result.dtype, torch.float32)
    rounding = max(x.shape[dim], 128) * torch.finfo(compute).eps / 8
    rounding = max(rounding, torch.finfo(result.dtype).eps)
    torch.testing.assert_close(
        result.double(), oracle, rtol=rounding, atol=rounding * 1e-3, equal_nan=True
    )


def assert_right_gradient(
    op: str, result: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, dim: int
) -> None:
    expected = find_spec(op).backward(grad, x.detach(), dim=dim)["input"]
    error = measure_error(result, expected)
    assert error.failing == 0, error


# `make test` has every variant of softmax, and of its logarithm those of rows and columns that no
# thread, block or program has to itself.
OF_LOGARITHM = [
    "a few", "a block of odd rows", "a cluster, not whole", "odd columns",
    "a cluster of odd columns", "tall odd columns",
]  # fmt: skip
VARIANTS = [(op, case) for op in OPS for case in CASES]


@pytest.mark.parametrize(
    ("op", "case"),
    mostly_slow(
        VARIANTS,
        *(("softmax", case) for case in CASES),
        *(("log_softmax", case) for case in OF_LOGARITHM),
    ),
)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_variant(backend, op, case):
    """In float32; the record of what ran names it."""
    shape, dim, cuda, triton = CASES[case]
    x, grad = tensors(shape, torch.float32)
    x.requires_grad_()
    with diglot.record_runs() as runs:
        result = getattr(diglot, op)(x, dim, backend=backend)
        result.backward(grad)
    assert [run.launcher for run in runs] == [f"{op}_forward", f"{op}_backward"]
    if "column" in case and backend == "triton" and DEVICE == "cpu":
        assert_summed_in_line(op, result, x, dim)
    else:
        assert_right(op, result, x, dim)
    assert_right_gradient(op, x.grad, grad, x, dim)
    forward = runs[0].variant
    wide = shape[-1] % 4 == 0
    assert forward.startswith(cuda if backend == "cuda" else triton), forward
    assert ("16-byte accesses" in forward) == wide == ("16-byte" in runs[1].variant)


FEW_CHUNKS = {
    "rows.cuda.tallest*": 16,
    "rows.triton.tall*": 16,
    "rows.both.chunk_elements": 8,
    "rows.both.chunk_blocks": 3,
    "rows.both.many_chunks": 3,
}


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", KERNELS)
def test_few_chunks(backend, name):
    """Columns in two launches, of three chunks, of one, and of fewer elements than a tile."""
    with use_tunables(FEW_CHUNKS):
        for shape in ((17, 4), (300, 5), (2500, 8)):
            x, grad = tensors(shape, torch.float32)
            inputs = inputs_of(name, x, grad, 0)
            out, expected = torch.empty_like(x), torch.empty_like(x)
            assert launched(backend, name, *inputs, out).startswith(CHUNKED)
            launched("torch", name, *inputs, expected)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(of, marks=pytest.mark.slow) for of in (torch.bfloat16, torch.float64)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_triton_without_words(name, dtype, monkeypatch):
    """Where programs cannot wait for each other, what they would share is read twice."""
    if "triton" not in KERNELS:
        pytest.skip("there is no Triton")
    from diglot.triton_ops.launch import launch, plan

    plan_anew(monkeypatch, launch, "_facts_of", lambda index: plan.TRACED)
    # That a program holds of a row.
    most = {torch.float64: 8192, torch.float32: 32768, torch.bfloat16: 65536}[dtype]
    n = 2100 if dtype == torch.float32 else 1100
    for shape, dim, variant in (
        ((1, most + 4000), 1, "a row read twice"),
        ((2, most + 233), 1, "a row read twice"),
        ((n, 40), 0, "columns read twice"),
        ((n, 7), 0, "columns read twice"),
    ):
        x, grad = tensors(shape, dtype)
        inputs = inputs_of(name, x, grad, dim)
        out, expected = torch.empty_like(x), torch.empty_like(x)
        assert launched("triton", name, *inputs, out).startswith(variant)
        launched("torch", name, *inputs, expected)
        rounding, error = 2 * torch.finfo(dtype).eps, sum_error(dtype)
        torch.testing.assert_close(out, expected, rtol=max(rounding, error), atol=error)


TALL = [(torch.float32, None), (torch.bfloat16, None), (torch.float64, None)]
TALL = [(op, *of) for op in OPS for of in (*TALL, (torch.float16, torch.float32))]


@pytest.mark.parametrize(("op", "dtype", "wide"), mostly_slow(TALL, TALL[0], TALL[-1]), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_tall_columns(backend, op, dtype, wide):
    """In two launches: of every type, in batches with gaps, element by element, not aligned, and in
    more dimensions than a kernel takes.
    """
    torch.manual_seed(0)
    n = 16_400 if backend == "cuda" else 8_200
    whole, few = slice(None), slice(2)
    for shape, taken, shift in (
        ((2, n, 16), (whole, whole, slice(8)), 0),
        ((n, 9), (whole, slice(3)), 0),
        ((n, 8), (whole, whole), 1),
        ((n, 3, 3, 3, 3), (whole, few, few, few, few), 0),
    ):
        x, grad = (
            (scale * torch.randn(math.prod(shape) + shift, device=DEVICE))
            .to(of)[shift:]
            .view(shape)[taken]
            for scale, of in ((3, dtype), (1, wide or dtype))
        )
        assert shift or not x.is_contiguous()
        x.requires_grad_()
        dim = shape.index(n)
        with diglot.record_runs() as runs:
            result = getattr(diglot, op)(x, dim, wide, backend=backend)
            (gradient,) = torch.autograd.grad(result, x, grad)
        assert all(run.variant.startswith(CHUNKED) for run in runs), runs
        assert_summed_in_line(op, result, x, dim)
        y, g = result.detach().double(), grad.double()
        if op == "softmax":
            expected = y * (g - (g * y).sum(dim, keepdim=True))
        else:
            expected = g - y.exp() * g.sum(dim, keepdim=True)
        rounding = max(torch.finfo(dtype).eps, sum_error(dtype))
        torch.testing.assert_close(gradient.double(), expected, rtol=rounding, atol=rounding / 8)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_special_values_in_tall_columns(backend, op):
    (x,) = tensors((16_400, 8), torch.float32, 1)
    x[:, 0] = -INF
    x[300, 1], x[16_399, 2], x[0, 3] = NAN, INF, -INF
    x[:16_000, 4], x[300:, 5] = -INF, -INF  # whole chunks
    result = getattr(diglot, op)(x, 0, backend=backend)
    assert_summed_in_line(op, result, x, 0)


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", KERNELS)
def test_scratch_is_asked_for_and_checked(backend, name):
    """A launcher without it launches nothing; too little of it, or not aligned, is an error."""
    x, grad = tensors((16_400, 8), torch.float32)
    launcher = getattr(REGISTRY[backend].module(name[: name.rindex("_")]), name)
    out = torch.full_like(x, 77)
    arguments = (*inputs_of(name, x, grad, 0), out)
    need = Scratch(*launcher(*arguments, None))
    assert need.bytes > 0 and need.lifetime == "call" and (out == 77).all()
    memory = provide(Scratch(need.bytes + 256, 0, "call"), x.device)
    for wrong in (memory[: need.bytes - 1], memory[1 : 1 + need.bytes]):
        with pytest.raises(ValueError, match="scratch"):
            launcher(*arguments, wrong)
    assert (out == 77).all()


OF_TYPES = list(itertools.product(OPS, FLOATING))
ONE_OP_EACH = list(zip(itertools.cycle(OPS), FLOATING, strict=False))


@pytest.mark.parametrize(("op", "dtype"), mostly_slow(OF_TYPES, *ONE_OP_EACH), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_against_the_oracle(backend, op, dtype):
    """To which PyTorch's own are not held: on a CPU they add up in the input's type."""
    for shape, dim, scale, offset in (
        ((40, 33), 1, 1, 0),
        ((5, 1000), 1, 8, 0),
        ((3, 5000), -1, 2, 30),
        ((50, 7, 8), 1, 3, 0),
        ((30_000,), 0, 4, -5),
    ):
        x = (torch.randn(shape, device=DEVICE) * scale + offset).to(dtype).requires_grad_()
        grad = torch.randn(shape, device=DEVICE).to(dtype)
        result = getattr(diglot, op)(x, dim, backend=backend)
        result.backward(grad)
        assert_right(op, result, x, dim)
        assert_right_gradient(op, x.grad, grad, x, dim)


def inputs_of(name: str, x: torch.Tensor, grad: torch.Tensor, dim: int) -> tuple[Any, ...]:
    """A launcher's arguments, without the output and scratch."""
    op = name[: name.rindex("_")]
    if name.endswith("forward"):
        return (x, dim)
    y = torch.empty_like(x).copy_(THEIRS[op](x.double(), dim))
    return (grad, y, dim)


WRITTEN = list(itertools.product(LAUNCHERS, [torch.float32, torch.bfloat16, torch.float64]))
MOST_WRITTEN = [case for i, case in enumerate(WRITTEN) if (i // 3 + i) % 3 != 2]  # two types each


@pytest.mark.parametrize(("name", "dtype"), mostly_slow(WRITTEN, *MOST_WRITTEN), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_element_is_written_and_no_other(backend, name, dtype):
    """Rows whose beginnings are aligned or not, in outputs with guards around them."""
    for rows, n in ((5, 64), (5, 61), (2, 1024), (3, 1021), (2, 4099)):
        for offset, pitch in ((0, n), (1, n), (0, n + 3), (3, n + 16)):
            x, grad = tensors((rows, n), dtype)
            memory = torch.full((rows * pitch + 64,), 77.0, device=DEVICE).to(dtype)
            out = memory[offset : offset + rows * pitch].view(rows, pitch)[:, :n]
            inputs = inputs_of(name, x, grad, 1)
            variant = launched(backend, name, *inputs, out)
            is_wide = not (n | pitch | offset) * dtype.itemsize % 16
            assert ("16-byte" in variant) == is_wide, variant
            expected = torch.empty_like(x)
            launched("torch", name, *inputs, expected)
            rounding = 2 * torch.finfo(dtype).eps
            error = max(rounding, sum_error(dtype))
            torch.testing.assert_close(out, expected, rtol=error, atol=rounding)
            out.fill_(77)
            assert (memory == 77).all(), (n, offset, pitch)


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", KERNELS)
def test_inputs_that_are_not_aligned(backend, name):
    """One such input is enough."""
    x, grad = tensors((5, 64), torch.float32)
    shifted = torch.randn(5 * 64 + 1, device=DEVICE)[1:].view(5, 64)
    out = torch.empty_like(x)
    assert "16-byte" in launched(backend, name, *inputs_of(name, x, grad, 1), out)
    variant = launched(backend, name, *inputs_of(name, shifted, shifted, 1), out)
    assert "16-byte" not in variant
    expected = torch.empty_like(x)
    launched("torch", name, *inputs_of(name, shifted, shifted, 1), expected)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("layout", [*LAYOUTS, "negative bit"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend, op, layout):
    """Along every dimension, of the input, and of a gradient that need not have the input's."""
    make = LAYOUTS.get(layout, lambda x: torch.complex(x, x).conj().imag)
    x, grad = (make(t) for t in tensors((32, 32), torch.float32))
    for dim in range(x.dim()):
        for given_grad in (grad, grad.contiguous(), grad[..., :1].expand_as(grad)):
            leaf = x.detach().requires_grad_()
            result = getattr(diglot, op)(leaf, dim, backend=backend)
            assert result.stride() == torch.empty_like(x).stride()
            assert_right(op, result, x, dim)
            (gradient,) = torch.autograd.grad(result, leaf, given_grad)
            wide = x.detach().double().requires_grad_()
            expected = torch.autograd.grad(THEIRS[op](wide, dim), wide, given_grad.double())
            torch.testing.assert_close(gradient, expected[0].float(), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("backend", KERNELS)
def test_more_dimensions_than_a_kernel_takes(backend):
    """Of each launch a slice."""
    x = torch.randn((2, 3, 2, 3, 2, 2, 2, 2, 3, 2, 4), device=DEVICE)
    x = in_order(x, [4, 1, 9, 0, 6, 2, 10, 5, 8, 3, 7])[:, 1:, :, :, :, :, :, :1]
    for dim in (0, 4, 10):
        result = diglot.softmax(x, dim, backend=backend)
        assert_right("softmax", result, x, dim)


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0, 2), (3, 0), (1,), (7,), (33, 65), (2, 3, 4, 5)], ids=str
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes(backend, op, shape):
    for dim in range(-max(len(shape), 1), max(len(shape), 1)):
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        result = getattr(diglot, op)(x, dim, backend=backend)
        expected = THEIRS[op](x, dim)
        torch.testing.assert_close(result, expected)
        grad = torch.randn_like(x)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, grad) for y in (result, expected)))


@pytest.mark.parametrize(
    "special", [[NAN], [INF], [INF, -INF], [-INF], [INF, NAN], [-INF, NAN], [INF, INF]], ids=str
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, op, special):
    """In one row, at its ends, and alone; other rows go on as they are."""
    for dtype, longest in ((torch.float32, 300), (torch.bfloat16, 3000)):
        for n in (len(special), 5, longest):
            for at in {0, n - len(special)}:
                (x,) = tensors((3, n), dtype, 1)
                x[1, at : at + len(special)] = torch.tensor(special, device=DEVICE).to(dtype)
                for values, dim in ((x, 1), (x.t().contiguous(), 0)):
                    result = getattr(diglot, op)(values, dim, backend=backend)
                    wide = THEIRS[op](values.double(), dim)
                    torch.testing.assert_close(
                        result.double(), wide, rtol=2e-2, atol=4e-2, equal_nan=True
                    )


@pytest.mark.parametrize("fill", [INF, -INF, NAN, 0.0, 3e38, -3e38], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_one_value(backend, op, fill):
    for shape, dim in (((2, 5), 1), ((1, 20_000), 1), ((900, 4), 0)):
        x = torch.full(shape, fill, device=DEVICE)
        result = getattr(diglot, op)(x, dim, backend=backend)
        expected = THEIRS[op](x, dim)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert math.isfinite(fill) or result.isnan().all()


RAMPS = [(op, of) for op in OPS for of in (torch.float32, torch.float64, torch.bfloat16)]


@pytest.mark.parametrize(("op", "dtype"), mostly_slow(RAMPS, RAMPS[0], RAMPS[-1]), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_maxima_that_grow_and_fall(backend, op, dtype):
    """The sum of each part is brought to the maximum of all: of threads, tiles and blocks."""
    n = 12_004 if dtype == torch.float64 else 40_004
    ramp = torch.linspace(-80, 80, n, dtype=torch.float64)
    for x in (ramp, ramp.flip(0), ramp.abs(), -ramp.abs(), ramp * 1e30, ramp + 1e4):
        x = x.to(DEVICE, dtype)
        assert_right(op, getattr(diglot, op)(x, 0, backend=backend), x, 0)
    columns = ramp[::10].reshape(-1, 1).expand(-1, 8).contiguous().to(DEVICE, dtype)
    assert_right(op, getattr(diglot, op)(columns, 0, backend=backend), columns, 0)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_dtype(backend, op, dtype, wide):
    """As if the input were converted first, without a copy to float32; its gradient goes back."""
    for shape, dim in (((5, 64), 1), ((3, 61), 1), ((9, 16), 0), ((2, 9000), 1), ((7, 5), 0)):
        (x,) = tensors(shape, dtype, 1)
        x.requires_grad_()
        result = getattr(diglot, op)(x, dim, wide, backend=backend)
        assert result.dtype == wide
        assert_right(op, result, x.to(wide), dim)
        grad = torch.randn_like(result)
        (gradient,) = torch.autograd.grad(result, x, grad)
        leaf = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(THEIRS[op](leaf, dim), leaf, grad.double())
        assert gradient.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(gradient.double(), expected, rtol=eps, atol=1e-6)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_dtype_of_others(backend, op):
    own = getattr(diglot, op)
    x = torch.arange(12, device=DEVICE).view(3, 4)
    for given_x in (x, x.to(torch.uint8), x > 5, x.double(), x.half()):
        for dtype in FLOATING:
            result = own(given_x, 1, dtype, backend=backend)
            assert result.dtype == dtype
            assert_right(op, result, given_x.to(dtype), 1)


@settings(max_examples=examples(30))
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_properties(backend, data):
    """Rows sum to one; adding a constant changes nothing; the logarithm is the logarithm."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 33]), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    x = in_order(torch.randint(-40, 40, shape, device=DEVICE).float() / 4, order)
    probabilities = diglot.softmax(x, dim, backend=backend)
    assert probabilities.stride() == torch.empty_like(x).stride()
    total = probabilities.double().sum(dim)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-6, atol=0)
    # These sums are exact, so that every bit is the same.
    assert torch.equal(diglot.softmax(x + 64, dim, backend=backend), probabilities)
    logarithms = diglot.log_softmax(x, dim, backend=backend)
    torch.testing.assert_close(logarithms.exp(), probabilities, rtol=1e-5, atol=1e-9)
    # The gradient of a constant is zero.
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(diglot.softmax(leaf, dim, backend=backend).sum(), leaf)
    assert gradient.abs().max() < 1e-6


@settings(max_examples=examples(25))
@given(data=st.data())
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_against_float64(backend, op, data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 5, 8, 40]), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from(FLOATING))
    x, grad = tensors(shape, dtype)
    x.requires_grad_()
    getattr(diglot, op)(x, dim, backend=backend).backward(grad)
    assert_right_gradient(op, x.grad, grad, x, dim)
    leaf = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(THEIRS[op](leaf, dim), leaf, grad.double())
    eps = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(x.grad.double(), expected, rtol=eps, atol=eps * len(shape) * 4)


@pytest.mark.parametrize("op", ["softmax", pytest.param("log_softmax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_do_not_know_of_each_other(backend, op):
    """A row is the same, whatever their number and its place. Few rows may take another order;
    test_invariant.py has the mode that forbids it.
    """
    for shape in ((50, 96), (40, 61), (7, 3000), (3, 40_004)):
        (x,) = tensors(shape, torch.float32, 1)
        whole = getattr(diglot, op)(x, backend=backend)
        for row in (0, shape[0] // 2, shape[0] - 1):
            alone = getattr(diglot, op)(x[row : row + 1].clone(), backend=backend)
            torch.testing.assert_close(alone[0], whole[row], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("backend", "op"), by_turns((op,) for op in OPS))
def test_operator(backend, op):
    """`opcheck` takes the gradient of |sum of the output|: if rows sum to one, the backward pass is
    of sum 0, and its sign is chance.
    """
    x = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    grad = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    ops = torch.ops.diglot
    torch.library.opcheck(getattr(ops, op).default, (x, 1, torch.float32, backend))
    y = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    arguments = (grad, y, 1, torch.float32, backend)
    torch.library.opcheck(getattr(ops, f"{op}_backward").default, arguments)


@pytest.mark.parametrize(("backend", "op"), by_turns((op,) for op in OPS))
def test_gradcheck(backend, op):
    x = torch.randn(2, 3, 2, device=DEVICE, dtype=torch.float64, requires_grad=True)
    for dim in (1, 2):
        function = lambda t, d=dim: getattr(diglot, op)(t, d, backend=backend)  # noqa: E731
        torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
        torch.autograd.gradgradcheck(function, (x,), check_fwd_over_rev=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_third_derivative(backend, op):
    x = torch.randn(2, 4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(2, 4, device=DEVICE, dtype=torch.float64) for _ in range(4)]
    results = []
    for function in (lambda t: getattr(diglot, op)(t, 1, backend=backend), THEIRS[op]):
        value = function(x) if function is not THEIRS[op] else THEIRS[op](x, 1)
        for weight in weights:
            (value,) = torch.autograd.grad((value * weight).sum(), x, create_graph=True)
        results.append(value)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend, op):
    """Batches go through one launch, along any dimension."""
    func = torch.func
    x = torch.randn(4, 5, 3, device=DEVICE)
    for batch in range(3):
        for dim in (-1, 0, 1):
            own = lambda t, d=dim: getattr(diglot, op)(t, d, backend=backend)  # noqa: E731
            with diglot.record_runs() as runs:
                result = func.vmap(own, in_dims=batch)(x)
            assert len(runs) == 1
            expected = torch.stack([THEIRS[op](t, dim) for t in x.unbind(batch)])
            torch.testing.assert_close(result, expected)
    own = lambda t: getattr(diglot, op)(t, -1, backend=backend)  # noqa: E731
    theirs = lambda t: THEIRS[op](t, -1)  # noqa: E731
    numbers = torch.randn(6, device=DEVICE)
    torch.testing.assert_close(func.vmap(own)(numbers), THEIRS[op](numbers[:, None], 1)[:, 0])
    x = x[:, :, 0]

    def loss(f):
        return lambda t: (f(t) * torch.arange(5, device=DEVICE)).sum()

    grads = func.vmap(func.grad(loss(own)))(x)
    torch.testing.assert_close(grads, torch.stack([func.grad(loss(theirs))(t) for t in x]))
    torch.testing.assert_close(*(func.jvp(f, (x,), (x.cos(),)) for f in (own, theirs)))
    torch.testing.assert_close(*(func.jacrev(f)(x[0]) for f in (own, theirs)))
    torch.testing.assert_close(*(func.jacfwd(f)(x[0]) for f in (own, theirs)))
    pair = [func.hessian(loss(f))(x[0]) for f in (own, theirs)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backend", "op", "dynamic"), by_turns([(OPS[i], i != j) for i in (0, 1) for j in (0, 1)])
)
def test_compiled(backend, op, dynamic):
    torch._dynamo.reset()

    def block(x, dim):
        return getattr(diglot, op)(x * 2, dim, backend=backend).sin()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape, dim in (((4, 8), 1), ((8, 4), 1), ((3, 5), 0), ((3, 4), 1)):
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        grad = torch.randn(shape, device=DEVICE)
        y, theirs = compiled(x, dim), THEIRS[op](x * 2, dim).sin()
        torch.testing.assert_close(y, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(t, x, grad) for t in (y, theirs)))
    permuted = torch.randn(4, 6, device=DEVICE).t()
    torch.testing.assert_close(compiled(permuted, 1), THEIRS[op](permuted * 2, 1).sin())


@pytest.mark.parametrize("op", OPS)
def test_meta_and_fake(op):
    from torch._subclasses.fake_tensor import FakeTensorMode

    own = getattr(diglot, op)
    x = torch.empty(4, 6).t()
    with FakeTensorMode() as mode:
        fake = own(mode.from_tensor(x), backend="torch")
    assert (fake.shape, fake.stride(), fake.dtype) == (x.shape, x.stride(), x.dtype)
    for dtype in (None, torch.float32, torch.bfloat16):
        meta = own(x.to("meta", torch.bfloat16), 0, dtype, backend="torch")
        wanted = dtype or torch.bfloat16
        assert (meta.shape, meta.stride(), meta.dtype) == (x.shape, x.stride(), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend, op, dtype):
    """To float32, as PyTorch's on a GPU; not where a dtype is asked for."""
    own = getattr(diglot, op)
    x = torch.randn(30, 10, device=DEVICE).to(dtype).requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16), diglot.record_runs() as runs:
        result = own(x, backend=backend)
        assert own(x, -1, dtype, backend=backend).dtype == dtype
    assert len(runs) == 2
    assert result.dtype == torch.float32
    assert_right(op, result, x.float(), 1)
    result.sum().backward()
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0],), TypeError, "input must be a torch.Tensor, not list"),
        ((torch.arange(3),), TypeError, "input must have one of the dtypes float32.*not int64"),
        ((torch.ones(2).to(torch.complex64),), TypeError, "not complex64"),
        ((torch.ones(2).cfloat(), 0, torch.float32), TypeError, "not complex64"),
        ((torch.ones(2).to_sparse(),), TypeError, "input must be a dense tensor"),
        ((torch.ones(2), 1), IndexError, "dim must be from -1 to 0 for a tensor of 1 dimensions"),
        ((torch.ones(2, 3), -3), IndexError, "dim must be from -2 to 1.*not -3"),
        ((torch.ones(()), 1), IndexError, "dim must be from -1 to 0 for a tensor of 0 dimensions"),
        ((torch.ones(2), 0.0), TypeError, "dim must be an integer, not float"),
        ((torch.ones(2), None), TypeError, "dim must be an integer, not NoneType"),
        ((torch.ones(2), 0, torch.int32), TypeError, "dtype must be None, float32.*torch.int32"),
        ((torch.ones(2), 0, "float32"), TypeError, "dtype must be None, float32.*'float32'"),
    ],
)
def test_bad_arguments(op, arguments, error, message):
    with pytest.raises(error, match=f"{op}: .*{message}"):
        getattr(diglot, op)(*arguments)


@pytest.mark.parametrize("op", OPS)
def test_bad_gradients(op):
    backward = getattr(torch.ops.diglot, f"{op}_backward")
    x = torch.ones(3, device=DEVICE)
    for grad in (torch.ones(2, device=DEVICE), x.double()):
        with pytest.raises(ValueError, match="grad_output must have the shape and dtype of"):
            backward(grad, x, 0, x.dtype, "torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules(backend):
    x = torch.randn(3, 4, 5, device=DEVICE)
    for module, theirs in (
        (diglot.nn.Softmax(1, backend=backend), torch.nn.Softmax(1)),
        (diglot.nn.LogSoftmax(backend=backend), torch.nn.LogSoftmax(-1)),
    ):
        torch.testing.assert_close(module(x), theirs(x))
        assert diglot.last_run().backend == backend
        name = f"diglot.nn.{type(theirs).__name__}"
        assert repr(module) == f"{name}(dim={module.dim}, backend={backend!r})"
        assert isinstance(module, type(theirs))
    with pytest.raises(ValueError, match="backend"):
        diglot.nn.Softmax(backend="rocm")
