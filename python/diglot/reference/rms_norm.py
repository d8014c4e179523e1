"""RMS norm in plain PyTorch: the launchers of the backend "torch", and the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diglot.reference.norm import Exact, norm_bytes, oracle, wide
from diglot.tools.specs import Expected, OpSpec, Option


def default_eps(dtype: torch.dtype) -> float:
    """The eps that stands for None: of the type that is computed in."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def rms_norm_forward(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    rstd: torch.Tensor,
    out: torch.Tensor,
) -> str:
    """out = input · rstd · weight, and rstd."""
    x = wide(input)
    of_rows = torch.rsqrt(x.square().mean(-1, True) + eps)
    y = x * of_rows
    out.copy_(y if weight is None else y * weight)
    rstd.copy_(of_rows[..., 0])
    return "aten"


def rms_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: torch.Tensor | None,
    input: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    workspace: None,
    grad_weight: torch.Tensor | None,
    grad_input: torch.Tensor,
) -> str:
    """The gradients, and grad_sum added to the input's."""
    g, of_rows = wide(grad_output), rstd[..., None]
    y = wide(input) * of_rows
    h = g if weight is None else g * weight
    of_input = of_rows * (h - y * (h * y).mean(-1, True))
    grad_input.copy_(of_input if grad_sum is None else of_input + grad_sum)
    if grad_weight is not None:
        grad_weight.copy_((g * y).view(-1, y.shape[-1]).sum(0))
    return "aten"


def rms_norm_oracle(
    input: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """The RMS norm of the last dimension, in float64."""
    eps = default_eps(input.dtype) if eps is None else eps
    return oracle(input, weight, None, eps, centered=False)


def _call(
    function: Callable[..., torch.Tensor],
    input: torch.Tensor,
    weight: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    return function(input, weight.shape, weight, **options)


def _exact(input: torch.Tensor, weight: torch.Tensor, eps: float | None = None) -> Exact:
    eps = default_eps(input.dtype) if eps is None else eps
    return Exact(input, weight, None, weight.dim(), eps, centered=False)


def _expected(*tensors: Any, **options: Any) -> Expected:
    return _exact(*tensors, **options).output()


def _expected_gradients(
    grad_output: torch.Tensor, *tensors: Any, **options: Any
) -> dict[str, Expected]:
    return _exact(*tensors, **options).gradients(grad_output)


SPEC = OpSpec(
    name="rms_norm",
    inputs=("input", "weight"),
    options={"eps": Option(None, another=1e-3)},
    floating_only=True,
    forward=_expected,
    backward=_expected_gradients,
    backward_bytes=norm_bytes,
    call=_call,
    shapes=lambda shape: (shape, shape[-1:]),
)
