"""The arguments of a call: tensors are copied, and other values are a part of the graph's key."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diglot.graphs.watch import library

Key = tuple[Hashable, ...]  # the value and type of each leaf; None for a tensor
Places = bytes | None  # addresses and strides of tensors; None where Python has read them


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
        module = library()
        self._read_natively = None if module is None else module.read_call
        paths, self.spec = pytree.tree_flatten_with_path(_in_order(args, kwargs))
        self.names = [_name_of(path) for path, _ in paths]
        _, self._positional = pytree.tree_flatten(args)
        self._count, self._keywords = len(args), frozenset(kwargs)

    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Hashable, Places, tuple[Tensor, ...]]:
        """What a call is: its kind, where its tensors are, and these.

        Calls of one kind have the same tree, the same values that are no tensors, and tensors of
        the same dtypes, devices and shapes. Both record gradients, of the same tensors, or neither.

        Raises:
            TypeError: as `split`.
        """
        if kwargs or len(args) != self._count:
            args, kwargs = self._in_form(args, kwargs)
        if self._read_natively is not None:
            found = self._read_natively(args, kwargs)
            if found is not None:
                return found
        tensors, key = self.split(args, kwargs)
        kinds = tuple([(t.shape, t.dtype, t.device, t.requires_grad) for t in tensors])
        return (torch.is_grad_enabled(), key, kinds), None, tensors

    def _in_form(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments by position or by keyword, as the example has them; keywords in one order."""
        if self._signature is not None:
            if len(args) != self._count or kwargs.keys() != self._keywords:
                bound = self._signature.bind(*args, **kwargs)
                args, kwargs = bound.args, bound.kwargs
                by_name = list(bound.arguments)[self._count : len(args)]
                if self._keywords.issuperset(by_name):  # the example names them
                    kwargs = {**kwargs, **{name: bound.arguments[name] for name in by_name}}
                    args = args[: self._count]
        return _in_order(args, kwargs)

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Tensor, ...], Key]:
        """The tensors of a call, and what else it was given.

        Raises:
            TypeError: the arguments lie in another tree than the example's, or one that is no
                tensor is not hashable.
        """
        leaves, spec = pytree.tree_flatten(self._in_form(args, kwargs))
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
                    f"hashable; a {type(leaf).__name__} is not. If it holds tensors, register "
                    "the class (torch.export.register_dataclass)"
                ) from None
            if isinstance(leaf, Iterator):
                raise TypeError(
                    f"{name} is a {type(leaf).__name__}, which the warm-up would use up: give a "
                    "list or a tuple"
                )
            # Numbers that are equal, such as 0.0 and -0.0, may give other results.
            key.append((leaf, type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else ""))
        return tuple([leaf for leaf in leaves if isinstance(leaf, Tensor)]), tuple(key)

    def places(self, key: Key) -> list[int]:
        """Which leaves are tensors."""
        return [i for i, part in enumerate(key) if part is None]

    def constants(self, key: Key) -> dict[str, Any]:
        """The values of leaves that are no tensors, by name."""
        return {
            name: part[0]  # type: ignore[index]
            for name, part in zip(self.names, key, strict=True)
            if part is not None
        }

    def caller(self, function: Callable[..., Any], key: Key) -> Callable[[list[Tensor]], Any]:
        """The function, as one of the tensors alone."""
        constants = [part if part is None else part[0] for part in key]  # type: ignore[index]
        places = self.places(key)

        def call(tensors: list[Tensor]) -> Any:
            leaves: list[Any] = list(constants)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            return function(*args, **kwargs)

        return call

    def spread(self, tree: Any, what: str, rest: Any = None) -> list[Any]:
        """For each leaf what a tree has in its place.

        Args:
            tree: in the form of (args, kwargs); or of args alone, or of the only one.
            what: its name, in messages.
            rest: what arguments by name have if the tree has none of them.

        Raises:
            ValueError: the tree has another form than the arguments.
        """
        ways = ((self.spec, tree), (self._positional, tree), (self._positional, (tree,)))
        for spec, whole in ways:
            try:
                found: list[Any] = spec.flatten_up_to(whole)
            except ValueError:
                continue
            return found + [rest] * (len(self.names) - len(found))
        raise ValueError(f"{what} must lie as the example's arguments do, {self.spec}")


def places_of(tensors: Sequence[Tensor]) -> Places:
    """Where tensors are, as `Arguments.read` says it."""
    module = library()
    found = None if module is None else module.read_call(tuple(tensors), {})
    return None if found is None else found[1]


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
