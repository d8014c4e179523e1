"""add: values, promotion, numbers, broadcasting, gradients, errors."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from apart import run_apart
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_BACKENDS,
    ULP,
    assert_close,
    assert_same,
    draw,
)

import diglot
from diglot.ops import promotion
from diglot.ops.add import DTYPES, _add_across_devices
from diglot.reference.add import add_oracle
from diglot.reference.compensated import two_product, two_sum

INTEGERS = [dtype for dtype in DTYPES if not dtype.is_floating_point and dtype != torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bit_equal_to_torch(backend, dtype):
    for shape in [(), (0,), (1,), (1025,), (64, 65)]:
        x, y = draw(shape, dtype), draw(shape, dtype)
        assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
        assert diglot.last_run().backend == backend


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_wrap(backend, dtype):
    x, y = draw((999,), dtype), draw((999,), dtype)
    for alpha in (3, -7, 2**31 + 5 if dtype == torch.int64 else 11):
        assert_same(diglot.add(x, y, alpha=alpha, backend=backend), torch.add(x, y, alpha=alpha))
    number = 2**62 + 3 if dtype == torch.int64 else 100
    assert_same(diglot.add(x, number, backend=backend), torch.add(x, number))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_alpha_is_fused(backend, dtype):
    """input + alpha · other is rounded once, where torch on a CPU rounds the product too."""
    x, y = draw((4000,), dtype), draw((4000,), dtype)
    for alpha in (2.5, -1.0, 0.1, 0):
        result = diglot.add(x, y, alpha=alpha, backend=backend)
        oracle = add_oracle(x, y, alpha)
        if dtype == torch.float64:  # there the oracle rounds the product too
            product = two_product(y, alpha)
            total = two_sum(x, product.head)
            oracle = total.head + (total.tail + product.tail)
        if dtype == torch.float32 and alpha != 0.1:  # which is another number in float32
            assert_close(result, oracle, 0.5 + 1e-6, x)
        # Where the sum cancels, one ulp of a term is many of the sum: judged by the larger term.
        keep = oracle.abs() > 0.05 * x.double().abs()
        ulp = 1 if dtype == torch.float64 else max(ULP[dtype], 1)
        assert_close(result[keep], oracle[keep], ulp, x[keep])


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, dtype):
    x = torch.tensor([math.nan, math.inf, -math.inf, math.inf, 3e38]).to(DEVICE, dtype)
    y = torch.tensor([1.0, 1.0, 1.0, -math.inf, 3e38]).to(DEVICE, dtype)
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
    assert_same(diglot.add(x, math.nan, backend=backend), torch.add(x, math.nan))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_signs_of_zeros(backend, dtype):
    x = torch.tensor([0.0, 0.0, -0.0, -0.0, 1.0], device=DEVICE, dtype=dtype)
    y = torch.tensor([0.0, -0.0, 0.0, -0.0, -1.0], device=DEVICE, dtype=dtype)
    for other, alpha in [(y, 1), (y, 2), (y, -1), (y, -0.0), (y + 1, -0.0), (-0.0, 1), (0.0, 1)]:
        result = diglot.add(x, other, alpha=alpha, backend=backend)
        expected = torch.add(x, other, alpha=alpha)
        assert_same(result, expected)
        assert torch.equal(result.signbit(), expected.signbit()), (other, alpha)


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
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
    assert_same(diglot.add(y, x[:, :1], backend=backend), torch.add(y, x[:, :1]))
    scalar = draw((), second)
    assert_same(diglot.add(x, scalar, backend=backend), torch.add(x, scalar))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_become_float32_before_bfloat16(backend, dtype):
    """As in PyTorch. The first rounding gives the middle of two bfloat16 numbers, so the second one
    goes to the even number, though the integer is nearer to the other.
    """
    near = [2**24 + 2**16 + 1, 2**25 + 3 * 2**17 - 1, 2**30 + 2**22 + 1]
    y = torch.tensor(near, dtype=dtype, device=DEVICE)
    x = torch.zeros(3, dtype=torch.bfloat16, device=DEVICE)
    even = torch.tensor([2**24, 2**25 + 2**19, 2**30], dtype=torch.bfloat16, device=DEVICE)
    for values, expected in ((y, even), (-y, -even)):
        assert_same(torch.add(x, values), expected)
        assert_same(diglot.add(x, values, backend=backend), expected)
        assert_same(diglot.add(values, x, backend=backend), expected)


COMPILED = """
import torch
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import plan
from diglot.tools.resources import compile_stages

x = torch.empty(64, 64, dtype=torch.bfloat16)
for dtype in (torch.int32, torch.int64):
    y = torch.empty(64, 64, dtype=dtype)
    with plan_runs(Device(90, 132, 233_472, True)):
        made = plan("triton", "add", "add_forward", x, y, 1, x)
    code = compile_stages(made.launches[0].specialization, "sm_90").stages["ptx"].decode()
    size = 8 * dtype.itemsize
    print(code.count(f"cvt.rn.f32.s{size}"), code.count(f"cvt.rn.bf16.s{size}"))
"""


@pytest.mark.ahead_of_time
def test_triton_rounds_integers_twice():
    """Its compiler would join the roundings of an integer to float32 and to bfloat16."""
    done = run_apart(COMPILED)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(counts) == 2 and all(both > 0 and direct == 0 for both, direct in counts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers(backend):
    for dtype in (torch.float32, torch.float64, torch.int16, torch.bool):
        x = draw((50,), dtype)
        for number in (2, -1.5, True, 0):
            assert_same(diglot.add(x, number, backend=backend), torch.add(x, number))
    x = draw((50,), torch.float64)
    assert_same(diglot.add(x, 0.1, alpha=3, backend=backend), torch.add(x, 3 * 0.1))
    # A 0-d tensor on the CPU goes with any device.
    assert_same(diglot.add(x, torch.tensor(2.0), backend=backend), torch.add(x, torch.tensor(2.0)))


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
                assert_same(diglot.add(x, other, alpha=alpha, backend=backend), expected)


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
        assert_same(diglot.add(x, other, backend=backend), torch.add(x, other))


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_numbers_wrap_for_integer_results_alone(backend):
    x = torch.ones(2, device=DEVICE)
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
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_gradient_that_is_wanted_is_computed(backend):
    rows, columns = torch.ones(4, 1, device=DEVICE), torch.ones(5, device=DEVICE)
    for wanted in (0, 1):
        operands = [rows.clone(), columns.clone()]
        operands[wanted].requires_grad_()
        out = diglot.add(*operands, backend=backend)
        with diglot.record_runs() as runs:
            out.sum().backward()
        assert [run.launcher for run in runs] == ["add_backward"]


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
