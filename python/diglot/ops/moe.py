"""A mixture of experts: the contract of the op."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diglot.backends.needs import prefer
from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.operator import Operator
from diglot.ops.checks import check_floating, check_tensor
from diglot.ops.grouped_mm import multiply_groups
from diglot.ops.products import AUTO_ORDER, multiply
from diglot.reference.moe import activation_gradient, activation_tangent

ACTIVATIONS = ("silu", "gelu")
prefer("moe", AUTO_ORDER)


def moe(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation: str = "silu",
    gated: bool = True,
    backend: str | None = None,
) -> Tensor:
    r"""Applies a mixture of experts, whose routing is given: row t of the result is the sum over j
    of topk_weights[t, j] · expert topk_ids[t, j] (x[t]).

    An expert e is w2[e] · activation(w1[e] · x). If `gated`, the first half of the rows of w1[e]
    makes the activation's input, and the second half what multiplies it, as in vLLM's
    `fused_experts`. (Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.)

    Rows of tokens are sorted by experts on the device. Two grouped products multiply them
    (`diglot.grouped_mm`), and nothing waits for the GPU. Results are deterministic. They are
    rounded after each product and after the activation, and the weighted sum is in float32 (float64
    for float64). An id below 0 or beyond the experts adds nothing.

    Args:
        x: tensor (T, H) of tokens; float32, float16, bfloat16 or float64.
        w1: tensor (E, 2 I, H), or (E, I, H) if not `gated`; of the dtype of `x`.
        w2: tensor (E, H, I), of the dtype of `x`.
        topk_weights: floating-point tensor (T, K).
        topk_ids: int32 or int64 tensor (T, K) of experts.
        activation: "silu" or "gelu" (its erf form).
        gated: whether the activation is multiplied by a second half.
        backend: as in `diglot.grouped_mm`.

    Returns:
        A contiguous tensor (T, H). Differentiable any number of times by `x`, `w1`, `w2` and
        `topk_weights`. First derivatives run on the same backend. That of a weight is rounded to
        the dtype of `x`. PyTorch's operators compute later ones of the activation. Autocast casts
        nothing.

    Raises:
        TypeError: a tensor is not dense or has another dtype.
        ValueError: shapes do not fit, tensors are on different devices, or an argument is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    _check(x, w1, w2, topk_weights, topk_ids)
    if activation not in ACTIVATIONS:
        raise ValueError(f"moe: activation must be 'silu' or 'gelu', not {activation!r}")
    _check_shapes(x, w1, w2, topk_weights, topk_ids, gated)
    chosen = choose("moe", x.device, backend)
    weights = topk_weights.to(torch.promote_types(x.dtype, torch.float32))
    route = route_tokens(topk_ids, w1.shape[0])
    rows = _moe_rows(x, None, route.order, route.inverse, topk_ids.shape[1], True, chosen)
    hidden = multiply_groups(rows, w1.mT, route.ends, chosen)
    inner = _moe_activation(hidden, activation, gated, chosen)
    out = multiply_groups(inner, w2.mT, route.ends, chosen)
    count = topk_ids.shape[1]
    result: Tensor = _moe_rows(out, weights, route.order, route.inverse, count, False, chosen)
    return result


class Route(NamedTuple):
    """Tokens sorted by experts.

    Attributes:
        order: from a sorted row to its place among all (token, choice) pairs.
        inverse: from such a place to its sorted row.
        ends: where each expert's rows end, int32. Rows of no expert are behind all.
    """

    order: Tensor
    inverse: Tensor
    ends: Tensor


def route_tokens(topk_ids: Tensor, experts: int) -> Route:
    """Sorts pairs of tokens and choices by experts, and an expert's pairs by tokens."""
    ids = topk_ids.reshape(-1)
    ids = torch.where((ids >= 0) & (ids < experts), ids, experts)
    found, order = torch.sort(ids, stable=True)
    numbers = torch.arange(order.numel(), device=ids.device)
    inverse = torch.empty_like(order).scatter_(0, order, numbers)
    each = torch.arange(experts, device=ids.device, dtype=found.dtype)
    ends = torch.searchsorted(found, each, right=True, out_int32=True)
    return Route(order, inverse, ends)


def _check(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any) -> None:
    tensors = {"x": x, "w1": w1, "w2": w2, "topk_weights": topk_weights}
    for name, tensor in tensors.items():
        check_floating("moe", name, tensor)
        if tensor.dtype != x.dtype and name != "topk_weights":
            raise TypeError(f"moe: x and {name} must have one dtype, not {x.dtype}, {tensor.dtype}")
    check_tensor("moe", "topk_ids", topk_ids)
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"moe: topk_ids must be an int32 or int64 tensor, not {topk_ids.dtype}")
    for name, tensor in {**tensors, "topk_ids": topk_ids}.items():
        if tensor.device != x.device:
            raise ValueError(
                f"moe: x and {name} must be on one device, not on {x.device} and {tensor.device}"
            )


def _check_shapes(
    x: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor, gated: bool
) -> None:
    if (x.dim(), w1.dim(), w2.dim(), topk_ids.dim()) != (2, 3, 3, 2):
        raise ValueError(
            f"moe: x and topk_ids must have two dimensions, and w1 and w2 three, not {x.dim()}, "
            f"{topk_ids.dim()}, {w1.dim()} and {w2.dim()}"
        )
    if topk_ids.shape[1] == 0:
        raise ValueError("moe: topk_ids must name at least one expert of each token")
    experts, hidden, inner = w2.shape
    expected = {
        "w1": (w1, (experts, inner * (2 if gated else 1), hidden)),
        "x": (x, (topk_ids.shape[0], hidden)),
        "topk_weights": (topk_weights, tuple(topk_ids.shape)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"moe: {name} must have the shape {shape}, not {tuple(tensor.shape)}, with w2 of "
                f"{tuple(w2.shape)} and topk_ids of {tuple(topk_ids.shape)}"
            )


# --- rows between tokens, and tokens sorted by experts --------------------------------------------


def _empty_rows(
    input: Tensor, weights: Tensor | None, order: Tensor, inverse: Tensor, topk: int, spreads: bool,
    backend: str,
) -> Tensor:  # fmt: skip
    rows = order.shape[0] if spreads else order.shape[0] // topk
    return input.new_empty(rows, input.shape[1])


def _forward_rows(
    input: Tensor, weights: Tensor | None, order: Tensor, inverse: Tensor, topk: int, spreads: bool,
    backend: str,
) -> Tensor:  # fmt: skip
    """With `spreads`, rows of tokens go to the experts; else the sum of a token's rows goes back.

    Either way a row is multiplied by its pair's weight.
    """
    out = _empty_rows(input, weights, order, inverse, topk, spreads, backend)
    places = order[:, None] if spreads else inverse.view(-1, topk)
    flat = None if weights is None else weights.contiguous()
    run(backend, "moe", "moe_rows", input, places, flat, topk if spreads else 0, out)
    return out


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor | None, ...]:
    input, weights, order, inverse, ctx.topk, ctx.spreads, ctx.backend = inputs
    return input, weights, order, inverse


def _gradients_of_rows(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    input, weights, order, inverse = ctx.saved_tensors
    of_input = of_weights = None
    if ctx.needs_input_grad[0]:
        rest = ctx.topk, not ctx.spreads, ctx.backend
        of_input = _moe_rows(grad, weights, order, inverse, *rest)
    if weights is not None and ctx.needs_input_grad[1]:
        tokens, rows = (input, grad) if ctx.spreads else (grad, input)
        # The rows of each token, one below the other.
        sorted_back = _moe_rows(rows, None, inverse, order, 1, True, ctx.backend)
        each = sorted_back.view(-1, ctx.topk, rows.shape[1])
        of_weights = multiply(each, tokens[:, :, None], ctx.backend).squeeze(-1).to(weights.dtype)
    return of_input, of_weights, None, None


def _tangent_of_rows(ctx: Any, of_input: Tensor | None, of_weights: Tensor | None, *_: Any) -> Any:
    input, weights, order, inverse = ctx.saved_tensors
    rest = order, inverse, ctx.topk, ctx.spreads, ctx.backend
    parts = []
    if of_input is not None:
        parts.append(_moe_rows(of_input, weights, *rest))
    if of_weights is not None:
        parts.append(_moe_rows(input, of_weights, *rest))
    return sum(parts[1:], parts[0])


_moe_rows = Operator(
    "moe_rows(Tensor input, Tensor? weights, Tensor order, Tensor inverse, int topk, bool spreads, "
    "str backend) -> Tensor",
    forward=_forward_rows,
    fake=_empty_rows,
    save=_save_rows,
    backward=_gradients_of_rows,
    jvp=_tangent_of_rows,
    whole=True,
)

# --- activations ----------------------------------------------------------------------------------


def _empty_activation(input: Tensor, activation: str, gated: bool, backend: str) -> Tensor:
    return input.new_empty(input.shape[0], input.shape[1] // (2 if gated else 1))


def _forward_activation(input: Tensor, activation: str, gated: bool, backend: str) -> Tensor:
    out = _empty_activation(input, activation, gated, backend)
    input = input.contiguous()
    run(backend, "moe", "moe_activation_forward", input, activation, gated, out)
    return out


def _save_activation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, ...]:
    input, ctx.activation, ctx.gated, ctx.backend = inputs
    return (input,)


def _gradient_of_activation(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    (input,) = ctx.saved_tensors
    return (_moe_activation_backward(grad, input, ctx.activation, ctx.gated, ctx.backend),)


def _tangent_of_activation(ctx: Any, of_input: Tensor) -> Tensor:
    (input,) = ctx.saved_tensors
    return activation_tangent(of_input, input, ctx.activation, ctx.gated)


_moe_activation = Operator(
    "moe_activation(Tensor input, str activation, bool gated, str backend) -> Tensor",
    forward=_forward_activation,
    fake=_empty_activation,
    save=_save_activation,
    backward=_gradient_of_activation,
    jvp=_tangent_of_activation,
    whole=True,
)


def _forward_of_backward(
    grad_output: Tensor, input: Tensor, activation: str, gated: bool, backend: str
) -> Tensor:
    grad_output, input = grad_output.contiguous(), input.contiguous()
    out = torch.empty_like(input)
    run(backend, "moe", "moe_activation_backward", grad_output, input, activation, gated, out)
    return out


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, ...]:
    *tensors, ctx.activation, ctx.gated, _ = inputs
    return tuple(tensors)


def _gradients_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    def formula(grad_output: Tensor, input: Tensor) -> Tensor:
        return activation_gradient(grad_output, input, ctx.activation, ctx.gated)

    found: tuple[Tensor, ...] = torch.func.vjp(formula, *ctx.saved_tensors)[1](grad)
    return found


def _tangent_of_backward(ctx: Any, of_grad: Tensor | None, of_input: Tensor | None) -> Tensor:
    grad_output, input = ctx.saved_tensors
    tangents = tuple(
        torch.zeros_like(t) if d is None else d
        for t, d in ((grad_output, of_grad), (input, of_input))
    )
    result: Tensor = torch.func.jvp(
        lambda g, x: activation_gradient(g, x, ctx.activation, ctx.gated),
        (grad_output, input),
        tangents,
    )[1]
    return result


_moe_activation_backward = Operator(
    "moe_activation_backward(Tensor grad_output, Tensor input, str activation, bool gated, "
    "str backend) -> Tensor",
    forward=_forward_of_backward,
    fake=lambda grad_output, input, *_: torch.empty_like(
        input, memory_format=torch.contiguous_format
    ),
    save=_save_backward,
    backward=_gradients_of_backward,
    jvp=_tangent_of_backward,
    whole=True,
)
