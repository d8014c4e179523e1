"""The outcome of `diglot.patch`: a table of it, and its undoing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from torch.nn import Module

SHOWN = 2  # names of modules in a line of the table


@dataclass(frozen=True)
class Replaced:
    """A module that runs an op of diglot now.

    Attributes:
        names: of the module in the model; several if it is shared, "" for the model itself.
        original: the name of its class before.
        kind: the op, such as "rms_norm".
        note: a difference; "" without one.
    """

    names: tuple[str, ...]
    original: str
    kind: str
    note: str


@dataclass(frozen=True)
class LeftAlone:
    """A module that might have been replaced, and why it was not.

    Attributes:
        names: of the module in the model; several if it is shared, "" for the model itself.
        original: the name of its class.
        reason: why.
    """

    names: tuple[str, ...]
    original: str
    reason: str


class Change(NamedTuple):
    """A module, its old class, and its new one."""

    module: Module
    before: type[Module]
    after: type[Module]


def restore(changes: Sequence[Change]) -> None:
    """Gives modules their old classes back."""
    for each in changes:
        each.module.__class__ = each.before
        vars(each.module).pop("backend", None)


class Patch:
    """The outcome of `diglot.patch`. `print` shows a table; as a context manager it undoes the
    patch.

    Attributes:
        replaced: the modules that run an op of diglot now.
        left_alone: modules that might run one, and why they do not. Modules of other kinds, such as
            `torch.nn.Linear`, are not mentioned.
    """

    def __init__(
        self,
        replaced: Sequence[Replaced],
        left_alone: Sequence[LeftAlone],
        changes: Sequence[Change],
    ) -> None:
        self.replaced, self.left_alone = tuple(replaced), tuple(left_alone)
        self._changes = tuple(changes)

    def undo(self) -> None:
        """Gives every module its class back. Once undone, this does nothing.

        Raises:
            RuntimeError: something else has changed the class of a module since. Then nothing
                is undone.
        """
        for each in self._changes:
            if type(each.module) is not each.after:
                raise RuntimeError(
                    f"undo: a module that was made a {each.after.__name__} is a "
                    f"{type(each.module).__name__} now. Undo first what changed it, such as "
                    "fully_shard or a parametrization. Nothing was undone."
                )
        restore(self._changes)
        self._changes = ()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<Patch: {self._counts()}>"

    def __str__(self) -> str:
        done = [
            (each, f"{each.original} -> diglot.{each.kind}", each.note) for each in self.replaced
        ]
        left = [(each, f"{each.original} is left alone", each.reason) for each in self.left_alone]
        return "\n".join([self._counts(), *_table([*done, *left])])

    def _counts(self) -> str:
        count = len(self.replaced)
        return f"{count} module{'' if count == 1 else 's'} replaced, {len(self.left_alone)} not"


def _table(rows: list[tuple[Replaced | LeftAlone, str, str]]) -> Iterator[str]:
    """The table's lines. Modules with the same entry share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each, what, why in rows:
        groups.setdefault((what, why), []).append(
            " = ".join(n or "(the model)" for n in each.names)
        )
    for (what, why), names in groups.items():
        more = f", {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"{len(names):5}  {what}{': ' if why else ''}{why}"
        yield f"{'':7}{', '.join(names[:SHOWN])}{more}"
