"""One layout for all rows, so that one order of summation serves them.

A kernel sums a row in an order that depends on where the row begins, and on how far apart its
elements are. Within `use_plans("invariant")` elements of a row must be neighbours, and each row
must begin at a multiple of 16 bytes. A launcher of rows gets copies of other arrays, and its
results are copied back. Products get their first operand by `in_even_rows`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diglot.backends.plans import Scratch
from diglot.backends.registry import BACKENDS
from diglot.backends.scratch import provide

# Launchers' names for arrays of whole rows, and for those that are the same for each row.
READ = ("input", "residual", "grad_output", "grad_sum", "output")
WRITTEN = ("sum", "out", "grad_input")
PARAMETERS = ("weight", "bias")
OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
BYTES = 16  # of an access
STEP = 16  # elements: rows of copies begin at multiples of it
MOST_RANK = 4  # dimensions of an array that kernels walk over in one launch, in any layout


def works_on_rows(name: str) -> bool:
    """Whether a launcher reduces rows, and each row has results of its own."""
    return name.removesuffix("_forward").removesuffix("_backward") in OPS


class Placed(NamedTuple):
    """A launcher's arguments, with copies in place of some.

    Attributes:
        arguments: without scratch.
        read: pairs of a copy and its original.
        written: pairs of a copy and where its results belong.
    """

    arguments: tuple[Any, ...]
    read: list[tuple[Tensor, Tensor]]
    written: list[tuple[Tensor, Tensor]]

    def fill(self) -> None:
        """Copies what the launcher reads. It comes before the launch."""
        for copy, source in self.read:
            copy.copy_(source)

    def put_back(self) -> None:
        """Copies results to where they belong."""
        for copy, result in self.written:
            result.copy_(copy)


def on_aligned_rows(op: str, name: str, launcher: Callable[..., Any]) -> Callable[..., str]:
    """A launcher that gives another launcher copies of arrays with another layout."""

    def launch(*arguments: Any) -> str:
        placed = place(op, name, arguments[:-1])
        placed.fill()
        variant = launcher(*placed.arguments, None)
        if not isinstance(variant, str):
            device = placed.arguments[-1].device
            variant = launcher(*placed.arguments, provide(Scratch(*variant), device))
        placed.put_back()
        return str(variant)

    return launch


def place(op: str, name: str, arguments: tuple[Any, ...]) -> Placed:
    """A launcher's arguments, with memory for copies in place of arrays with another layout."""
    names = _parameters(op, name)
    dim = arguments[names.index("dim")] if "dim" in names else -1
    placed = Placed(tuple(map(functools.partial(_placed, dim), names, arguments)), [], [])
    for parameter, argument, copy in zip(names, arguments, placed.arguments, strict=True):
        if copy is not argument:
            pairs = placed.written if parameter in WRITTEN else placed.read
            pairs.append((copy, argument))
    return placed


def _placed(dim: int, parameter: str, argument: Any) -> Any:
    if argument is None:
        return None
    if parameter in (*READ, *WRITTEN) and not lies_in_rows(argument, dim):
        return _empty_rows(argument, dim)
    if parameter in PARAMETERS and not _begins_aligned(argument):
        return torch.empty_like(argument)
    return argument


@functools.cache
def _parameters(op: str, name: str) -> tuple[str, ...]:
    """The names of a launcher's parameters without its scratch: all backends have the same."""
    reference = getattr(BACKENDS["torch"].module(op), name)
    return tuple(inspect.signature(reference).parameters)[:-1]


def lies_in_rows(tensor: Tensor, dim: int) -> bool:
    """Whether rows along a dimension have no gaps, and begin at multiples of 16 bytes."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return True
    sizes, strides = list(tensor.shape), list(tensor.stride())
    n, step = sizes.pop(dim), strides.pop(dim)
    others = [pair for pair in zip(sizes, strides, strict=True) if pair[0] > 1]
    # A partial access at a row's end may be read together with the data beside it. Kernels differ
    # in this, unless rows are equally far apart.
    is_whole = n * tensor.element_size() % BYTES == 0
    is_even = _are_even(others)
    return (
        (n == 1 or step == 1)
        and (is_whole or (is_even and all(stride > 0 for _, stride in others)))
        and (len(others) < MOST_RANK or tensor.is_contiguous())
        and all(stride * tensor.element_size() % BYTES == 0 for _, stride in others)
        and _begins_aligned(tensor)
    )


def _are_even(dimensions: list[tuple[int, int]]) -> bool:
    """Whether dimensions of these sizes and strides are as one."""
    return all(far == size * near for (_, far), (size, near) in itertools.pairwise(dimensions))


def in_even_rows(tensor: Tensor) -> Tensor:
    """A matrix, or a batch of them, in rows that lie as any number of rows may: the tensor, or a
    copy. A matrix may also lie in columns.
    """
    others = [d for d in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if d[0] > 1]
    if lies_in_rows(tensor, -1) and _are_even(others) and all(stride > 0 for _, stride in others):
        return tensor
    if tensor.dim() == 2 and tensor.stride(1) > 0 and lies_in_rows(tensor, -2):
        return tensor
    return _empty_rows(tensor, -1).copy_(tensor)


def _begins_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % BYTES == 0


def _empty_rows(tensor: Tensor, dim: int) -> Tensor:
    """Memory for a tensor's values, in rows with that layout."""
    sizes = list(tensor.shape)
    n = sizes.pop(dim)
    rows = tensor.new_empty((*sizes, -(-n // STEP) * STEP))[..., :n]
    return rows.movedim(-1, dim)
