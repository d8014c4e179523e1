"""gelu: values against the float64 oracle, special values, gradients, errors."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
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
    every_value,
    needs_extension,
    slow_interpreted,
)

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import plan
from diglot.reference.gelu import (
    gelu_derivative_oracle,
    gelu_oracle,
    gelu_second_derivative,
)
from diglot.tools import cuda_library
from diglot.tools.machine_code import demangle, dump, read_listing

FORMS = ["none", "tanh"]
POINTS = 20_000 if DEVICE == "cuda" else 1_500  # interpreted, 256 elements take 20 ms


def gradient(x: torch.Tensor, grad: torch.Tensor, approximate: str, backend: str) -> torch.Tensor:
    x = x.detach().requires_grad_()
    with diglot.record_runs() as runs:
        diglot.gelu(x, approximate, backend=backend).backward(grad)
    assert [run.backend for run in runs] == [backend, backend]
    assert [run.launcher for run in runs] == ["gelu_forward", "gelu_backward"]
    return x.grad


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=slow_interpreted), torch.bfloat16]
)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_every_16_bit_value(backend, dtype, approximate):
    x = every_value(dtype).to(DEVICE)
    finite = x.isfinite()
    result = diglot.gelu(x, approximate, backend=backend)
    assert diglot.last_run().backend == backend
    assert_close(result[finite], gelu_oracle(x[finite], approximate), ULP[dtype], x[finite])
    result = gradient(x, torch.ones_like(x), approximate, backend)
    oracle = gelu_derivative_oracle(x[finite], approximate)
    assert_close(result[finite], oracle, ULP[dtype], x[finite])


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_wide_values(backend, dtype, approximate):
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(2 * POINTS, generator=generator, dtype=torch.float64) * 2
    tail = torch.linspace(-14, -2, 2 * POINTS, dtype=torch.float64)
    root = torch.linspace(-0.76, -0.74, POINTS, dtype=torch.float64)
    large = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4, 1e30, -1e30], dtype=torch.float64)
    x = torch.cat([normal, tail, root, large]).to(DEVICE, dtype)
    result = diglot.gelu(x, approximate, backend=backend)
    assert_close(result, gelu_oracle(x, approximate), ULP[dtype], x)
    result = gradient(x, torch.ones_like(x), approximate, backend)
    assert_close(result, gelu_derivative_oracle(x, approximate), ULP[dtype], x)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_gradients_are_multiplied_in(backend, approximate):
    """grad · gelu'(x) within 2 ulp, also where gelu'(x) alone is too small for float32."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5 * POINTS, generator=generator) * 3
    x[: POINTS // 10] = torch.linspace(-13.5, -10, POINTS // 10)
    grad = torch.randn(5 * POINTS, generator=generator) * 4
    oracle = grad.double() * gelu_derivative_oracle(x, approximate)
    result = gradient(x.to(DEVICE), grad.to(DEVICE), approximate, backend)
    keep = (oracle.abs() > 2e-38) | (x > -10.2)
    assert_close(result.cpu()[keep], oracle[keep], ULP[torch.float32], x[keep])


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("backend", KERNELS)
def test_textbook_formula_would_fail(backend, approximate):
    """The tail is what the tolerance is about: x/2·(1 + erf or tanh) in float32 is far outside."""
    x = torch.linspace(-5.4, -4.5, 1000)
    inner = x / math.sqrt(2) if approximate == "none" else 0.79788456 * (x + 0.044715 * x**3)
    outer = torch.erf(inner) if approximate == "none" else torch.tanh(inner)
    with pytest.raises(AssertionError, match="ulp at flat index"):
        assert_close(0.5 * x * (1 + outer), gelu_oracle(x, approximate), ULP[torch.float32], x)
    result = diglot.gelu(x.to(DEVICE), approximate, backend=backend)
    assert_close(result, gelu_oracle(x, approximate), ULP[torch.float32], x)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("backend", KERNELS)
def test_special_values(backend, dtype, approximate):
    x = torch.tensor([math.nan, math.inf, 20.0, 1e4, -1e4, 10.07], device=DEVICE).to(dtype)
    result = diglot.gelu(x, approximate, backend=backend)
    assert result[0].isnan()
    assert torch.equal(result[1:4], x[1:4])
    assert result[4] == 0
    assert result[5].isfinite()
    # (e^2a - 1) / (e^2a + 1), the textbook tanh, is NaN from here on.
    assert torch.equal(result[2], x[2])
    minus_infinity = torch.tensor([-math.inf], device=DEVICE, dtype=dtype)
    assert diglot.gelu(minus_infinity, approximate, backend=backend).isnan().all()
    assert F.gelu(minus_infinity, approximate=approximate).isnan().all()
    derivative = gradient(x, torch.ones_like(x), approximate, backend)
    assert derivative[0].isnan()
    assert torch.equal(derivative[2:5], torch.tensor([1, 1, 0], device=DEVICE, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_torch(backend, dtype):
    x = torch.randn(3, 1000, device=DEVICE).to(dtype)
    for approximate in FORMS:
        wide = x if dtype == torch.float64 else x.float()
        expected = F.gelu(wide, approximate=approximate).to(dtype)
        torch.testing.assert_close(diglot.gelu(x, approximate, backend=backend), expected)


@pytest.mark.parametrize("backend", [pytest.param("cuda", marks=slow_interpreted)])
def test_backends_agree(backend):
    """Both kernels do the same arithmetic: in float32 only the reciprocals differ."""
    x = torch.randn(100_000 if DEVICE == "cuda" else 20_000, device=DEVICE) * 3
    for approximate in FORMS:
        ours = diglot.gelu(x, approximate, backend=backend)
        twin = diglot.gelu(x, approximate, backend="triton")
        assert_close(ours, twin.double(), 1.0, x)


SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (1023,), (1024,), (1025,), (33, 65), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes(backend, shape):
    x = torch.randn(shape, device=DEVICE)
    result = diglot.gelu(x, backend=backend)
    assert result.shape == x.shape
    torch.testing.assert_close(result, F.gelu(x))


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_gradcheck(backend, approximate):
    x = torch.randn(2, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    function = lambda t: diglot.gelu(t, approximate, backend=backend)  # noqa: E731
    torch.autograd.gradcheck(function, (x,))
    torch.autograd.gradgradcheck(function, (x,))
    torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("approximate", FORMS)
def test_second_derivative(approximate):
    x = torch.linspace(-4, 4, 101, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(gelu_oracle(x, approximate).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gelu_second_derivative(x, approximate), second)


@pytest.mark.parametrize("approximate", FORMS)
def test_second_derivative_in_the_tail(approximate):
    """In float32 against float64, to the accuracy of the exponent: nothing cancels."""
    x = torch.linspace(-9, 9, 2001)
    own = gelu_second_derivative(x, approximate).double()
    exact = gelu_second_derivative(x.double(), approximate)
    torch.testing.assert_close(own, exact, rtol=2e-4, atol=1e-7)
    beyond = x.abs() > 3  # no root of the second derivative is there
    torch.testing.assert_close(own[beyond], exact[beyond], rtol=2e-4, atol=1e-37)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_later_derivatives_are_zero_far_out(backend, dtype, approximate):
    """From where their exponential is zero up to the greatest number, on both sides."""
    info = torch.finfo(dtype)
    powers = torch.linspace(6, math.log2(info.max), 100, dtype=torch.float64)[:-1].exp2()
    large = torch.cat([powers, torch.tensor([info.max], dtype=torch.float64)])
    x = torch.cat([large, -large]).to(DEVICE, dtype).requires_grad_()
    (first,) = torch.autograd.grad(
        diglot.gelu(x, approximate, backend=backend).sum(), x, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    assert (second == 0).all()
    (third,) = torch.autograd.grad(second.sum(), x)
    assert (third == 0).all()
    if backend == "torch":  # PyTorch's own first derivative of the tanh form is NaN far out
        return
    assert torch.equal(first, (x > 0).to(dtype))
    _, tangent = torch.func.jvp(
        torch.func.grad(lambda t: diglot.gelu(t, approximate, backend=backend).sum()),
        (x.detach(),),
        (torch.ones_like(x),),
    )
    assert (tangent == 0).all()


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_second_derivative_of_special_values(dtype, approximate):
    x = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    second = gelu_second_derivative(x.requires_grad_(), approximate)
    (third,) = torch.autograd.grad(second.sum(), x)
    for derivative in (second, third):
        assert derivative[0].isnan()
        assert (derivative[1:] == 0).all()


def test_oracle_in_the_tail():
    """Against values computed with 40 digits (mpmath: x · ncdf(x))."""
    x = torch.tensor([-1.0, -5.0, -10.0, -13.0], dtype=torch.float64)
    exact = torch.tensor(
        [
            -0.15865525393145705142,
            -1.4332578593959695584e-06,
            -7.6198530241605260660e-23,
            -7.9523137194148435870e-38,
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(gelu_oracle(x), exact, rtol=1e-12, atol=0)


def test_module():
    module = diglot.nn.GELU("tanh", backend="torch")
    assert repr(module) == "diglot.nn.GELU(approximate='tanh', backend='torch')"
    assert isinstance(module, torch.nn.GELU)
    x = torch.randn(10, device=DEVICE)
    torch.testing.assert_close(module(x), F.gelu(x, approximate="tanh"))
    assert not list(module.parameters())
    with pytest.raises(ValueError, match="approximate must be 'none' or 'tanh'"):
        diglot.nn.GELU("relu")
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.nn.GELU(backend="opencl")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0],), TypeError, "input must be a torch.Tensor, not list"),
        ((torch.arange(3),), TypeError, "input must have one of the dtypes float32.*not int64"),
        ((torch.ones(2).to(torch.complex64),), TypeError, "not complex64"),
        ((torch.ones(2).to_sparse(),), TypeError, "input must be a dense tensor"),
        ((torch.nested.nested_tensor([torch.ones(2)]),), TypeError, "not a nested one"),
        ((torch.ones(2), "erf"), ValueError, "approximate must be 'none' or 'tanh', not 'erf'"),
        ((torch.ones(2), None), ValueError, "approximate must be 'none' or 'tanh', not None"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        diglot.gelu(*arguments)


def test_unknown_backend():
    with pytest.raises(
        ValueError, match="backend must be one of 'cuda', 'triton', 'torch', 'auto'"
    ):
        diglot.gelu(torch.ones(2), backend="opencl")


LARGE = re.compile(r".*elementwise_flat<.*GeluForward<float, .*FlatShape<(\d), 4>")


@pytest.mark.slow
@pytest.mark.compiled
@needs_extension
def test_cuda_loads_before_it_computes():
    """In float32, a thread of the forward pass issues every load first. ptxas alone delays the
    second one by 60 instructions, until the arithmetic needs it.
    """
    architecture = cuda_library.code_that_runs("sm_90")
    if architecture != "sm_90a":
        pytest.skip("the extension has no code for sm_90a")
    loads = {}
    for entry in cuda_library.library_usage()[architecture]:
        if found := LARGE.match(demangle(entry.symbol)):
            loads[entry.symbol] = int(found[1])
    assert sorted(loads.values()) == [1, 1, 2, 2]  # in both forms
    library = str(cuda_library.library_path())
    text = dump("-sass", "-arch", architecture, "-fun", ",".join(loads), library)
    for symbol, listing in read_listing(text).items():
        before = listing[: listing.index("FFMA")]
        assert before.count("LDG.E.128") == loads[symbol], demangle(symbol)


@pytest.mark.parametrize("architecture", [80, 90])
def test_triton_limits_registers_where_none_spills(architecture):
    """Those of the tanh form's derivative. tests/test_recording.py looks for spills."""
    small, large = 1 << 19, 1 << 22
    expected = {(torch.float32, small): 40, (torch.float32, large): 40}
    expected |= {(torch.bfloat16, small): 40, (torch.bfloat16, large): 56}
    expected |= {(torch.float64, large): None, (torch.float32, 1 << 12): None}
    with plan_runs(Device(architecture, 132, 233_472, architecture >= 90)):
        for (dtype, n), registers in expected.items():
            x = torch.empty(n, dtype=dtype, device=DEVICE)
            limits = {"tanh": registers if architecture >= 90 else None, "none": None}
            for form, limit in limits.items():
                made = plan("triton", "gelu", "gelu_backward", x, x, form, x)
                assert [launch.max_registers for launch in made.launches] == [limit]
