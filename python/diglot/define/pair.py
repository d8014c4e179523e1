"""Ops whose backward pass is an op too, linear in the output's gradient, and their derivatives.

The first derivative runs on the backend of the forward pass. Later ones consist of PyTorch's
operators, in functions beside the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.define.batching import one_by_one
from diglot.define.operator import Operator, Signature, no_check


class DifferentiablePair(Operator):
    """The operator `diglot::<name>`, and as its attribute `backward` the operator
    `diglot::<name>_backward`.

    The backward pass is B(g, s) for a gradient g of the first output and saved tensors s; it is
    linear in g. The op is a function of its first tensor argument; others have no gradient.

    Args:
        schema: of the op, as `Operator` takes it.
        backward_schema: of the backward pass: the gradient, the saved tensors, options. Saved
            tensors are arguments or outputs of the op of the same name, and options are arguments.
        forward: as `Operator` takes it; by default the launcher `<name>_forward` with all arguments
            except the backend, and an output like the first argument.
        fake: likewise; by default an output like the first argument.
        backward: of the backward pass; by default the launcher `<name>_backward`.
        fake_backward: by default a tensor like `like`.
        like: the argument of the backward pass that has the shape and dtype of the op's output, as
            the gradient must; by default the first saved tensor.
        options: from the op's arguments, those that the backward pass takes after the saved
            tensors, including the backend.
        tangent: the derivative of the output along a direction: the transpose of B. From the
            direction, the saved tensors and the options. By default B, which then is symmetric.
        slope: the derivative of B by the first saved tensor, applied to a direction; with
            `transposed`, its transpose is applied. It takes the gradient, the saved tensors, the
            direction, the options without the backend, and `transposed`. None: no saved tensor has
            derivatives.
        vmap: the batching rule of both.
        opaque, inlined, check: as `Operator` takes them; `check` is only for the op.
    """

    def __init__(
        self,
        schema: str,
        backward_schema: str,
        *,
        forward: Callable[..., Any] | None = None,
        fake: Callable[..., Any] | None = None,
        backward: Callable[..., Tensor] | None = None,
        fake_backward: Callable[..., Tensor] | None = None,
        like: str | None = None,
        options: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
        tangent: Callable[..., Tensor] | None = None,
        slope: Callable[..., Tensor] | None = None,
        vmap: Callable[..., Any] = one_by_one,
        opaque: bool = False,
        inlined: bool = True,
        check: Callable[..., Any] = no_check,
    ) -> None:
        op, backward_op = Signature.parse(schema), Signature.parse(backward_schema)
        name, places = op.name, op.arguments + op.outputs
        saved = [places.index(each) for each in backward_op.arguments[1 : backward_op.tensors]]
        # A slice of one, so that the getter always returns a tuple.
        pick = itemgetter(*saved if len(saved) > 1 else [slice(saved[0], saved[0] + 1)])
        optional, is_single = slice(op.tensors, None), len(op.outputs) == 1
        like = backward_op.arguments[1] if like is None else like
        model = backward_op.arguments.index(like)
        others = (None,) * (op.tensors - 1)

        default_forward = _launch_of(op, name, op.arguments[0])
        compute = backward or _launch_of(backward_op, name, like)

        def checked_backward(*args: Any) -> Tensor:
            grad, wanted = args[0], args[model]
            if grad.shape != wanted.shape or grad.dtype != wanted.dtype:
                raise ValueError(
                    f"{backward_op.name}: {backward_op.arguments[0]} must have the shape and dtype "
                    f"of {like}, {tuple(wanted.shape)} and {wanted.dtype}, not {tuple(grad.shape)} "
                    f"and {grad.dtype}"
                )
            return compute(*args)

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> tuple[Any, ...]:
            ctx.options = inputs[optional] if options is None else options(inputs)
            return pick((*inputs, output) if is_single else (*inputs, *output))

        def gradient(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
            return (self.backward(grad_output, *ctx.saved_tensors, *ctx.options), *others)

        def tangent_of(ctx: Any, *directions: Tensor) -> Tensor:
            return along(directions[0], *ctx.saved_tensors, *ctx.options)

        def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Any, ...]:
            ctx.options = inputs[backward_op.tensors :]
            return inputs[: backward_op.tensors]

        def gradients_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            grad_output, *kept = ctx.saved_tensors
            by_saved: list[Tensor | None] = [None] * len(kept)
            if slope is not None:
                bent = slope(grad_output, *kept, grad, *ctx.options[:-1], transposed=True)
                by_saved[0] = bent.to(kept[0].dtype)
            return (along(grad, *kept, *ctx.options).to(grad_output.dtype), *by_saved)

        def tangent_of_backward(ctx: Any, *directions: Tensor | None) -> Tensor:
            grad_output, *kept = ctx.saved_tensors
            by_grad, by_saved = directions[:2]
            parts = []
            if by_grad is not None:
                parts.append(self.backward(by_grad, *kept, *ctx.options))
            if by_saved is not None and slope is not None:
                bent = slope(grad_output, *kept, by_saved, *ctx.options[:-1], transposed=False)
                parts.append(bent)
            result = self.backward.fake(grad_output, *kept, *ctx.options)
            return sum(parts[1:], parts[0]).to(result.dtype) if parts else torch.zeros_like(result)

        self.backward = Operator(
            backward_schema,
            forward=checked_backward if model > 0 else compute,
            fake=fake_backward or (lambda *args: torch.empty_like(args[model])),
            save=save_inputs,
            backward=gradients_of_backward,
            jvp=tangent_of_backward,
            vmap=vmap,
            opaque=opaque,
            inlined=inlined,
        )
        along = tangent or self.backward
        super().__init__(
            schema,
            forward=forward or default_forward,
            fake=fake or (lambda *args: torch.empty_like(args[0])),
            save=save,
            backward=gradient,
            jvp=tangent_of,
            vmap=vmap,
            opaque=opaque,
            inlined=inlined,
            check=check,
        )


# The source of a function that runs a launcher whose output is like one of its arguments. Each
# launcher has its own, so that a call neither packs nor slices arguments.
_LAUNCH = """
def {launcher}({arguments}, backend):
    out = empty_like({like})
    run(backend, {op!r}, {launcher!r}, {arguments}, out)
    return out
"""


def _launch_of(signature: Signature, op: str, like: str) -> Callable[..., Tensor]:
    launcher = signature.name if signature.name != op else f"{op}_forward"
    *arguments, _ = signature.arguments
    source = _LAUNCH.format(launcher=launcher, arguments=", ".join(arguments), like=like, op=op)
    scope: dict[str, Any] = {"empty_like": torch.empty_like, "run": run}
    exec(source, scope)
    made: Callable[..., Tensor] = scope[launcher]
    return made


def pointwise(second_derivative: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The slope of a function of each element, from its second derivative."""

    def slope(
        grad_output: Tensor, input: Tensor, direction: Tensor, *options: Any, transposed: bool
    ) -> Tensor:
        return (second_derivative(input, *options) * direction * grad_output).to(input.dtype)

    return slope
