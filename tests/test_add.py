"""add: values, broadcasting, promotion, layouts, gradients, memory, errors."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from backends import (
    BACKENDS,
    CUDA,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_BACKENDS,
    SLOW_TRITON,
    ULP,
    assert_close,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import diglot
from diglot.ops import promotion
from diglot.ops.add import DTYPES, _add_across_devices
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


ALPHAS = [
    *(0, 1, -1, 2, 100, 127, -128, 128, -129, 255, 256, -255, -256, 300, 2**31, -(2**31) - 1),
    *(2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 2**70, -(2**70), True, False),
    *(2.0, 0.1, -1.5, 3e38, 1e39, -1e39, 1e300, math.inf, -math.inf, math.nan),
    *(np.float64(2.5), np.float32(2.5), np.float16(2.5), np.int64(2), np.int8(2), np.uint64(2)),
    *(torch.tensor(2), torch.tensor(2.5), torch.tensor(True)),
    *(torch.tensor([2]), torch.tensor(2.5, requires_grad=True), np.array(2), 1j, "2", None),
]


@pytest.mark.parametrize("alpha", ALPHAS, ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_alpha_is_taken_or_refused_as_by_torch(backend, alpha):
    """The same ones are taken, by every backend, for a tensor and for a number as `other`."""
    for dtype in DTYPES:
        x = torch.ones(3, device=DEVICE).to(dtype)
        for other in (x, True if dtype == torch.bool else 1):
            try:  # on the CPU: on a GPU, torch takes for float16 what only float32 holds
                on_cpu = [t.cpu() if isinstance(t, torch.Tensor) else t for t in (x, other)]
                expected = torch.add(*on_cpu, alpha=alpha).to(DEVICE)
            except (TypeError, RuntimeError, OverflowError):
                with pytest.raises((TypeError, ValueError), match="add: alpha must be"):
                    diglot.add(x, other, alpha=alpha, backend=backend)
            else:
                check(diglot.add(x, other, alpha=alpha, backend=backend), expected)


OTHERS = [
    *(0, -1, 100, 127, -129, 300, -300, 2**62 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1),
    *(True, 0.125, 1e39, math.nan, -math.inf),
    *(np.float64(2.5), np.float32(2.5), np.int64(2), np.uint64(2)),
]


@pytest.mark.parametrize("other", OTHERS, ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_as_by_torch(backend, other):
    for dtype in DTYPES:
        if dtype == torch.bool and other in (2**63, 2**64 - 1):
            continue  # torch takes them for uint64, to which it promotes nothing
        x = draw((20,), dtype)
        check(diglot.add(x, other, backend=backend), torch.add(x, other))


def test_products_of_numbers_wrap_for_integer_results_alone():
    x = torch.ones(2, device=DEVICE)
    for backend in ("torch", "triton"):
        assert diglot.add(x, 2**62, alpha=4, backend=backend)[0] == 2.0**64
        assert diglot.add(x.long(), 2**62, alpha=9, backend=backend)[0] == 2**62 + 1
        assert diglot.add(x, 2**63, backend=backend)[0] == 2.0**63


HOST_SCALARS = [
    (torch.float32, torch.tensor(2.5)),
    (torch.float16, torch.tensor(0.1, dtype=torch.float64)),
    (torch.float32, torch.tensor(7)),
    (torch.int8, torch.tensor(300)),
    (torch.int8, torch.tensor(2.5, dtype=torch.float64)),
    (torch.uint8, torch.tensor(-1, dtype=torch.int64)),
    (torch.bool, torch.tensor(2**40)),
    (torch.bool, torch.tensor(True)),
    (torch.int64, torch.tensor(2**62 + 1)),
    (torch.bfloat16, torch.complex(torch.ones(()), torch.ones(())).conj().imag),
]


@pytest.mark.parametrize("alpha", [1, 2, -1])
@pytest.mark.parametrize(("dtype", "scalar"), HOST_SCALARS, ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_host_scalars(backend, dtype, scalar, alpha):
    """In either place; the function is called by itself, so that it is tested without a GPU."""
    if dtype in (torch.bool, torch.uint8) and alpha == -1:
        alpha = 1
    for tensor in (draw((30,), dtype), draw((3, 4), dtype).t(), draw((), dtype)):
        on_cpu = tensor.cpu()
        for operands, expected in [
            ((tensor, scalar), torch.add(on_cpu, scalar, alpha=alpha)),
            ((scalar, tensor), torch.add(scalar, on_cpu, alpha=alpha)),
        ]:
            result = _add_across_devices(*operands, alpha, backend)
            assert result.stride() == expected.stride()
            assert (result.dtype, result.device) == (expected.dtype, tensor.device)
            # torch on a CPU rounds float16 sums of numbers, and products by alpha, in between.
            torch.testing.assert_close(result.cpu(), expected)


def test_host_scalar_reaches_the_kernel_as_a_number(monkeypatch):
    seen = []
    module = sys.modules["diglot.ops.add"]  # diglot.ops.add names the function
    monkeypatch.setattr(module, "run", lambda *arguments: seen.append(arguments[4:6]))
    x, scalar = draw((5,), torch.float32), torch.tensor(2.5)
    _add_across_devices(x, scalar, 3, "torch")
    _add_across_devices(scalar, x, 1, "torch")
    with torch.no_grad():
        _add_across_devices(x, scalar.requires_grad_(), 1, "torch")
    assert seen == [(None, 7.5), (None, 2.5), (None, 2.5)]


def test_gradient_of_a_host_scalar():
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    for order in (1, -1):
        scalar = torch.tensor(2.0, requires_grad=True)
        result = _add_across_devices(*(x, scalar)[::order], 3, "torch")
        of_x, of_scalar = torch.autograd.grad(result.sum(), (x, scalar))
        factors = (1, 3)[::order]
        assert torch.equal(of_x, torch.full_like(x, factors[0]))
        assert of_scalar == 5 * factors[1]
        assert of_scalar.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [1, 3])
@pytest.mark.parametrize("backend", ["cuda", "triton", "torch"])
def test_host_scalars_in_a_capture(backend, alpha):
    x, scalar = torch.randn(100, device="cuda"), torch.tensor(2.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = diglot.add(x, scalar, alpha=alpha, backend=backend)
        second = diglot.add(scalar, x, alpha=alpha, backend=backend)
    x.copy_(torch.randn(100, device="cuda"))
    graph.replay()
    torch.testing.assert_close(first, torch.add(x, scalar, alpha=alpha))
    torch.testing.assert_close(second, torch.add(scalar, x, alpha=alpha))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_host_scalars_do_not_synchronise(backend):
    x, scalar = torch.randn(100, device="cuda"), torch.tensor(2.5)
    diglot.add(x, 1.0, backend=backend)
    torch.cuda.set_sync_debug_mode("error")
    try:
        diglot.add(x, scalar, backend=backend)
        diglot.add(scalar, x, backend=backend)
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
    # The gradient of an operand of the result's shape is passed on, unless alpha multiplies it.
    launched = 1 + (x.shape != out.shape)
    assert [(run.launcher, run.backend) for run in runs] == [("add_backward", backend)] * launched
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
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_equal_shapes_is_no_copy(backend):
    x, y = (torch.ones(4, device=DEVICE, requires_grad=True) for _ in range(2))
    out = diglot.add(x, y, backend=backend)
    grad = torch.randn_like(out)
    with diglot.record_runs() as runs:
        of_x, of_y = torch.autograd.grad(out, (x, y), grad)
    assert runs == []
    assert of_x.data_ptr() == of_y.data_ptr() == grad.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_of_gradients(backend, layout):
    """The gradient of `other`, multiplied by alpha and summed where need be, of any strides."""
    grad, _ = LAYOUTS[layout](draw((64, 64), torch.float32), draw((64, 64), torch.float32))
    x = torch.zeros(grad.shape, device=DEVICE)
    for shape in (grad.shape, grad.shape[1:], (*grad.shape[:-1], 1)):
        y = torch.zeros(shape, device=DEVICE, requires_grad=True)
        out = diglot.add(x, y, alpha=-3, backend=backend)
        (own,) = torch.autograd.grad(out, y, grad)
        torch.testing.assert_close(own, -3 * grad.sum_to_size(shape), rtol=1e-5, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_bytes_but_the_result(backend, layout):
    x, y = LAYOUTS[layout](*(torch.randn(64, 64, device="cuda") for _ in range(2)))
    diglot.add(x, y, backend=backend)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = diglot.add(x, y, backend=backend)
    kept = torch.cuda.memory_allocated() - before
    assert result.numel() * 4 <= kept < result.numel() * 4 + 512  # what the allocator rounds to
    assert torch.cuda.max_memory_allocated() - before == kept


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
            lambda: diglot.add(torch.ones(2).char(), torch.ones(2).char(), alpha=300),
            ValueError,
            "alpha must be from -128 to 127 where the result is torch.int8, not 300",
        ),
        (lambda: diglot.add(torch.ones(2), 2**70), ValueError, "other must be an integer of at mo"),
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


def test_type_promotion_while_compiling(monkeypatch):
    monkeypatch.setattr(promotion, "is_compiling", lambda: True)
    tensors = [torch.zeros(shape, dtype=dtype) for dtype in DTYPES for shape in ((), (2,))]
    for input in tensors:
        for other in [True, 3, 2.5, *tensors]:
            assert promotion.result_type(input, other) == torch.result_type(input, other)
