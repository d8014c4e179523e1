"""The norm of many gradients and their scaling, in plain PyTorch: the launcher of the backend
"torch", and the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from diglot.reference.specs import CallSpec

EPSILON = 1e-6


@torch.no_grad()
def clip_grad_norm(
    grads: Sequence[torch.Tensor],
    table: torch.Tensor,
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    blocks: int,
    total: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """Scales `grads` in place; their norm goes to `total`. The table is not needed."""
    # In float32 at least, as in the kernels: PyTorch's own function rounds every gradient's norm.
    filled = [grad for grad in grads if grad.numel() > 0]
    compute = torch.promote_types(total.dtype, torch.float32)
    norms = [
        torch.linalg.vector_norm(
            g, norm_type, dtype=torch.promote_types(g.dtype, torch.float32)
        ).to(compute)
        for g in filled
    ]
    norm = total.new_zeros((), dtype=compute)
    if norms:
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    total.copy_(norm)
    coefficient = torch.clamp(max_norm / (norm + EPSILON), max=1)
    if error_if_nonfinite:
        coefficient = torch.where(total.isfinite(), coefficient, 1)
    distinct = {(grad.data_ptr(), grad.numel()): grad for grad in filled}
    for grad in distinct.values():
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad.copy_(grad.to(wide) * coefficient.to(wide))
    return "aten"


def clip_grad_norm_oracle(
    grads: Sequence[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The norm and the scaled gradients, in float64."""
    wide = [grad.double() for grad in grads]
    every = torch.cat([grad.reshape(-1) for grad in wide])
    norm = every.new_zeros(())
    if every.numel() > 0:
        norm = torch.linalg.vector_norm(every, norm_type)
    coefficient = torch.clamp(max_norm / (norm + EPSILON), max=1)
    return norm, [grad * coefficient for grad in wide]


def _clip_one(function: Callable[..., Any], grad: torch.Tensor, **options: Any) -> torch.Tensor:
    parameter = grad.detach()
    parameter.grad = grad.detach()
    return function([parameter], 1.0, **options)


SPEC = CallSpec(
    name="clip_grad_norm_",
    inputs=("grad",),
    floating_only=True,
    directions=("forward",),
    call=_clip_one,
)
