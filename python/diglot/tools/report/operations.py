"""How many operations an op takes, for its place in a roofline.

Counted are the floating-point operations of the definition, for each element, each of +, −, ×, ÷,
comparison, exp, erf, tanh and √ as one: what the result needs, not what a kernel executes. What is
needed once a row, or once an array, does not count, nor do integers such as Philox's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operations:
    """Of an op in one direction.

    Attributes:
        count: for each element: a number, or a function of the options.
        of: what is counted, in words.
    """

    count: float | Callable[[Mapping[str, Any]], float]
    of: str


def _by_form(tanh: int, erf: int) -> Callable[[Mapping[str, Any]], float]:
    return lambda options: tanh if options.get("approximate") == "tanh" else erf


def _by_terms(each: int, once: int) -> Callable[[Mapping[str, Any]], float]:
    return lambda options: each * int(options.get("terms", 22)) + once


_NORM = "sum 1, centre 1, square 1, sum 1, scale 1"
_SOFTMAX = Operations(5, "maximum 1, difference 1, exp 1, sum 1, quotient 1")

# By op and direction, or by op alone where directions are not told apart.
OPERATIONS: dict[str, dict[str, Operations] | Operations] = {
    "add": Operations(1, "sum 1"),
    "gelu": {
        "forward": Operations(
            _by_form(9, 5),
            "tanh: ½x(1 + tanh(c(x + ax³))), 9; erf: ½x(1 + erf(x/√2)), 5",
        ),
        "backward": Operations(
            _by_form(18, 11),
            "tanh: argument and tanh 6, ½(1 + t) 2, the slope's term 8, sum and gradient 2; "
            "erf: Φ(x) 4, x·φ(x) 5, sum and gradient 2",
        ),
    },
    "dropout": Operations(2, "comparison 1, scale 1"),
    "softmax": {
        "forward": _SOFTMAX,
        "backward": Operations(4, "product 1, sum 1, difference 1, product 1"),
    },
    "log_softmax": {
        "forward": Operations(5, "maximum 1, difference 1, exp 1, sum 1, difference 1"),
        "backward": Operations(4, "sum 1, exp 1, product 1, difference 1"),
    },
    "global_softmax": {
        "forward": _SOFTMAX,
        "backward": Operations(4, "product 1, sum 1, difference 1, product 1"),
    },
    "layer_norm": {
        "forward": Operations(7, f"{_NORM}, weight and bias 2"),
        "backward": Operations(
            13, "normalise 2, weight 1, two sums 3, gradient 4, of weight and bias 3"
        ),
    },
    "add_layer_norm": {
        "forward": Operations(8, f"residual 1, {_NORM}, weight and bias 2"),
        "backward": Operations(
            14, "normalise 2, weight 1, two sums 3, gradient 4, of weight and bias 3, residual 1"
        ),
    },
    "rms_norm": {
        "forward": Operations(4, "square 1, sum 1, scale 1, weight 1"),
        "backward": Operations(9, "normalise 1, weight 1, sum 2, gradient 3, of weight 2"),
    },
    "add_rms_norm": {
        "forward": Operations(5, "residual 1, square 1, sum 1, scale 1, weight 1"),
        "backward": Operations(
            10, "normalise 1, weight 1, sum 2, gradient 3, of weight 2, residual 1"
        ),
    },
    "standardize": {
        "forward": Operations(5, _NORM),
        "backward": Operations(9, "normalise 2, two sums 3, gradient 4"),
    },
    "clip_grad_norm_": Operations(3, "square 1, sum 1, scale 1"),
    "gaussian_pdf": {
        "forward": Operations(
            _by_terms(6, 2), "each term: point, deviation, square, ½, exp, sum, 6; mean and scale 2"
        ),
        "backward": Operations(
            _by_terms(7, 3), "each term: as forward, and a product, 7; mean, scale and gradient 3"
        ),
    },
}


def find(op: str, direction: str) -> Operations | None:
    """What an op takes in a direction such as "forward" or "forward, bias"; None if unknown."""
    of = OPERATIONS.get(op)
    return of.get(direction.partition(",")[0]) if isinstance(of, dict) else of


def operations(
    op: str, direction: str, shape: Sequence[int], options: Mapping[str, Any]
) -> float | None:
    """Operations of one call; None if they are not known.

    Args:
        op: its name.
        direction: such as "forward" or "forward, bias".
        shape: of the first input; of clip_grad_norm_, how many tensors and elements there are.
        options: of the call.
    """
    of = find(op, direction)
    if of is None or not shape:
        return None
    elements = shape[-1] if op == "clip_grad_norm_" else math.prod(shape)
    try:
        return elements * (of.count(options) if callable(of.count) else of.count)
    except (TypeError, ValueError):  # options from elsewhere
        return None
