"""Gradients to clip, and what clip_grad_norm_ must make of them."""

from __future__ import annotations

import torch
from backends import DEVICE

import diglot
from diglot.reference.clip_grad_norm_ import clip_grad_norm_oracle


def with_grads(grads):
    """Tensors that have these gradients."""
    parameters = []
    for grad in grads:
        parameter = torch.zeros_like(grad)
        parameter.grad = grad
        parameters.append(parameter)
    return parameters


def clip(grads, *arguments, **options):
    return diglot.clip_grad_norm_(with_grads(grads), *arguments, **options)


def draw(sizes, dtype=torch.float32):
    return [torch.randn(size, dtype=torch.float64).to(DEVICE, dtype) for size in sizes]


def copies(grads):
    return [grad.clone() for grad in grads]


def check(backend, grads, max_norm, norm_type=2.0):
    """Clips gradients, and judges the norm and them by the oracle."""
    norm, scaled = clip_grad_norm_oracle(grads, max_norm, norm_type)
    total = clip(grads, max_norm, norm_type, backend=backend)
    assert diglot.last_run().backend == backend
    wide = torch.float64 in [grad.dtype for grad in grads]
    assert (total.shape, total.device) == ((), grads[0].device)

    def judge(result, oracle, is_wide):
        eps = torch.finfo(result.dtype).eps
        error = 1e-14 if is_wide else 2e-6  # kernels need 4e-15 and 2e-7
        tiny = torch.finfo(result.dtype).tiny
        torch.testing.assert_close(
            result.double(), oracle, rtol=eps / 2 + error, atol=tiny, equal_nan=True
        )

    judge(total, norm, wide and len({grad.dtype for grad in grads}) == 1)
    for grad, oracle in zip(grads, scaled, strict=True):
        judge(grad, oracle, grad.dtype == torch.float64 and len({g.dtype for g in grads}) == 1)
    return total
