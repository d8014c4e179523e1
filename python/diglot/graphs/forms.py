"""What a function returns, and which of it changes with the sizes of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

Form = tuple[int, ...] | str  # a tensor's shape; another value as text


def form_of(output: Any) -> Form:
    """The form of a leaf of a result. That of an object that is no number is not looked at."""
    if isinstance(output, Tensor):
        return tuple(output.shape)
    return repr(output) if isinstance(output, (bool, int, float, complex, str)) else ""


def changed_dims(
    forms: Sequence[Form], others: Sequence[Form], lengths: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """The dimensions that are as long as one of the arguments', as pairs of output and dimension.

    Args:
        forms, others: of the outputs, for two lengths of that dimension of the arguments.
        lengths: these.

    Raises:
        ValueError: something else has changed.
    """
    for output, (before, after) in enumerate(zip(forms, others, strict=True)):
        if before == after:
            continue
        if isinstance(before, str) or isinstance(after, str):
            raise ValueError(
                f"output {output} is {before} and {after}, and a graph would return that of its "
                "bucket: return tensors alone"
            )
        for dim, sizes in enumerate(zip(before, after, strict=True)):
            if sizes == lengths:
                yield output, dim
            elif sizes[0] != sizes[1]:
                raise ValueError(
                    f"dimension {dim} of output {output} is {sizes[0]} and {sizes[1]}: say in "
                    "out_dims which dimensions of the outputs are padded"
                )
