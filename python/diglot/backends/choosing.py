"""The choice of numbers for a plan: measured ones, from the store, or the planner's own.

A planner describes its problem once (`Device.choose` in Triton, `Planner::choose` in C++). The
answer is kept with the plan, so a second call of a layout asks nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from diglot.backends import store
from diglot.backends.compiled_order import order, tell_compiler
from diglot.backends.forks import renew_in_children
from diglot.backends.scopes import scoped
from diglot.backends.store import Entry, Numbers, Problem, Store
from diglot.backends.tunables import (
    chosen_numbers,
    forget_plans,
    hold_order,
    is_overridden,
    short_name,
    take_numbers,
)
from diglot.names import suggestion

Made = TypeVar("Made")
MEASURED, MODEL, INVARIANT = "measured", "model", "invariant"
MODES = (MEASURED, MODEL, INVARIANT)


@dataclass(frozen=True)
class Choice:
    """How the numbers of a plan were chosen.

    Attributes:
        problem: the problem that the store was asked about.
        source: "exact": this problem was measured. "near": one of another shape was. "model": the
            planner decides, by facts of the device and the numbers of `configs/tunables`. "given":
            `use_plans` has them. "invariant": the planner has numbers that are the same for all
            GPUs.
        numbers: by the names of tunables; empty where the planner has its own.
        entry: the measured entry; of the model, the nearest one of its kind. None without one.
    """

    problem: Problem
    source: str
    numbers: Numbers
    entry: Entry | None

    def __str__(self) -> str:
        said = {
            "exact": "measured for this shape",
            "near": "measured for a near shape",
            "model": "by the planner's model",
            "given": "given by use_plans",
            "invariant": "the same for rows of this length everywhere",
        }[self.source]
        if self.entry is None:
            return said
        shape = "x".join(map(str, self.entry.problem.shape))
        if self.source == "model":
            return f"{said}: the nearest measured shape, {shape}, is too far"
        if self.source == "near":
            said += f", {shape}"
        best = store.plan_name(self.numbers)
        plans = sorted(self.entry.timings.items(), key=lambda pair: pair[1].us)
        told = [
            f"{'-> ' if name == best else ''}{name or 'own numbers'}: {timing.us:g} µs"
            for name, timing in plans
        ]
        return f"{said} ({'; '.join(told)})"


class _Thread(threading.local):
    name = ("", "")  # the op and the launcher that are being planned
    choices: list[Choice] | None = None
    has_own_numbers = False


_thread = _Thread()
_lock = threading.RLock()
renew_in_children(globals(), "_lock", threading.RLock)
_stores: dict[tuple[str, str], Store] = {}
_modes: list[str | Numbers] = []
_environment = os.environ.get("DIGLOT_PLANS", "").strip() or MEASURED
if _environment == INVARIANT:
    hold_order(True)
    tell_compiler(True)


class use_plans:
    """Context manager: decides how plans get their numbers, in the whole process.

    Kept plans are dropped when it begins and when it ends. Other threads should launch nothing
    meanwhile. A captured graph keeps its launches.

    Args:
        plans: "measured" takes measured plans where the store has a near shape; it is the default,
            unless the variable DIGLOT_PLANS says otherwise. "model" leaves the choice to the
            planner. "invariant" makes a row's result depend only on its values, length and dtype
            (docs/tuning.md). Or a dict of numbers by the names of tunables, such as
            {"rows.cuda.skipped_shapes": 1}, for every entry of a table.

    Raises:
        ValueError: the choice or the tunable does not exist, or its number is out of range.
    """

    def __init__(self, plans: str | Numbers) -> None:
        self.plans: str | Numbers
        if isinstance(plans, str):
            check_mode(plans, "use_plans")
            self.plans = plans
        else:
            self.plans = store.plan_numbers(store.plan_name(plans))

    def __enter__(self) -> None:
        with _lock:
            _modes.append(self.plans)
            _take_mode()

    def __exit__(self, *_: object) -> None:
        with _lock:
            place = max(i for i, mode in enumerate(_modes) if mode is self.plans)
            del _modes[place]
            _take_mode()


def mode() -> str | Numbers:
    """How plans are chosen now: by name, or with given numbers."""
    return (_environment, *_modes)[-1]


def _take_mode() -> None:
    """Drops kept plans, and applies the current way of choosing."""
    is_held = mode() == INVARIANT
    hold_order(is_held)
    if is_held != order.is_held:
        tell_compiler(is_held)


def check_mode(mode: str, source: str) -> None:
    """Raises ValueError unless there is such a way to choose."""
    if mode not in MODES:
        allowed, near = ", ".join(map(repr, MODES)), suggestion(mode, MODES)
        raise ValueError(f"{source} must be one of {allowed}, not {mode!r}{near}")


def choose(
    op: str,
    launcher: str,
    backend: str,
    gpu: str,
    dtypes: Iterable[str],
    layout: str,
    shape: Iterable[int],
) -> Choice:
    """The numbers for planning a problem on a GPU, given its short name or its full one."""
    op, launcher = store.KEPT_AS.get(op, (op, launcher))
    if op in store.EXACT_ONLY:
        dtypes = [store.TIMED_AS.get(dtype, dtype) for dtype in dtypes]
    problem = Problem(op, launcher, backend, tuple(dtypes), layout, tuple(shape))
    choice = _choose(problem, gpu)
    record(choice)
    return choice


def record(choice: Choice) -> None:
    """Tells a choice to all who record this thread's choices."""
    if _thread.choices is not None:
        _thread.choices.append(choice)


def _choose(problem: Problem, gpu: str) -> Choice:
    chosen = mode()
    if not isinstance(chosen, str):
        return Choice(problem, "given", chosen, None)
    check_mode(chosen, "DIGLOT_PLANS")
    if chosen == INVARIANT:
        return Choice(problem, INVARIANT, {}, None)
    if chosen == MODEL or not gpu or _thread.has_own_numbers:
        return Choice(problem, MODEL, {}, None)
    source, entry = store_of(problem.op, short_name(gpu)).find(problem)
    if entry is None or source == MODEL:
        return Choice(problem, MODEL, {}, entry)
    name = entry.best if source == "exact" else entry.best_nearby
    return Choice(problem, source, store.plan_numbers(name), entry)


def store_of(op: str, gpu: str) -> Store:
    """The measured plans of an op on a GPU, given its short name; read once."""
    known = _stores.get((op, gpu))
    if known is None:
        with _lock:
            known = _stores[op, gpu] = store.read_all(op, gpu)
    return known


def forget_stores() -> None:
    """Makes files be read again, as after tuning."""
    with _lock:
        _stores.clear()
    forget_plans()


def answer_cuda(
    op: str,
    launcher: str,
    gpu: str,
    dtypes: tuple[str, ...],
    layout: str,
    shape: tuple[int, ...],
) -> tuple[tuple[str, int], ...] | None:
    """The answer to C++ when it asks for a problem's numbers."""
    numbers = choose(op, launcher, "cuda", gpu, dtypes, layout, shape).numbers
    return tuple([pair for pair in numbers.items() if not is_overridden(pair[0])]) or None


@contextlib.contextmanager
def planning_of(op: str, launcher: str) -> Iterator[None]:
    """Context manager: this thread plans a launcher of Triton."""
    with scoped(_thread, "name", (op, launcher)), chosen_numbers():
        yield


def choose_here(gpu: str, dtypes: Iterable[str], layout: str, shape: Iterable[int]) -> None:
    """Chooses the numbers that the launcher which this thread plans reads from now on."""
    take_numbers(choose(*_thread.name, "triton", gpu, dtypes, layout, shape).numbers)


@contextlib.contextmanager
def record_choices() -> Iterator[list[Choice]]:
    """Context manager: the choices that this thread's planners make in it."""
    choices: list[Choice] = []
    try:
        with scoped(_thread, "choices", choices):
            yield choices
    finally:
        if _thread.choices is not None:  # others record them too
            _thread.choices += choices


def planned(make: Callable[[], Made], name: str) -> Made:
    """The result of `make`. If measured numbers fail, it uses the planner's own, with a warning."""
    with record_choices() as choices:
        try:
            return make()
        except Exception as error:
            if not any(choice.source in ("exact", "near") for choice in choices):
                raise
            choices.clear()
            warnings.warn(f"{name}: a measured plan does not fit: {error}", stacklevel=2)
    with scoped(_thread, "has_own_numbers", True):  # nothing measured is chosen
        return make()
