"""The arguments of a call: tensors are copied, and other values are a part of the graph's key."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Key = tuple[Hashable, ...]  # the type and value of each leaf; None for a tensor


class Arguments:
    """The tree in which a function takes its arguments: that of an example's call.

    Args:
        function: what takes them by position or by keyword; None: all lie as the example's.
        args, kwargs: the example's.
    """

    def __init__(
        self, function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._signature = None
        if function is not None:
            with contextlib.suppress(TypeError, ValueError):  # a function of C has none
                self._signature = inspect.signature(function)
        paths, self.spec = pytree.tree_flatten_with_path(_in_order(args, kwargs))
        self.names = [_name_of(path) for path, _ in paths]
        self._count = len(args)
        tensors, self._key = self._split([leaf for _, leaf in paths])
        # Positional tensors alone: their call needs no walk through a tree.
        self._is_flat = not kwargs and len(tensors) == len(args) == len(paths)

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Tensor, ...], Key]:
        """The tensors of a call, and what else it was given.

        Raises:
            TypeError: the arguments lie in another tree than the example's, or one that is no
                tensor is not hashable.
        """
        if self._is_flat and not kwargs and len(args) == self._count:
            if all([isinstance(each, Tensor) for each in args]):
                return args, self._key
        leaves, spec = pytree.tree_flatten(_in_order(args, kwargs))
        if spec != self.spec and self._signature is not None:
            bound = self._signature.bind(*args, **kwargs)  # by position where that is possible
            leaves, spec = pytree.tree_flatten(_in_order(bound.args, bound.kwargs))
        if spec != self.spec:
            raise TypeError(
                f"the arguments must lie as the example's do, {self.spec}, not {spec}: "
                "capture another callable for them"
            )
        return self._split(leaves)

    def _split(self, leaves: list[Any]) -> tuple[tuple[Tensor, ...], Key]:
        key: list[Hashable] = []
        for name, leaf in zip(self.names, leaves, strict=True):
            if isinstance(leaf, Tensor):
                key.append(None)
                continue
            try:
                hash(leaf)
            except TypeError:
                raise TypeError(
                    f"{name} is no tensor, so it is a part of the graph's key, and must be "
                    f"hashable; a {type(leaf).__name__} is not"
                ) from None
            key.append((type(leaf), leaf))
        return tuple([leaf for leaf in leaves if isinstance(leaf, Tensor)]), tuple(key)

    def places(self, key: Key) -> list[int]:
        """Which leaves are tensors."""
        return [i for i, part in enumerate(key) if part is None]

    def constants(self, key: Key) -> dict[str, Any]:
        """The values of leaves that are no tensors, by name."""
        return {
            name: part[1]  # type: ignore[index]
            for name, part in zip(self.names, key, strict=True)
            if part is not None
        }

    def caller(self, function: Callable[..., Any], key: Key) -> Callable[[list[Tensor]], Any]:
        """The function, as one of the tensors alone."""
        constants = [part if part is None else part[1] for part in key]  # type: ignore[index]
        places = self.places(key)

        def call(tensors: list[Tensor]) -> Any:
            leaves: list[Any] = list(constants)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            return function(*args, **kwargs)

        return call

    def spread(self, tree: Any, what: str) -> list[Any]:
        """For each leaf what a tree has in its place. A tree of `args` alone will do.

        Raises:
            ValueError: the tree has another form than the arguments.
        """
        wholes: tuple[Any, ...] = (tree, (tree, {}), ((tree,), {}))
        for whole in wholes:
            try:
                return self.spec.flatten_up_to(whole)
            except ValueError:
                continue
        raise ValueError(f"{what} must lie as the example's arguments do, {self.spec}")


def only_device(who: str, tensors: Iterable[Tensor]) -> torch.device:
    """The device of all tensors.

    Raises:
        ValueError: there is no tensor, or they are on several devices.
    """
    found = {tensor.device for tensor in tensors}
    if not found:
        raise ValueError(f"{who}: the example has no tensor")
    if len(found) > 1:
        named = " and ".join(sorted(map(str, found)))
        raise ValueError(f"{who}: the tensors must be on one device, not on {named}")
    return found.pop()


def _in_order(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with their keywords in one order."""
    return args, dict(sorted(kwargs.items()))


def _name_of(path: tuple[Any, ...]) -> str:
    """A leaf's name in messages, such as "args[0]"."""
    root, *rest = path
    return ("args", "kwargs")[root.idx] + pytree.keystr(tuple(rest))
