"""The norms of rows written out, op by op: what a user writes without a kernel.

Statistics are (rows,), parameters (n,). Numbers are computed in float32, and rounded at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diglot.bench.harness import Function, Tensors

EPS = 1e-5


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    wide = wide - wide.mean(-1, True)
    out = wide * torch.rsqrt((wide * wide).mean(-1, True) + EPS) * weight + bias
    return out.to(x.dtype)


def layer_norm_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> Tensors:
    g, rows = grad.float(), rstd[:, None]
    y = (x.float() - mean[:, None]) * rows
    h = g * weight.float()
    of_input = rows * (h - y * (h * y).mean(-1, True) - h.mean(-1, True))
    of_weight, of_bias = (g * y).sum(0), g.sum(0)
    return of_input.to(x.dtype), of_weight.to(weight.dtype), of_bias.to(weight.dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    out = wide * torch.rsqrt((wide * wide).mean(-1, True) + EPS) * weight
    return out.to(x.dtype)


def rms_norm_gradient(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> Tensors:
    g, rows = grad.float(), rstd[:, None]
    y = x.float() * rows
    h = g * weight.float()
    of_input = rows * (h - y * (h * y).mean(-1, True))
    return of_input.to(x.dtype), (g * y).sum(0).to(weight.dtype)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensors:
    total = x + residual
    return layer_norm(total, weight, bias), total


def add_layer_norm_gradient(
    grad: Tensor, grad_sum: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> Tensors:
    # The sum in float32: its gradient is not rounded before the addition.
    of_sum, *rest = layer_norm_gradient(grad, x.float(), mean, rstd, weight)
    return (of_sum + grad_sum.float()).to(x.dtype), *rest


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensors:
    total = x + residual
    return rms_norm(total, weight), total


def add_rms_norm_gradient(
    grad: Tensor, grad_sum: Tensor, x: Tensor, rstd: Tensor, weight: Tensor
) -> Tensors:
    of_sum, *rest = rms_norm_gradient(grad, x.float(), rstd, weight)
    return (of_sum + grad_sum.float()).to(x.dtype), *rest


FORMULAS: dict[str, dict[str, Function]] = {
    "layer_norm": {"forward": layer_norm, "backward": layer_norm_gradient},
    "rms_norm": {"forward": rms_norm, "backward": rms_norm_gradient},
    "add_layer_norm": {"forward": add_layer_norm, "backward": add_layer_norm_gradient},
    "add_rms_norm": {"forward": add_rms_norm, "backward": add_rms_norm_gradient},
}
