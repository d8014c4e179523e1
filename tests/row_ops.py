"""The ops of rows, called alike. Of norms, `sums` says whether weight and bias require grad, or has
both.
"""

from __future__ import annotations

import torch

import diglot


def parameters(x, sums=False):
    """Weight and bias of rows."""
    if isinstance(sums, tuple):
        return sums
    generator = torch.Generator().manual_seed(x.shape[-1])
    made = [torch.randn(x.shape[-1], generator=generator).to(x) for _ in range(2)]
    return [parameter.requires_grad_(sums) for parameter in made]


def softmax(x, backend, sums=False):
    return diglot.softmax(x, -1, backend=backend)


def log_softmax(x, backend, sums=False):
    return diglot.log_softmax(x, -1, backend=backend)


def layer_norm(x, backend, sums=False):
    w, b = parameters(x, sums)
    return diglot.layer_norm(x, x.shape[-1:], w, b, backend=backend)


def rms_norm(x, backend, sums=False):
    return diglot.rms_norm(x, x.shape[-1:], parameters(x, sums)[0], backend=backend)


def add_layer_norm(x, backend, sums=False):
    w, b = parameters(x, sums)
    return diglot.add_layer_norm(x, 2 * x, x.shape[-1:], w, b, backend=backend)


def add_rms_norm(x, backend, sums=False):
    w, _ = parameters(x, sums)
    return diglot.add_rms_norm(x, 2 * x, x.shape[-1:], w, backend=backend)


OPS = (softmax, log_softmax, layer_norm, rms_norm, add_layer_norm, add_rms_norm)
