"""add: values, broadcasting, promotion, layouts, gradients, memory, errors."""

from __future__ import annotations

import math

import pytest
import torch
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_BACKENDS,
    ULP,
    assert_close,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import diglot
from diglot.ops.add import DTYPES
from diglot.reference.add import add_oracle

INTEGERS = [dtype for dtype in DTYPES if not dtype.is_floating_point and dtype != torch.bool]


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)
    if dtype == torch.bool:
        return torch.rand(shape, device=DEVICE) > 0.5
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device=DEVICE)


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert (result.dtype, result.shape, result.device) == (
        expected.dtype,
        expected.shape,
        expected.device,
    )
    assert steps(result) == steps(expected)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bit_equal_to_torch(backend, dtype):
    for shape in [(), (0,), (1,), (1025,), (64, 65)]:
        x, y = draw(shape, dtype), draw(shape, dtype)
        check(diglot.add(x, y, backend=backend), torch.add(x, y))
        assert diglot.last_run().backend == backend


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_wrap(backend, dtype):
    x, y = draw((999,), dtype), draw((999,), dtype)
    for alpha in (3, -7, 2**31 + 5 if dtype == torch.int64 else 11):
        check(diglot.add(x, y, alpha=alpha, backend=backend), torch.add(x, y, alpha=alpha))
    number = 2**62 + 3 if dtype == torch.int64 else 100
    check(diglot.add(x, number, backend=backend), torch.add(x, number))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_alpha_is_fused(backend, dtype):
    """input + alpha · other is rounded once, where torch on a CPU rounds the product too."""
    x, y = draw((4000,), dtype), draw((4000,), dtype)
    for alpha in (2.5, -1.0, 0.1, 0):
        result = diglot.add(x, y, alpha=alpha, backend=backend)
        # Where the sum cancels, one ulp of a term is many of the sum: judged by the larger term.
        oracle = add_oracle(x, y, alpha)
        keep = oracle.abs() > 0.05 * x.double().abs()
        assert_close(result[keep], oracle[keep], max(ULP[dtype], 1), x[keep])


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend):
    x = torch.tensor([math.nan, math.inf, -math.inf, math.inf, 3e38, 0.0], device=DEVICE)
    y = torch.tensor([1.0, 1.0, 1.0, -math.inf, 3e38, -0.0], device=DEVICE)
    check(diglot.add(x, y, backend=backend), torch.add(x, y))


PROMOTIONS = [
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float16),
    (torch.float16, torch.float64),
    (torch.int32, torch.float16),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int64),
    (torch.int64, torch.float32),
    (torch.bool, torch.bfloat16),
]


@pytest.mark.parametrize(("first", "second"), PROMOTIONS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_type_promotion(backend, first, second):
    x, y = draw((40, 30), first), draw((40, 30), second)
    check(diglot.add(x, y, backend=backend), torch.add(x, y))
    check(diglot.add(y, x[:, :1], backend=backend), torch.add(y, x[:, :1]))
    scalar = draw((), second)
    check(diglot.add(x, scalar, backend=backend), torch.add(x, scalar))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers(backend):
    for dtype in (torch.float32, torch.float64, torch.int16, torch.bool):
        x = draw((50,), dtype)
        for number in (2, -1.5, True, 0):
            result = diglot.add(x, number, backend=backend)
            expected = torch.add(x, number)
            assert result.dtype == expected.dtype
            torch.testing.assert_close(result, expected)
    x = draw((50,), torch.float64)
    check(diglot.add(x, 0.1, alpha=3, backend=backend), torch.add(x, 3 * 0.1))
    # A 0-d tensor on the CPU goes with any device.
    check(diglot.add(x, torch.tensor(2.0), backend=backend), torch.add(x, torch.tensor(2.0)))


BROADCASTS = [
    ((8, 1), (1, 9)),
    ((5, 1, 7), (6, 1)),
    ((3,), (4, 2, 3)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((), (4, 4)),
    ((0, 3), (1, 3)),
    ((4, 1, 3, 1, 2, 1), (1, 5, 1, 2, 1, 3)),
]


@pytest.mark.parametrize(("first", "second"), BROADCASTS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_broadcasting(backend, first, second):
    x, y = draw(first, torch.float32), draw(second, torch.float32)
    check(diglot.add(x, y, backend=backend), torch.add(x, y))
    own = [t.clone().requires_grad_() for t in (x, y)]
    theirs = [t.clone().requires_grad_() for t in (x, y)]
    out = diglot.add(*own, alpha=0.5, backend=backend)
    grad = torch.randn_like(out)
    with diglot.record_runs() as runs:
        out.backward(grad)
    assert all(run.backend == backend for run in runs)
    torch.add(*theirs, alpha=0.5).backward(grad)
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


LAYOUTS = {
    "both transposed": lambda x, y: (x.t(), y.t()),
    "one transposed": lambda x, y: (x.t(), y),
    "columns": lambda x, y: (x[:, ::2], y[:, ::2]),
    "channels last": lambda x, y: tuple(
        t.reshape(4, 4, 16, 16).to(memory_format=torch.channels_last) for t in (x, y)
    ),
    "channels last and bias": lambda x, y: (
        x.reshape(4, 4, 16, 16).to(memory_format=torch.channels_last),
        y[0, :4].reshape(4, 1, 1),
    ),
    "expanded": lambda x, y: (x[:1].expand(64, 64), y),
    "offset": lambda x, y: (x.reshape(-1)[1:], y.reshape(-1)[1:]),
    "offset differently": lambda x, y: (x.reshape(-1)[1:-1], y.reshape(-1)[2:]),
    "overlapping": lambda x, y: (x.reshape(-1).as_strided((60, 60), (1, 1)), y[:60, :60]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend, layout, dtype):
    x, y = LAYOUTS[layout](draw((64, 64), dtype), draw((64, 64), dtype))
    check(diglot.add(x, y, backend=backend), torch.add(x, y))


BIASES = {
    "bias": ((40, 64), lambda y: y[0], True),
    "column": ((40, 64), lambda y: y[:, :1], True),
    "column of three": ((3, 40, 64), lambda y: y[:, :1].unsqueeze(1)[:3], True),
    "plane": ((3, 40, 64), lambda y: y, True),
    "misaligned": ((39, 64), lambda y: y.reshape(-1)[1:65], False),
    "odd": ((40, 63), lambda y: y[0, :63], False),
    "misaligned column": ((39, 64), lambda y: y.reshape(-1)[1:][:39].reshape(39, 1), True),
}


@pytest.mark.parametrize("case", BIASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_broadcasting_in_16_byte_accesses(backend, dtype, case):
    shape, of, whole = BIASES[case]
    x, y = draw(shape, dtype), of(draw((40, 64), dtype))
    check(diglot.add(x, y, backend=backend), torch.add(x, y))
    assert ("16-byte" in diglot.last_run().variant) == whole
    check(diglot.add(y, x, backend=backend), torch.add(y, x))
    rows = draw((8, 2 * shape[-1]), dtype)[:, : shape[-1]]
    check(diglot.add(rows, 3, backend=backend), torch.add(rows, 3))
    if dtype.is_floating_point:
        z = torch.zeros_like(x).requires_grad_()
        grad = draw((*shape[:-1], 128), dtype)[..., : shape[-1]]
        diglot.add(x, z, alpha=2, backend=backend).backward(grad)
        assert torch.equal(z.grad, 2 * grad)


MANY = {
    "permuted against": ((2, 3) * 5, (3, 0, 7, 2, 9, 4, 1, 6, 5, 8)),
    "reversed": ((2,) * 12, tuple(reversed(range(12)))),
    "broadcast": ((2, 1, 3, 1, 2, 1, 2, 1, 2, 1), tuple(range(10))),
}


@pytest.mark.parametrize("case", MANY)
@pytest.mark.parametrize(("first", "second"), [("float32", "float32"), ("int16", "bfloat16")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_dimensions_than_a_kernel_takes(backend, first, second, case):
    """Dimensions that do not merge, and gradients that are summed over as many."""
    shape, order = MANY[case]
    full = [max(size, 2) for size in shape]
    x = draw(tuple(full), getattr(torch, first))
    y = draw(shape, getattr(torch, second)).permute(order)
    y = y.contiguous().permute([order.index(d) for d in range(len(order))])
    check(diglot.add(x, y, backend=backend), torch.add(x, y))
    if first != "float32":
        return
    for kept in (shape, [1] * len(shape), [size if d % 2 else 1 for d, size in enumerate(full)]):
        y = torch.zeros(kept, device=DEVICE, requires_grad=True)
        grad = torch.randn(full, device=DEVICE).permute(order).contiguous()
        grad = grad.permute([order.index(d) for d in range(len(order))])
        diglot.add(x, y, alpha=2, backend=backend).backward(grad)
        expected = 2 * grad.double().sum_to_size(kept)
        torch.testing.assert_close(y.grad.double(), expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=30)
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_any_operands(backend, data):
    rank = data.draw(st.integers(0, 5))
    shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
    operands = []
    for _ in range(2):
        own = [data.draw(st.sampled_from([size, size, 1])) for size in shape]
        x = draw(tuple(2 * size for size in own), data.draw(st.sampled_from(DTYPES)))
        x = x[tuple(slice(None, size) for size in own)]
        order = data.draw(st.permutations(range(rank)))
        x = x.permute(order).contiguous().permute([order.index(d) for d in range(rank)])
        operands.append(x[(0,) * data.draw(st.integers(0, rank))] if rank else x)
    # Strides of dimensions whose order is ambiguous (some operand has size one there) are PyTorch's
    # own business: test_layouts holds the others to them.
    result, expected = diglot.add(*operands, backend=backend), torch.add(*operands)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (7, 1), (1, 300), (300,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sum_of_gradients(backend, shape, dtype):
    """The reductions that the gradients of broadcast operands are, against float64."""
    for big in [(7, 300), (3, 7, 300)]:
        x = torch.zeros(big, device=DEVICE, dtype=dtype)
        y = torch.zeros(shape, device=DEVICE, dtype=dtype, requires_grad=True)
        grad = (torch.rand(big, device=DEVICE) + 0.5).to(dtype)
        diglot.add(x, y, alpha=2, backend=backend).backward(grad)
        oracle = 2 * grad.double().sum_to_size(shape)
        assert y.grad.dtype == dtype
        terms = math.prod(big) / max(1, math.prod(shape))
        assert_close(y.grad, oracle, max(2, math.sqrt(terms)) if dtype == torch.float32 else 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_sums(backend):
    """Sums long enough to be split, over dimensions before, after and around the kept ones."""
    rows = 600 if DEVICE == "cuda" else 20  # interpreted, every split takes its time
    grad = torch.rand(rows, 3, 130, device=DEVICE)
    for shape in [(3, 130), (rows, 1, 1), (1, 3, 1), (rows, 1, 130), ()]:
        y = torch.zeros(shape, device=DEVICE, requires_grad=True)
        x = torch.zeros(grad.shape, device=DEVICE)
        diglot.add(x, y, backend=backend).backward(grad)
        torch.testing.assert_close(
            y.grad, grad.double().sum_to_size(shape).float(), rtol=3e-6, atol=0
        )
        first = y.grad.clone()
        y.grad = None
        diglot.add(x, y, backend=backend).backward(grad)
        assert torch.equal(y.grad, first)  # the order of the sum is fixed


SUMS = {
    "kept fastest": ((70, 264), (264,), lambda g: g),
    "kept fastest, few": ((3000, 3), (3,), lambda g: g),
    "kept fastest, one access": ((700, 8), (8,), lambda g: g),
    "kept fastest, odd": ((70, 263), (263,), lambda g: g),
    "kept fastest, rows apart": ((70, 264), (264,), lambda g: g[:, 8:200]),
    "kept fastest, misaligned": ((70, 264), (264,), lambda g: g[:, 1:193]),
    "kept fastest, odd steps": ((70, 263), (184,), lambda g: g[:, :184]),
    "kept fastest, between": ((9, 16, 40), (16, 40), lambda g: g),
    "reduced fastest, long": ((3, 5000), (3, 1), lambda g: g),
    "reduced fastest, split": ((2, 40000), (2, 1), lambda g: g),
    "reduced fastest, odd": ((3, 4999), (3, 1), lambda g: g),
    "reduced fastest, middling": ((70, 104), (70, 1), lambda g: g),
    "reduced fastest, misaligned": ((70, 104), (70, 1), lambda g: g[:, 1:81]),
    "reduced fastest, odd steps": ((70, 105), (70, 1), lambda g: g[:, :80]),
    "reduced fastest, short": ((3000, 8), (3000, 1), lambda g: g),
    "reduced fastest, three": ((3000, 3), (3000, 1), lambda g: g),
    "reduced fastest, two runs": ((6, 5, 4, 64), (5, 1, 1), lambda g: g),
    "transposed": ((104, 70), (70, 1), lambda g: g.t()),
    "expanded": ((1, 1), (40, 1), lambda g: g.expand(40, 300)),
}


@pytest.mark.parametrize("case", SUMS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_tiles_of_sums(backend, dtype, case):
    """Every way that a sum is tiled, its last tile not full."""
    shape, kept, view = SUMS[case]
    grad = view(draw(shape, torch.float32).abs().to(dtype))
    kept = tuple(min(k, s) for k, s in zip(kept, grad.shape[-len(kept) :], strict=True))
    y = torch.zeros(kept, dtype=dtype, device=DEVICE, requires_grad=True)
    x = torch.zeros(grad.shape, dtype=dtype, device=DEVICE)
    diglot.add(x, y, backend=backend).backward(grad)
    oracle = grad.double().sum_to_size(kept)
    limit = {torch.float32: 16.0, torch.float64: 16.0}
    assert_close(y.grad, oracle, limit.get(dtype, 1.0))
    grad = torch.where(torch.arange(grad[..., :1].numel(), device=DEVICE) == 0, torch.nan, 0.0)
    grad = grad.reshape((*x.shape[:-1], 1)).to(dtype).expand(x.shape)
    y.grad = None
    diglot.add(x, y, backend=backend).backward(grad)
    assert torch.equal(y.grad.isnan(), grad.sum_to_size(kept).isnan())  # nothing else is touched


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_gradcheck(backend):
    x = torch.randn(3, 1, 2, device=DEVICE, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 1, device=DEVICE, dtype=torch.float64, requires_grad=True)
    function = lambda a, b: diglot.add(a, b, alpha=1.5, backend=backend)  # noqa: E731
    torch.autograd.gradcheck(function, (x, y), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, (x, y))


def test_gradient_of_equal_shapes_is_no_copy():
    x, y = (torch.ones(4, device=DEVICE, requires_grad=True) for _ in range(2))
    with diglot.record_runs() as runs:
        out = diglot.add(x, y, backend="torch")
        out.sum().backward()
    assert [run.launcher for run in runs] == ["add_forward"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_mixed_types(backend):
    x = torch.randn(20, 30, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randn(30, device=DEVICE, requires_grad=True)
    diglot.add(x, y, alpha=3, backend=backend).sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert torch.equal(x.grad, torch.ones_like(x))
    torch.testing.assert_close(y.grad, torch.full_like(y, 60))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diglot.add(1, torch.ones(2)), TypeError, "input must be a torch.Tensor, not int"),
        (
            lambda: diglot.add(torch.ones(2), "x"),
            TypeError,
            "other must be a torch.Tensor or a num",
        ),
        (lambda: diglot.add(torch.ones(2), None), TypeError, "not NoneType"),
        (lambda: diglot.add(torch.ones(2), 1j), TypeError, "not complex"),
        (
            lambda: diglot.add(torch.ones(2, 3), torch.ones(4)),
            ValueError,
            r"do not broadcast: \(2, 3\) and \(4,\)",
        ),
        (
            lambda: diglot.add(torch.ones(2).int(), torch.ones(2).int(), alpha=0.5),
            TypeError,
            "alpha must be an integer where the result is torch.int32, not a float",
        ),
        (
            lambda: diglot.add(torch.ones(2).int(), torch.ones(2).int(), alpha=True),
            TypeError,
            "alpha must be a number where the result is torch.int32, not a bool",
        ),
        (lambda: diglot.add(torch.ones(2), torch.ones(2), alpha="2"), TypeError, "alpha must be a"),
        (
            lambda: diglot.add(torch.ones(2).to(torch.complex64), 1),
            TypeError,
            "input must have one of the dtypes",
        ),
        (
            lambda: diglot.add(torch.ones(2), torch.ones(2, device="meta")),
            ValueError,
            "must be on one device, not on cpu and meta",
        ),
        (lambda: diglot.add(torch.ones(2), 1, backend="x"), ValueError, "backend must be one of"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
