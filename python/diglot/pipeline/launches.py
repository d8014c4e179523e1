"""The launches of an op of diglot on a chunk, found by watching it, and remembered."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from diglot import ops
from diglot.backends.runs import LastRun, observe_runs

CONSTANT = -1
MOST_REMEMBERED = 1024


@dataclass(frozen=True)
class Part:
    """Stands for a tensor that is a whole chunk of an array.

    Attributes:
        place: the number of the input, or of the result after them.
        shape: the shape that the launcher gets.
    """

    place: int
    shape: tuple[int, ...]

    def view_of(self, chunk: torch.Tensor, rows: int | None = None) -> torch.Tensor:
        """A chunk in this shape, or its first rows."""
        view = chunk if chunk.shape == self.shape else chunk.view(self.shape)
        return view if rows is None else view[: len(view) // len(chunk) * rows]

    def differs_in_rows_alone(self, other: Part, rows: tuple[int, int]) -> bool:
        """Whether two parts, with these numbers of rows, differ only in the rows."""
        (a, *rest), (b, *rest_of_other) = self.shape or (0,), other.shape or (0,)
        is_same = self.place == other.place and rest == rest_of_other
        return is_same and a * rows[1] == b * rows[0]


class Like(NamedTuple):
    """The properties of a tensor, without its memory."""

    shape: torch.Size
    dtype: torch.dtype

    def empty(self, device: torch.device) -> torch.Tensor:
        """Such a tensor, uninitialised."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Launch:
    """A launcher's call on a chunk.

    Attributes:
        backend: "cuda" or "triton".
        op: the op's name.
        launcher: its name.
        arguments: the op's, with a `Part` for each tensor that is a chunk.
    """

    backend: str
    op: str
    launcher: str
    arguments: tuple[Any, ...]

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """For each tensor among the arguments, the array that it is a chunk of, or `CONSTANT`."""
        return tuple(
            argument.place if isinstance(argument, Part) else CONSTANT
            for argument in self.arguments
            if isinstance(argument, Part | torch.Tensor)
        )

    def arguments_on(self, chunks: list[torch.Tensor], rows: int | None = None) -> tuple[Any, ...]:
        """The arguments for chunks of inputs and results, contiguous and as large; or for their
        first rows.
        """
        return tuple(
            argument.view_of(chunks[argument.place], rows)
            if isinstance(argument, Part)
            else argument
            for argument in self.arguments
        )

    def differs_in_rows_alone(self, other: Launch, rows: tuple[int, int]) -> bool:
        """Whether two calls, on these numbers of rows, differ only in the rows."""
        if (self.backend, self.launcher) != (other.backend, other.launcher):
            return False
        if len(self.arguments) != len(other.arguments):
            return False
        for a, b in zip(self.arguments, other.arguments, strict=True):
            if isinstance(a, Part) and isinstance(b, Part):
                if not a.differs_in_rows_alone(b, rows):
                    return False
            elif type(a) is not type(b) or (a is not b if isinstance(a, torch.Tensor) else a != b):
                return False
        return True


@dataclass(frozen=True)
class Seen:
    """The watched behaviour of an op.

    Attributes:
        results: the properties of its results.
        is_single: whether it returned one, not several.
        launch: its launch; None unless it was one kernel's, on the chunks' rows.
    """

    results: tuple[Like, ...]
    is_single: bool
    launch: Launch | None


class Op:
    """An op with its options, called on chunks.

    Args:
        fn: the op, perhaps in functools.partial.
        call: from chunks to its results, checked, and whether it returned one, not several.
        state: other facts that affect its behaviour, told apart by their text.
        is_known: whether `fn` is diglot's. Only those behave the same for the same arguments.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        call: Callable[..., tuple[tuple[torch.Tensor, ...], bool]],
        state: object,
        is_known: bool = True,
    ) -> None:
        self._call = call
        options: list[Any] = []
        while isinstance(fn, functools.partial):
            options += [*fn.args, len(fn.args), *fn.keywords, *fn.keywords.values(), None]
            fn = fn.func
        self._constants = {id(of): of for of in options if isinstance(of, torch.Tensor)}
        # Other objects may change between calls.
        known = (bool, int, float, str, type(None))
        self._key: tuple[Any, ...] | None = None
        if is_known and all(type(of) in known for of in options):
            self._key = (fn, repr(state), *((type(of), repr(of)) for of in options))

    def look(
        self,
        like: Sequence[Like],
        device: torch.device,
        watch: Callable[[], Seen],
    ) -> Seen:
        """Its behaviour on such chunks: remembered, or watched now.

        Args:
            like: the properties of the chunks.
            device: where they are.
            watch: makes such chunks, and calls `watch` with them in the context that the op's call
                needs.
        """
        if self._key is None:
            return watch()
        # The default dtype decides the type of integers with a float.
        key = (self._key, tuple(like), device, torch.get_default_dtype())
        seen = _remembered.get(key)
        if seen is None:
            seen = watch()
            if len(_remembered) >= MOST_REMEMBERED:
                _remembered.clear()
            _remembered[key] = seen
        return seen

    def watch(self, chunks: list[torch.Tensor]) -> Seen:
        """Watches its behaviour by calling it."""
        runs: list[tuple[LastRun, tuple[Any, ...]]] = []
        thread = threading.get_ident()

        def observe(run: LastRun, arguments: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                runs.append((run, arguments))

        with observe_runs(observe):
            results, is_single = self._call(*chunks)
        launch = None
        if len(runs) == 1 and runs[0][0].backend in ("cuda", "triton"):
            launch = self._launch(*runs[0], [*chunks, *results])
        like = tuple(Like(result.shape, result.dtype) for result in results)
        return Seen(like, is_single, launch)

    def _launch(
        self, run: LastRun, given: tuple[Any, ...], arrays: list[torch.Tensor]
    ) -> Launch | None:
        arguments: list[Any] = []
        for argument in given:
            if isinstance(argument, torch.Tensor) and id(argument) not in self._constants:
                places = [i for i, array in enumerate(arrays) if is_all_of(argument, array)]
                if not places:
                    return None
                arguments.append(Part(places[0], tuple(argument.shape)))
            else:
                arguments.append(argument)
        return Launch(run.backend, run.op, run.launcher, tuple(arguments))


_remembered: dict[tuple[Any, ...], Seen] = {}


def is_random(fn: Any) -> bool:
    """Whether an op draws random numbers, so that its chunks differ."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return "generator" in fn.__code__.co_varnames


def op_of(fn: Any) -> str | None:
    """The name of the op of diglot that `fn` is, with or without functools.partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if name in ops.__all__ and getattr(ops, name) is fn else None


def is_all_of(argument: torch.Tensor, array: torch.Tensor) -> bool:
    """Whether an argument is a whole chunk, as it lies in memory, in any shape."""
    return (
        argument.data_ptr() == array.data_ptr()
        and argument.numel() == array.numel()
        and argument.dtype == array.dtype
        and argument.is_contiguous()
        and array.is_contiguous()
    )
