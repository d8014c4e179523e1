"""The sums that the gradients of broadcast operands are, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from backends import BACKENDS, CUDA, DEVICE, FLOATING, SLOW_TRITON, assert_close, draw

import diglot


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (7, 1), (1, 300), (300,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sum_of_gradients(backend, shape, dtype):
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
    rows = 280 if DEVICE == "cpu" else 600
    grad = torch.rand(rows, 3, 130, device=DEVICE)
    split = [(3, 130), (1, 3, 1), ()]
    for shape in [(3, 130), (rows, 1, 1), (1, 3, 1), (rows, 1, 130), ()]:
        y = torch.zeros(shape, device=DEVICE, requires_grad=True)
        x = torch.zeros(grad.shape, device=DEVICE)
        out = diglot.add(x, y, backend=backend)
        with diglot.record_runs() as runs:
            first, second = (
                torch.autograd.grad(out, y, grad, retain_graph=True)[0] for _ in range(2)
            )
        torch.testing.assert_close(
            first, grad.double().sum_to_size(shape).float(), rtol=3e-6, atol=0
        )
        assert torch.equal(first, second)  # the order of the sum is fixed
        if backend != "torch":
            variant = "sum, split" if shape in split else "sum"
            assert [run.variant for run in runs] == [variant] * 2


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
