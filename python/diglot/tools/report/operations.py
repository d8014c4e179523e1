"""How many operations an op takes, for its place in a roofline.

The count is of the definition's floating-point operations for each element: those that the result
needs, not those that a kernel executes. Each +, −, ×, ÷, comparison, exp, erf, tanh and √ counts as
one. Operations once a row, or once an array, do not count, nor do those on integers, as in Philox.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

PRODUCT = "product 1, sum 1"  # for each term of a sum of products
_SOFTMAX = "maximum 1, difference 1, exp 1, sum 1, quotient 1"
_SOFTMAX_BACKWARD = "product 1, sum 1, difference 1, product 1"
_NORM = "sum 1, centre 1, square 1, sum 1, scale 1"
_LAYER_NORM = f"{_NORM}, weight and bias 2"
_LAYER_NORM_BACKWARD = "normalise 2, weight 1, two sums 3, gradient 4, of weight and bias 3"
_RMS_NORM = "square 1, sum 1, scale 1, weight 1"
_RMS_NORM_BACKWARD = "normalise 1, weight 1, sum 2, gradient 3, of weight 2"

# The counted operations of an op, with their numbers: by direction, or one text for both.
# Semicolons separate parts. A part "tanh: ..." or "erf: ..." counts for that form of GELU alone. A
# part "each term: ..." counts once for each term of a sum.
OPERATIONS: dict[str, dict[str, str] | str] = {
    "add": "sum 1",
    "gelu": {
        "forward": "tanh: argument c(x + ax³) 5, t = tanh 1, ½x(1 + t) 3; "
        "erf: argument x/√2 1, e = erf 1, ½x(1 + e) 3",
        "backward": "tanh: argument c(x + ax³) 5, t = tanh 1, ½(1 + t) 2, ½x(1 − t²)c(1 + 3ax²) 8, "
        "sum 1, times the gradient 1; erf: Φ(x) 4, x·φ(x) 5, sum 1, times the gradient 1",
    },
    **dict.fromkeys(("matmul", "linear", "scaled_mm"), PRODUCT),  # each element of M x N x K
    "dropout": "comparison 1, scale 1",
    "softmax": {"forward": _SOFTMAX, "backward": _SOFTMAX_BACKWARD},
    "log_softmax": {
        "forward": "maximum 1, difference 1, exp 1, sum 1, difference 1",
        "backward": "sum 1, exp 1, product 1, difference 1",
    },
    "global_softmax": {"forward": _SOFTMAX, "backward": _SOFTMAX_BACKWARD},
    "layer_norm": {"forward": _LAYER_NORM, "backward": _LAYER_NORM_BACKWARD},
    "add_layer_norm": {
        "forward": f"residual 1, {_LAYER_NORM}",
        "backward": f"{_LAYER_NORM_BACKWARD}, residual 1",
    },
    "rms_norm": {"forward": _RMS_NORM, "backward": _RMS_NORM_BACKWARD},
    "add_rms_norm": {
        "forward": f"residual 1, {_RMS_NORM}",
        "backward": f"{_RMS_NORM_BACKWARD}, residual 1",
    },
    "standardize": {"forward": _NORM, "backward": "normalise 2, two sums 3, gradient 4"},
    "clip_grad_norm_": "square 1, sum 1, scale 1",
    "gaussian_pdf": {
        "forward": "each term: point 1, deviation 1, square 1, half 1, exp 1, sum 1; "
        "mean and scale 2",
        "backward": "each term: as forward 6, product 1; mean, scale and gradient 3",
    },
}


def find(op: str, direction: str) -> str | None:
    """The counted operations of a direction such as "forward, bias"; None if unknown."""
    of = OPERATIONS.get(op)
    return of.get(direction.partition(",")[0]) if isinstance(of, dict) else of


def operations(
    op: str, direction: str, shape: Sequence[int], options: Mapping[str, Any]
) -> float | None:
    """Operations of one call; None if they are not known.

    Args:
        direction: such as "forward" or "forward, bias".
        shape: of the first input; of clip_grad_norm_, how many tensors and elements there are; of
            products, M, N and K.
    """
    counted = find(op, direction)
    if counted is None or not shape:
        return None
    other_form = "erf" if options.get("approximate") == "tanh" else "tanh"
    count = 0
    for part in counted.split("; "):
        name = part.partition(": ")[0]
        numbers = sum(map(int, re.findall(r" (\d+)(?=,|$)", part)))
        try:
            terms = int(options.get("terms", 22)) if name == "each term" else name != other_form
        except (TypeError, ValueError):  # options from elsewhere
            return None
        count += terms * numbers
    return count * (shape[-1] if op == "clip_grad_norm_" else math.prod(shape))
