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
    """The CUDA library, if there is one that reads and copies calls and watches places."""
    module, _ = load_extension()
    return module if hasattr(module, "copy_into") else None


def watch(
    tensors: Sequence[Place], others: Sequence[Place] = (), *, with_gradients: bool = False
) -> FirstChanged:
    """Watches places, which hold from now on what they hold now.

    The tensors are kept alive, so that a replay never reads memory that was freed.

    Args:
        tensors: places of tensors. Their addresses, shapes and strides must stay, too.
        others: places of any objects.
        with_gradients: whether the tensors' `requires_grad` must stay, too. The library asks eight
            of them in each call, in turn, since that takes the longest.

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
        own = module.own_watch(address, parts, with_gradients)
        return functools.partial(module.first_changed, own, parts)
    return watch_in_python(tensors, others, with_gradients=with_gradients)


def watch_in_python(
    tensors: Sequence[Place], others: Sequence[Place] = (), *, with_gradients: bool = False
) -> FirstChanged:
    """As `watch`, without the library."""
    places = [*tensors, *others]
    owners, keys = [place.owner for place in places], [place.key for place in places]
    values = [place.value for place in places]
    watched = values[: len(tensors)]
    facts = _layout_and_gradient if with_gradients else _layout
    before = list(map(facts, watched))

    def first_changed() -> int:
        there = map(_held, owners, keys)
        if all(map(operator.is_, there, values)) and list(map(facts, watched)) == before:
            return -1
        for i, (owner, key, value) in enumerate(zip(owners, keys, values, strict=True)):
            is_other = i < len(watched) and facts(watched[i]) != before[i]
            if _held(owner, key) is not value or is_other:
                return i
        return -1

    return first_changed


def _layout(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _layout_and_gradient(tensor: Tensor) -> tuple[Any, ...]:
    return *_layout(tensor), tensor.requires_grad


_GONE = object()


def _held(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except LookupError:
        return _GONE
