"""Tunables: measured numbers that planners use to choose. They are data by GPU, which both
languages read.

They lie in `configs/tunables/`: `default.json` has every tunable, and `<gpu>.json` the numbers that
differ on a GPU. A number's full name is its place: "norm_backward.cuda.groups.64" is entry 64 of
the table `groups` of the family `norm_backward` in CUDA C++.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import resources
from typing import TYPE_CHECKING, Any

from diglot.backends.forks import renew_in_children
from diglot.backends.scopes import scoped
from diglot.backends.tunable_files import NEVER, Spec, TunableError, read_default, read_gpu

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

DEFAULT = "default"
MOST_LETTERS = 100  # of a GPU in a file's name
# The change of `hold_order`: plans are made for many rows.
PLANNED = {"rows.both.planned_rows": 1 << 16}


def short_name(name: str) -> str:
    """A GPU's name as a part of a file's: "NVIDIA H200" gives "h200". CUDA's names may be longer
    than a file's.
    """
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    left_out = {"nvidia", "geforce", "tesla", "quadro", "gpu"}
    return "-".join(word for word in words if word not in left_out)[:MOST_LETTERS] or "unknown"


class Tunables:
    """The values of all tunables for a GPU; nothing changes them.

    Attributes:
        gpu: the short name of the GPU whose file has them, or "default".
        values: by full name.
    """

    __slots__ = ("_tables", "gpu", "values")

    def __init__(self, gpu: str, values: Mapping[str, int], specs: Mapping[str, Spec]) -> None:
        self.gpu = gpu
        self.values = dict(values)
        tree: dict[str, Any] = {}
        for name, value in values.items():
            top = specs[name].tunable
            *tables, last = [top, *name.removeprefix(top).split(".")[1:]]
            level = tree
            for key in tables:
                level = level.setdefault(key, {})
            level[last] = value
        self._tables = {name: _with_bounds(name, entry) for name, entry in tree.items()}

    def read(self, name: str, *keys: int) -> Any:
        """A number, or a record's numbers by the names of its fields.

        Args:
            name: the tunable's, such as "rows.triton.warps".
            keys: one for each level of a table: its entry is the first whose key is not less.
        """
        top, entry = name, self._tables[name]
        for key in keys:
            found = next((pair for bound, pair in entry if key <= bound), None)
            if found is None:
                raise TunableError(f"the tunable {name} has no entry for {key}")
            name, entry = found
        if _thread.chosen:
            entry = _with_chosen(top, entry, _thread.chosen)
        if _thread.names is not None:
            each = entry if isinstance(entry, dict) else {"": entry}
            for field, value in each.items():
                _thread.names[f"{name}.{field}" if field else name] = value
        return entry

    def keys(self, name: str) -> list[int]:
        """The keys of a table, in ascending order."""
        return [key for key, _ in self._tables[name]]

    def of_language(self, language: str) -> tuple[tuple[str, int], ...]:
        """The names and values that a language's planners read."""
        kinds = (language, "both")
        return tuple([pair for pair in self.values.items() if pair[0].split(".")[1] in kinds])


def _with_bounds(name: str, entry: Any) -> Any:
    """A table as pairs of a bound and (its entry's full name, the entry); others as they are."""
    if not isinstance(entry, dict) or not all(key == "more" or key.isdigit() for key in entry):
        return entry
    pairs = []
    for key, inner in entry.items():
        full = f"{name}.{key}"
        bound = NEVER if key == "more" else int(key)
        pairs.append((bound, (full, _with_bounds(full, inner))))
    return sorted(pairs, key=lambda pair: pair[0])


def _with_chosen(name: str, entry: Any, chosen: Mapping[str, int]) -> Any:
    """An entry of a tunable, with chosen numbers in place of its own."""
    if isinstance(entry, dict):
        return {field: chosen.get(f"{name}.{field}", value) for field, value in entry.items()}
    return chosen.get(name, entry)


class _Thread(threading.local):
    names: dict[str, int] | None = None  # the numbers that were read, while they are recorded
    chosen: Mapping[str, int] | None = None  # for the plan that is being made


_thread = _Thread()


def record_reads() -> AbstractContextManager[dict[str, int]]:
    """Context manager: the numbers that this thread reads in it, by full name."""
    return scoped(_thread, "names", {})


def chosen_numbers() -> AbstractContextManager[None]:
    """Context manager: numbers from this thread's `take_numbers` hold only within it."""
    return scoped(_thread, "chosen", None)


def take_numbers(numbers: Mapping[str, int]) -> None:
    """Makes this thread read these numbers in place of a GPU's, for every entry of a table.

    Args:
        numbers: by the names of tunables, with a field where one has records. Numbers that
            `use_tunables` changes keep its values.
    """
    _thread.chosen = {name: n for name, n in numbers.items() if not is_overridden(name)}


def named_numbers(name: str) -> list[str]:
    """The full names of the numbers of a tunable, or of a field of it.

    Raises:
        ValueError: no tunable has the name.
    """
    found = [full for full, spec in specs().items() if generic_name(full, spec) == name]
    if not found:
        raise TunableError(f"there is no tunable {name}")
    return found


def generic_name(full: str, spec: Spec) -> str:
    """The tunable of a number, with its field where that has records: its name without keys."""
    last = full.rpartition(".")[2]
    has_field = full != spec.tunable and not (last.isdigit() or last == "more")
    return f"{spec.tunable}.{last}" if has_field else spec.tunable


def is_overridden(name: str) -> bool:
    """Whether `use_tunables` changes a number of a tunable."""
    return any(
        generic_name(full, specs()[full]) == name for changed in _overrides for full in changed
    )


_lock = threading.RLock()
_overrides: list[Mapping[str, int]] = []
_held: dict[str, int] = {}  # by `hold_order`
_kept: dict[str, Tunables] = {}
_on_change: list[Callable[[], None]] = []
renew_in_children(globals(), "_lock", threading.RLock)


def _folder() -> Traversable:
    return resources.files("diglot.configs") / "tunables"


@functools.cache
def specs() -> dict[str, Spec]:
    """The entries of default.json, by each number's full name."""
    return read_default(_folder() / f"{DEFAULT}.json")


def tunables(gpu: str = "") -> Tunables:
    """The tunables of a GPU, given its name or its short name; an unknown GPU gets the default
    ones.
    """
    known = _kept.get(gpu)
    if known is not None:
        return known
    with _lock:
        name, every = short_name(gpu), specs()
        file = _folder() / f"{name}.json"
        is_known = name != DEFAULT and file.is_file() and not _held
        values = {full: spec.value for full, spec in every.items()} | _held
        if is_known:
            values |= read_gpu(file, every)
        for changed in _overrides:
            values |= changed
        made = Tunables(name if is_known else DEFAULT, values, every)
        _kept[gpu] = made
        return made


def on_change(forget: Callable[[], None]) -> Callable[[], None]:
    """Decorator: registers a function to call when values change, so that old plans go."""
    _on_change.append(forget)
    return forget


def forget_plans() -> None:
    """Drops every kept plan."""
    for forget in _on_change:
        forget()


def hold_order(is_held: bool) -> None:
    """Makes planners read numbers that depend neither on the GPU nor on the number of rows.

    Every kept plan is dropped.
    """
    global _held
    with _lock:
        if is_held != bool(_held):
            _held = PLANNED if is_held else {}
            _kept.clear()
        forget_plans()


def _change() -> None:
    _kept.clear()
    forget_plans()


def find_numbers(name: str) -> list[str]:
    """The full names of the numbers that a name stands for.

    The name of a number, or the beginning of one: a table's name stands for all its entries. Each
    part may have wildcards, such as "norm_forward.triton.held.*.*.*.*.warps".
    """
    parts = name.split(".")
    found = [
        full
        for full in specs()
        if len(full.split(".")) >= len(parts)
        and all(map(fnmatch.fnmatchcase, full.split("."), parts))
    ]
    if not found:
        raise TunableError(f"there is no tunable {name}")
    return found


@contextlib.contextmanager
def use_tunables(overrides: Mapping[str, int | str]) -> Iterator[None]:
    """Context manager: changes some numbers, for every GPU, in both languages.

    It changes them in the whole process; other threads should launch nothing meanwhile. Kept plans
    are dropped when the context begins and when it ends. A captured graph keeps its launches. A
    graph of torch.compile must run under the numbers that it was compiled with: CUDA C++ plans when
    it runs, with scratch that was sized when it was traced.

    Args:
        overrides: numbers by name, as `find_numbers` takes it; "never" is a threshold that nothing
            exceeds. In nested contexts the inner one wins.

    Raises:
        ValueError: there is no such tunable, or its number is out of range.
    """
    changed: dict[str, int] = {}
    for name, value in overrides.items():
        for full in find_numbers(name):
            changed[full] = specs()[full].check(value, f"use_tunables: {full}")
    try:
        with _lock:
            _overrides.append(changed)
            _change()
        yield
    finally:
        with _lock:
            for place, other in enumerate(_overrides):
                if other is changed:
                    del _overrides[place]
                    break
            _change()
