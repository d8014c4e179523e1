"""gaussian_pdf: values against the float64 oracle, special values, gradients, errors."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

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
    every_value,
    slow_interpreted,
    spacing,
    steps,
    ulp_error,
)
from layouts import LAYOUTS

import diglot
from diglot.reference.gaussian_pdf import (
    SPEC,
    gaussian_pdf_derivative_oracle,
    gaussian_pdf_oracle,
    gaussian_pdf_second_derivative,
)

POINTS = 20_000 if DEVICE == "cuda" else 1_000  # interpreted, 256 elements take 50 ms

# Mean, std and terms: neighbouring terms that hardly differ, that are bells of their own, and that
# are all that there is; distributions whose constants would overflow or vanish.
DISTRIBUTIONS = [
    (0.0, 1.0, 22),
    (0.5, 0.3, 5),
    (-2.0, 1.0, 1),
    (1000.001, 0.05, 22),
    (3.7, 1e-3, 22),
    (0.0, 1e-5, 22),
    (1.0, 20.0, 200),
    (0.0, 1e-25, 3),
    (1e25, 1e25, 4),
]


def around(mean: float, std: float, terms: int, farthest: float, count: int) -> torch.Tensor:
    """Values at most `farthest` standard deviations from where one of the terms is greatest."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(count, generator=generator, dtype=torch.float64) * 2
    z = torch.cat([z, torch.linspace(-farthest, farthest, count, dtype=torch.float64)])
    numbers = torch.randint(-(terms // 2), terms - terms // 2, z.shape, generator=generator)
    return mean + std * z - numbers / 100


def gradient(x: torch.Tensor, grad: torch.Tensor, options: tuple, backend: str) -> torch.Tensor:
    mean, std, terms = options
    x = x.detach().requires_grad_()
    with diglot.record_runs() as runs:
        diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend).backward(grad)
    assert [run.backend for run in runs] == [backend, backend]
    assert [run.launcher for run in runs] == ["gaussian_pdf_forward", "gaussian_pdf_backward"]
    return x.grad


def check(x: torch.Tensor, grad: torch.Tensor, options: tuple, backend: str) -> None:
    """Value and gradient against the oracle; what the record allows beyond the usual ulps."""
    mean, std, terms = options
    result = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
    assert result.dtype == x.dtype
    keywords = {"mean": mean, "std": std, "terms": terms}
    expected = {
        "value": (result, SPEC.forward(x, **keywords)),
        "gradient": (
            gradient(x, grad, options, backend),
            SPEC.backward(grad, x, **keywords)["input"],
        ),
    }
    for name, (of, right) in expected.items():
        oracle = right.function(*right.tensors)
        error = ulp_error(of, oracle) - (right.allowance / spacing(oracle, x.dtype)).cpu()
        worst = error.argmax()
        found = (x[worst].item(), of[worst].item(), oracle[worst].item())
        ulp = right.float64_ulp if x.dtype == torch.float64 else ULP[x.dtype]
        assert error[worst] <= ulp, (name, error[worst].item(), *found)


@pytest.mark.parametrize("options", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_float32(backend, options):
    x = around(*options, 13.2, POINTS).to(DEVICE, torch.float32)
    check(x, torch.randn_like(x), options, backend)


@pytest.mark.parametrize("mean", [1e6 + 0.031, 1e10 + 300], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_mean_between_floats_that_are_far_apart(backend, mean):
    """What a float leaves of it is worth many terms, and standard deviations."""
    middle = torch.tensor(mean, dtype=torch.float32)
    x = middle + torch.arange(-8, 9) * (torch.nextafter(middle, middle * 2) - middle)
    x = x.to(DEVICE)
    for std in (1e-3, 0.02):
        oracle = gaussian_pdf_oracle(x, mean, std)
        assert oracle.any() == (mean < 1e7)
        result = diglot.gaussian_pdf(x, mean, std, backend=backend)
        torch.testing.assert_close(result.double(), oracle, rtol=2e-4, atol=1e-30)
        slope = gradient(x, torch.ones_like(x), (mean, std, 22), backend)
        expected = gaussian_pdf_derivative_oracle(x, mean, std)
        most = 2e-4 * expected.abs().max().item()
        torch.testing.assert_close(slope.double(), expected, rtol=0, atol=most)


@pytest.mark.parametrize("backend", KERNELS)
def test_the_far_tail_keeps_its_accuracy(backend):
    """Within 4 ulp, where the textbook formula has lost six bits."""
    mean = 1 / 3
    x = torch.linspace(9, 13, 500, device=DEVICE) + mean
    oracle = gaussian_pdf_oracle(x, mean)
    assert_close(diglot.gaussian_pdf(x, mean, backend=backend), oracle, 4.0, x)
    with pytest.raises(AssertionError, match="ulp at flat index"):
        assert_close(diglot.gaussian_pdf(x, mean, backend="torch"), oracle, 50.0, x)


@pytest.mark.parametrize("backend", KERNELS)
def test_between_two_terms(backend):
    """Where two are equal, and far from their means, neither's error is the other's."""
    mean, std, terms = options = (0.123456789, 4e-4, 22)
    middle = mean + (torch.arange(-9, 10) + 0.5)[:, None] / 100
    x = (middle + torch.linspace(-std / 20, std / 20, 30)).to(DEVICE, torch.float32)
    oracle = gaussian_pdf_oracle(x, *options)
    assert oracle.min() > 1e-38
    result = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
    assert_close(result, oracle, 4.0, x)


@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_many_terms(backend):
    """The error of a sum does not grow with their number."""
    x = torch.linspace(-200, 200, 300, device=DEVICE)
    for terms in (999, 3000):
        check(x, torch.ones_like(x), (1.0, 20.0, terms), backend)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=slow_interpreted), torch.bfloat16]
)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_every_16_bit_value(backend, dtype):
    x = every_value(dtype).to(DEVICE)
    x = x[x.isfinite()]
    for options in ((0.0, 1.0, 22), (1.0, 0.01, 3)):
        check(x, torch.ones_like(x), options, backend)


def exact(x: float, mean: float, std: float, terms: int) -> Decimal:
    """The value, with 40 digits."""
    with localcontext() as context:
        context.prec = 40
        pi = Decimal("3.14159265358979323846264338327950288419716939937510")
        total = Decimal(0)
        for i in range(terms):
            z = (Decimal(x) - Decimal(mean) + Decimal(i - terms // 2) / 100) / Decimal(std)
            total += (-z * z / 2).exp()
        return total / (Decimal(std) * (2 * pi).sqrt() * terms)


@pytest.mark.parametrize("options", DISTRIBUTIONS[:5], ids=str)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_float64(backend, options):
    """Within 4 ulp of exact values, to which the oracle itself is hardly nearer."""
    mean, std, terms = options
    x = around(*options, 37.0, 40).to(DEVICE)
    result = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
    for value, of in zip(result.tolist(), x.tolist(), strict=True):
        right = exact(of, *options)
        if right > Decimal("2.3e-308"):
            assert abs(Decimal(value) - right) < 4 * Decimal(2.0**-52) * right, of
    check(x, torch.ones_like(x), options, backend)


def test_oracle():
    """Against values computed with 40 digits."""
    for options in DISTRIBUTIONS[:3]:
        x = torch.tensor([-11.0, -0.5, 0.0, 0.003, 1.7, 12.0], dtype=torch.float64)
        right = torch.tensor([float(exact(v, *options)) for v in x.tolist()], dtype=torch.float64)
        own = gaussian_pdf_oracle(x, *options)
        torch.testing.assert_close(own, right, rtol=2e-15, atol=1e-300)


@pytest.mark.parametrize("backend", BACKENDS)
def test_definition(backend):
    """Against PyTorch's own distribution; the points are where the contract says."""
    x = torch.linspace(-3, 3, 50, device=DEVICE, dtype=torch.float64)
    for mean, std, terms in ((0.0, 1.0, 22), (0.5, 0.02, 3), (1, 2, 4), (0.25, 0.5, 1)):
        normal = torch.distributions.Normal(x.new_tensor(mean), x.new_tensor(std))
        offsets = [0.01 * (i - terms // 2) for i in range(terms)]
        expected = sum(normal.log_prob(x + offset).exp() for offset in offsets) / terms
        own = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-100)


@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_are_multiplied_in(backend):
    """Also where the derivative alone is too small for float32."""
    x = torch.linspace(13.3, 15.3, 100, device=DEVICE)
    grad = torch.full_like(x, 2.0**60)
    oracle = grad.double() * gaussian_pdf_derivative_oracle(x)
    assert_close(gradient(x, grad, (0.0, 1.0, 22), backend), oracle, 6.0, x)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, dtype):
    most = torch.finfo(dtype).max
    x = torch.tensor([math.nan, math.inf, -math.inf, most, -most], device=DEVICE, dtype=dtype)
    for options in ((0.0, 1.0, 22), (0.3, 1e-3, 7), (0.0, 1e-30, 2)):
        mean, std, terms = options
        own = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
        x.requires_grad_()
        value = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
        grad = torch.full_like(x, 60000.0)
        (first,) = torch.autograd.grad(value, x, grad, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        x.requires_grad_(False)
        for result in (own, first, second, third):
            assert result[0].isnan()
            assert (result[1:] == 0).all(), (options, result)
    if dtype == torch.float32 and backend != "torch":
        grad = torch.full_like(x, 1e36)
        assert (gradient(x, grad, (0.0, 1.0, 22), backend)[1:] == 0).all()
    x = torch.zeros(3, device=DEVICE, dtype=dtype)
    assert diglot.gaussian_pdf(x, math.nan, backend=backend).isnan().all()
    for mean in (math.inf, -math.inf):
        assert (diglot.gaussian_pdf(x, mean, backend=backend) == 0).all()
    # The greatest density there can be.
    peak = 1 / math.sqrt(2 * math.pi) / 1e-30
    result = diglot.gaussian_pdf(x, 0, 1e-30, terms=1, backend=backend)
    torch.testing.assert_close(result, torch.full_like(x, 1).mul(peak))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend, layout):
    x = LAYOUTS[layout](torch.randn(32, 64, device=DEVICE))
    result = diglot.gaussian_pdf(x, 0.5, 2.0, terms=3, backend=backend)
    assert steps(result) == steps(torch.empty_like(x))
    torch.testing.assert_close(result, gaussian_pdf_oracle(x, 0.5, 2.0, 3).to(x.dtype))
    grad = torch.randn_like(x)
    own = gradient(x, grad, (0.5, 2.0, 3), backend)
    oracle = grad.double() * gaussian_pdf_derivative_oracle(x, 0.5, 2.0, 3)
    torch.testing.assert_close(own, oracle.to(x.dtype), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_gradcheck(backend):
    x = torch.randn(3, 4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    for mean, std, terms in ((0.0, 1.0, 22), (0.3, 0.5, 3)):
        function = lambda t: diglot.gaussian_pdf(  # noqa: E731
            t,
            mean,  # noqa: B023
            std,  # noqa: B023
            terms=terms,  # noqa: B023
            backend=backend,
        )
        torch.autograd.gradcheck(function, (x,))
        torch.autograd.gradgradcheck(function, (x,))
        torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)


def test_second_derivative():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64, requires_grad=True)
    options = (0.5, 1.5, 7)
    (first,) = torch.autograd.grad(gaussian_pdf_oracle(x, *options).sum(), x, create_graph=True)
    torch.testing.assert_close(first, gaussian_pdf_derivative_oracle(x, *options))
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gaussian_pdf_second_derivative(x, *options), second)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    """vmap, grad, jvp, and a second derivative through them."""
    x = torch.randn(3, 4, device=DEVICE, dtype=torch.float64)

    def own(t):
        return diglot.gaussian_pdf(t, 0.5, 2.0, terms=3, backend=backend)

    def right(t):
        return gaussian_pdf_oracle(t, 0.5, 2.0, 3)

    torch.testing.assert_close(torch.func.vmap(own, in_dims=1, out_dims=1)(x), right(x))
    for make in (
        lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t).sum()))(x),
        lambda f: torch.func.jvp(f, (x,), (x.cos(),))[1],
        lambda f: torch.func.hessian(lambda t: f(t).sum())(x[0]),
    ):
        torch.testing.assert_close(make(own), make(right))


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_compiled(backend):
    """In one graph, values and gradients; a number that changes is not frozen into it."""
    torch.compiler.reset()
    x = torch.randn(50, device=DEVICE, requires_grad=True)

    def function(x, mean, terms):
        return diglot.gaussian_pdf(x * 2, mean, 2.0, terms=terms, backend=backend) + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for mean, terms in ((0.5, 3), (0.25, 3), (0.25, 4)):
        results = [
            (y, torch.autograd.grad(y.sum(), x)[0])
            for y in (f(x, mean, terms) for f in (compiled, function))
        ]
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", [CUDA])
def test_backends_agree(backend):
    """Both kernels do the same arithmetic: only the exponentials differ where interpreted."""
    x = torch.linspace(-13, 13, 2 * POINTS, device=DEVICE)
    own, twin = (diglot.gaussian_pdf(x, backend=name) for name in (backend, "triton"))
    assert_close(own, twin.double(), 0.0 if DEVICE == "cuda" else 4.0, x)


def test_parameters_agree():
    """What both languages' hosts make of mean, std and terms: by a result without exponentials."""
    from diglot.triton_ops.lib.gaussian_pdf import gaussian_pdf_parameters

    of = gaussian_pdf_parameters(1000.001, 0.3, 5, False)
    assert (of.terms, of.first) == (5, -2.0)
    assert of.mean + of.mean_tail == pytest.approx(1000.001, rel=1e-14)
    assert of.step + of.step_tail == pytest.approx(math.sqrt(0.5 / math.log(2)) / 30, rel=1e-14)
    assert 2 ** (of.factor + of.factor_tail) == pytest.approx(0.2 / 0.3 / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("backend", BACKENDS)
def test_kinds_of_numbers(backend):
    x = torch.randn(5, device=DEVICE)
    expected = diglot.gaussian_pdf(x, 1.0, 2.0, terms=3, backend=backend)
    for mean, std, terms in (
        (1, 2, 3),
        (True, 2, np.int64(3)),
        (np.float32(1), np.int8(2), 3),
        (torch.tensor(1.0), torch.tensor(2), 3),
    ):
        own = diglot.gaussian_pdf(x, mean, std, terms=terms, backend=backend)
        assert torch.equal(own, expected)


X = torch.ones(2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0],), TypeError, "input must be a torch.Tensor, not list"),
        ((torch.arange(3),), TypeError, "input must have one of the dtypes float32.*not int64"),
        ((X, 0.0, 0.0), ValueError, "std must be positive and finite, not 0.0"),
        ((X, 0.0, -1), ValueError, "std must be positive and finite, not -1.0"),
        ((X, 0.0, math.nan), ValueError, "std must be positive and finite, not nan"),
        ((X, 0.0, math.inf), ValueError, "std must be positive and finite, not inf"),
        ((X, 0.0, 1e-31), ValueError, "std must be from 1e-30 to 1e.30 where the input is"),
        ((X.half(), 0.0, 1e31), ValueError, "std must be from 1e-30 to 1e.30 where the input is"),
        ((X.double(), 0.0, 1e151), ValueError, "std must be from 1e-150 to 1e.150"),
        ((X, 1e39), ValueError, "mean must be in the range of float32"),
        ((X, "0"), TypeError, "mean must be a real number, not str"),
        ((X, 0.0, None), TypeError, "std must be a real number, not NoneType"),
        ((X, 0.0, torch.ones(2)), TypeError, "std must be a real number, not Tensor"),
        ((X, 1j), TypeError, "mean must be a real number, not complex"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=f"gaussian_pdf: {message}"):
        diglot.gaussian_pdf(*arguments)


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        (0, ValueError, "terms must be from 1 to 4194304, not 0"),
        (-5, ValueError, "not -5"),
        (2**22 + 1, ValueError, "not 4194305"),
        (2.0, TypeError, "terms must be an integer, not float"),
        (True, TypeError, "terms must be an integer, not bool"),
        (None, TypeError, "terms must be an integer, not NoneType"),
        (torch.tensor(3.0), TypeError, "terms must be an integer"),
        (torch.tensor([3]), TypeError, "terms must be an integer"),
    ],
    ids=str,
)
def test_bad_terms(terms, error, message):
    with pytest.raises(error, match=message):
        diglot.gaussian_pdf(X, terms=terms)


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend must be one of 'cuda', 'triton', 'torch'"):
        diglot.gaussian_pdf(X, backend="opencl")
    with pytest.raises(ValueError, match="grad_output must have the shape and dtype of input"):
        torch.ops.diglot.gaussian_pdf_backward(torch.ones(3), X, 0.0, 1.0, 22, "torch")
