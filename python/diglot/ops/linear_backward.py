"""Ops whose backward pass is an op itself, linear in the output's gradient, and their derivatives.

The first derivative runs on the backend that the forward pass ran on. The later ones are made of
PyTorch's operators, by functions that stand beside the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diglot.ops.operator import Operator

Tensors = tuple[torch.Tensor, ...]


class LinearBackward:
    """`diglot::<name>` and `diglot::<name>_backward`, each registered.

    The backward pass is B(g, s) for a gradient g of the output and tensors s that the forward pass
    saved; it is linear in g.

    Args:
        schema: of the op; its tensors come first, its backend last.
        backward_schema: of the backward pass: the gradient, the saved tensors, others.
        forward, fake, vmap: of the op, as `Operator` takes them.
        backward, backward_fake, backward_vmap: of its backward pass.
        save: from the op's inputs and output, the tensors that are saved, and what the backward
            pass takes after them but for the backend.
        tangent: the derivative of the first output along one of the first input: the transpose of
            B. From the direction, the saved tensors, the rest and the backend.
        slope: from the gradient, the saved tensors, a direction, the rest and `transposed`, the
            derivative of B by the first saved tensor along that direction, or the transposed of
            that, applied to it.
        tensors: how many arguments of the op are tensors.
        saved: how many tensors are saved.
    """

    def __init__(
        self,
        schema: str,
        backward_schema: str,
        *,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        backward: Callable[..., torch.Tensor],
        backward_fake: Callable[..., torch.Tensor],
        save: Callable[[tuple[Any, ...], Any], tuple[Tensors, tuple[Any, ...]]],
        tangent: Callable[..., torch.Tensor],
        slope: Callable[..., torch.Tensor],
        vmap: Callable[..., Any] | None = None,
        backward_vmap: Callable[..., Any] | None = None,
        tensors: int = 1,
        saved: int = 1,
    ) -> None:
        def save_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            kept, ctx.rest = save(inputs, output)
            ctx.backend = inputs[-1]
            ctx.save_for_backward(*kept)
            ctx.save_for_forward(*kept)

        def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            ctx.rest, ctx.backend = inputs[saved + 1 : -1], inputs[-1]
            ctx.save_for_backward(*inputs[: saved + 1])
            ctx.save_for_forward(*inputs[: saved + 1])

        def gradient(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            kept = ctx.saved_tensors
            result = self.call_backward(grad_output, *kept, *ctx.rest, ctx.backend)
            return (result, *(None,) * (tensors - 1))

        def tangent_of(ctx: Any, *directions: torch.Tensor) -> torch.Tensor:
            return tangent(directions[0], *ctx.saved_tensors, *ctx.rest, ctx.backend)

        def gradients_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            grad_output, *kept = ctx.saved_tensors
            return (
                tangent(grad, *kept, *ctx.rest, ctx.backend).to(grad_output.dtype),
                slope(grad_output, *kept, grad, *ctx.rest, transposed=True).to(kept[0].dtype),
                *(None,) * (saved - 1),
            )

        def tangent_of_backward(ctx: Any, *directions: torch.Tensor | None) -> torch.Tensor:
            grad_output, *kept = ctx.saved_tensors
            of_grad, of_saved = directions[:2]
            parts = []
            if of_grad is not None:
                parts.append(self.call_backward(of_grad, *kept, *ctx.rest, ctx.backend))
            if of_saved is not None:
                parts.append(slope(grad_output, *kept, of_saved, *ctx.rest, transposed=False))
            like = backward_fake(grad_output, *kept, *ctx.rest, ctx.backend)
            return sum(parts[1:], parts[0]).to(like.dtype) if parts else torch.zeros_like(like)

        self.forward = Operator(
            schema,
            forward=forward,
            fake=fake,
            setup_context=save_context,
            backward=gradient,
            jvp=tangent_of,
            vmap=vmap,
            tensors=tensors,
        )
        self.backward = Operator(
            backward_schema,
            forward=backward,
            fake=backward_fake,
            setup_context=save_inputs,
            backward=gradients_of_backward,
            jvp=tangent_of_backward,
            vmap=backward_vmap,
            tensors=saved + 1,
        )

    def call_backward(self, *args: Any) -> torch.Tensor:
        """Calls the backward pass, recorded for differentiation if a tensor asks for it."""
        differentiable = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        return self.backward(differentiable, *args)
