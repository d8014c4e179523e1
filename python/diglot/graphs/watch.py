"""Places that must hold what they held at a capture: all of them checked in one call.

The CUDA library does it, in some 30 ns for each tensor. Without the library Python does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diglot.backends.registry import load_extension

# Calls that return the first place that has changed, or -1.
FirstChanged = Callable[[], int]


class Place(NamedTuple):
    """Where an object is: `owner[key]`, by a name for messages."""

    name: str
    owner: Any
    key: Any

    @property
    def value(self) -> Any:
        """The object that is there now."""
        return self.owner[self.key]


class Attributes:
    """An object's attributes, as the items of a mapping."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._of, name)
        except (AttributeError, ValueError):  # of an empty cell
            raise KeyError(name) from None


def attribute(name: str, of: object, key: str) -> Place:
    """The place of an object's attribute."""
    attributes = getattr(of, "__dict__", {})
    return Place(name, attributes if key in attributes else Attributes(of), key)


@functools.cache
def library() -> ModuleType | None:
    """The CUDA library, if there is one that reads calls and watches places."""
    module, _ = load_extension()
    return module if hasattr(module, "read_call") else None


def watch(tensors: Sequence[Place], others: Sequence[Place] = ()) -> FirstChanged:
    """Watches places, which hold from now on what they hold now.

    The tensors are kept alive, so that a replay never reads memory that was freed.

    Args:
        tensors: places of tensors. Their addresses, shapes and strides must stay, too.
        others: places of any objects.

    Returns:
        A call that returns the first of all these places that has changed, or -1.
    """
    module = library()
    # To the library's operator a subclass may be something else than the tensor that it is.
    if module is not None and all(type(p.value) in (Tensor, nn.Parameter) for p in tensors):
        parts = tuple(
            [part for each in (*tensors, *others) for part in (each.owner, each.key, each.value)]
        )
        address = torch.ops.diglot_cuda.watch([place.value for place in tensors])
        return functools.partial(module.first_changed, module.own_watch(address, parts), parts)
    return watch_in_python(tensors, others)


def watch_in_python(tensors: Sequence[Place], others: Sequence[Place] = ()) -> FirstChanged:
    """As `watch`, without the library."""
    places = [*tensors, *others]
    owners, keys = [place.owner for place in places], [place.key for place in places]
    values = [place.value for place in places]
    watched = values[: len(tensors)]
    layouts = list(map(_layout, watched))

    def first_changed() -> int:
        there = map(_held, owners, keys)
        if all(map(operator.is_, there, values)) and list(map(_layout, watched)) == layouts:
            return -1
        for i, (owner, key, value) in enumerate(zip(owners, keys, values, strict=True)):
            is_moved = i < len(watched) and _layout(watched[i]) != layouts[i]
            if _held(owner, key) is not value or is_moved:
                return i
        return -1

    return first_changed


def _layout(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


_GONE = object()


def _held(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except LookupError:
        return _GONE
