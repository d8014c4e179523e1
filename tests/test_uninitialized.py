"""Nothing that nobody wrote reaches a result: memory that is allocated begins as NaN."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS, NEEDS_CUDA
from clipping import check, draw
from norms import Norm

import diglot
from diglot.backends.tunables import use_tunables


@pytest.fixture(autouse=True)
def poisoned():
    """PyTorch fills what it allocates: floating types with NaN, integers with their maximum."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(9).isnan().all() and (torch.empty(9, dtype=torch.uint8) == 255).all()
    yield
    torch.use_deterministic_algorithms(False)


# Rows, and their length. A block of CUDA C++ has room for more rows at a time than there are, so
# that groups have none. In Triton there is room for more groups than programs that walk over rows.
ROWS = {"cuda": [(3, 40), (3, 8196), (2, 66_001)], "triton": [(3, 40), (7, 40), (4, 8196)]}
GROUPED = {
    "norm_backward.*.one_group_rows": 0,
    "norm_backward.triton.alone.*.*.groups": 2,
}


@pytest.mark.parametrize(
    ("backend", "rows", "n"),
    [
        *(pytest.param("cuda", *rows, marks=NEEDS_CUDA) for rows in ROWS["cuda"]),
        *(("triton", *rows) for rows in ROWS["triton"]),
    ],
)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms(backend, op, rows, n):
    """With one group of few rows, and with several."""
    Norm.draw(op, (rows, n)).check(backend)
    with use_tunables(GROUPED):
        Norm.draw(op, (rows, n)).check(backend)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("backend", KERNELS)
def test_columns(backend, op):
    """Tall ones take two launches."""
    x = torch.randn(9000, 5, device=DEVICE, requires_grad=True)
    grad = torch.randn(9000, 5, device=DEVICE)
    results = [
        getattr(diglot, op)(x, 0, backend=backend),
        getattr(torch, op)(x.double(), 0),
    ]
    gradients = [torch.autograd.grad(y, x, grad.to(y.dtype))[0] for y in results]
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["global_softmax", "standardize"])
@pytest.mark.parametrize("backend", KERNELS)
def test_whole_arrays(backend, op):
    """A tile, and several chunks of them."""
    for n in (5, 20_000):
        x = torch.randn(n, device=DEVICE, requires_grad=True)
        y = getattr(diglot, op)(x, backend=backend)
        (gradient,) = torch.autograd.grad(y, x, torch.randn(n, device=DEVICE))
        assert y.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("backend", KERNELS)
def test_clipping(backend):
    check(backend, draw([5, 9001, 0, 300]), 0.5)


@pytest.mark.parametrize("shape", [(), (264,), (70, 1), (1, 264)], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_of_gradients(backend, shape):
    x = torch.zeros(70, 264, device=DEVICE)
    y = torch.zeros(shape, device=DEVICE, requires_grad=True)
    grad = torch.rand(70, 264, device=DEVICE)
    (gradient,) = torch.autograd.grad(diglot.add(x, y, backend=backend), y, grad)
    expected = grad.double().sum_to_size(shape).float()
    torch.testing.assert_close(gradient, expected, rtol=3e-6, atol=0)
