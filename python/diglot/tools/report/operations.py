"""How many operations an op takes, for its place in a roofline.

The count is of the definition's floating-point operations for each element: those that the result
needs, not those that a kernel executes. Each +, −, ×, ÷, comparison, exp, erf, tanh and √ counts as
one. Operations once a row, or once an array, do not count, nor do those on integers, as in Philox.
Benchmarks count those of products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Of an element, forward and backward.
OPERATIONS: dict[str, tuple[int, int]] = {
    "add": (1, 1),
    "gelu": (5, 11),  # with erf
    "dropout": (2, 2),
    "softmax": (5, 4),
    "log_softmax": (5, 4),
    "global_softmax": (5, 4),
    "layer_norm": (7, 13),
    "add_layer_norm": (8, 14),
    "rms_norm": (4, 9),
    "add_rms_norm": (5, 10),
    "standardize": (5, 9),
    "gaussian_pdf": (2, 3),  # beside its terms
}
WITH_TANH = (9, 18)  # GELU's other form
OF_TERM = (6, 7)  # of each term of gaussian_pdf's mean
CLIPPING = 3


def operations(
    op: str, direction: str, shape: Sequence[int], options: Mapping[str, Any]
) -> float | None:
    """Operations of one call; None if they are not known.

    Args:
        direction: such as "forward" or "forward, bias".
        shape: of the first input; of clip_grad_norm_, how many tensors and elements there are.
    """
    if op == "clip_grad_norm_" and shape:
        return CLIPPING * shape[-1]
    pass_ = direction.partition(",")[0]
    if op not in OPERATIONS or pass_ not in ("forward", "backward") or not shape:
        return None
    is_backward = pass_ == "backward"
    count = OPERATIONS[op][is_backward]
    if op == "gelu" and options.get("approximate") == "tanh":
        count = WITH_TANH[is_backward]
    if op == "gaussian_pdf":
        terms = options.get("terms", 22)
        if not isinstance(terms, int):  # options from elsewhere
            return None
        count += terms * OF_TERM[is_backward]
    return count * math.prod(shape)
