"""Running a launcher, and the record of what ran."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diglot.backends.aligned_rows import on_aligned_rows, place, works_on_rows
from diglot.backends.choosing import INVARIANT, mode, record_choices
from diglot.backends.forks import renew_in_children
from diglot.backends.plans import CALL, Plan, PlannedRun, Scratch, planning
from diglot.backends.registry import BACKENDS, is_interpreted
from diglot.backends.scratch import provide
from diglot.backends.tunables import on_change
from diglot.instruments import instrument


@dataclass(frozen=True)
class LastRun:
    """A run: an op's launcher, on a backend, by a kernel variant.

    Attributes:
        op: the op's name, such as "gelu".
        launcher: the direction, such as "gelu_forward".
        backend: "cuda", "triton" or "torch".
        variant: the name of the launcher's plan.
        interpreted: whether an interpreter ran it, not a GPU.
    """

    op: str
    launcher: str
    backend: str
    variant: str
    interpreted: bool


CPU = torch.device("cpu")
TUNES = os.environ.get("DIGLOT_TUNE") == "1"  # whether to measure a launch without measured plans
MARK = "diglot::"  # the beginning of labels of `mark_runs`


class _Thread(threading.local):
    last: tuple[str, str, str, str] | None = None


_thread = _Thread()
# A launcher returns its plan's variant; or, if it needs scratch and was given none, the `Scratch`.
Launcher = Callable[..., Any]
_launchers: dict[tuple[str, str], Launcher] = {}
# Called on the thread of each run, after it, with the run and the launcher's arguments. Observers
# come and go while other threads run: a tuple stays as it is.
_observers: tuple[Callable[[LastRun, tuple[Any, ...]], None], ...] = ()
# Contexts in which launchers run. Launchers are wrapped only while there are some, so that others
# cost nothing.
_marks: tuple[Callable[[str], AbstractContextManager[Any]], ...] = ()
_lock = threading.Lock()  # held while either changes
renew_in_children(globals(), "_lock")


def _find(backend: str, op: str, name: str) -> Launcher:
    return getattr(BACKENDS[backend].module(op), name)


def _is_held(backend: str, name: str) -> bool:
    """Whether a launcher must sum all rows in one order."""
    return mode() == INVARIANT and backend != "torch" and works_on_rows(name)


@on_change
def _forget_launchers() -> None:
    with _lock:
        _launchers.clear()


def _load(backend: str, op: str, name: str) -> Launcher:
    launcher = _find(backend, op, name)
    with _lock:  # `mark_runs` or `use_plans` on another thread comes before or after all of it
        if _is_held(backend, name):
            launcher = on_aligned_rows(op, name, launcher)
        if _marks:
            launcher = _marked(f"{MARK}{name}[{backend}]", launcher)
        _launchers[backend, name] = launcher
    return launcher


def _marked(label: str, launcher: Launcher) -> Launcher:
    def run_marked(*arguments: Any) -> Any:
        with ExitStack() as stack:
            for mark in _marks:
                stack.enter_context(mark(label))
            return launcher(*arguments)

    return run_marked


def run(backend: str, op: str, name: str, *arguments: Any) -> None:
    """Calls launcher `name` of `op`, with the scratch that its plan needs.

    Args:
        backend: "cuda", "triton" or "torch".
        op, name: the op, and the launcher.
        arguments: the launcher's, without its scratch. The last one is an output.
    """
    out = arguments[-1]
    if planning.runs is not None:
        if _is_held(backend, name):
            arguments = place(op, name, arguments).arguments
        planned = plan(backend, op, name, *arguments)
        planning.runs.append(PlannedRun(op, name, backend, planned, arguments))
        return
    if type(out) is not Tensor:
        _run_traced(backend, op, name, arguments)
        return
    launcher = _launchers.get((backend, name)) or _load(backend, op, name)
    variant = launcher(*arguments, None)
    if type(variant) is not str:  # nothing was launched: scratch is needed
        variant = launcher(*arguments, provide(Scratch(*variant), out.device))
    _thread.last = (op, name, backend, variant)
    if _observers:
        record = LastRun(op, name, backend, variant, is_interpreted(backend, CPU))
        for observer in _observers:
            observer(record, arguments)


def _tune_if_new(record: LastRun, arguments: tuple[Any, ...]) -> None:
    instrument("tune").tune_if_new(record, arguments)


if TUNES:
    _observers = (_tune_if_new,)


def plan(backend: str, op: str, name: str, *arguments: Any) -> Plan:
    """How launcher `name` of `op` would run. Nothing is launched.

    Within `plan_runs` it is planned for the device named there, and tensors may be on any device;
    else for the tensors' device.
    """
    with record_choices() as choices:
        made = BACKENDS[backend].plan(op, name, planning.device, arguments)
    return made._replace(choices=tuple(choices))


def _run_traced(backend: str, op: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Tensors are being traced: the graph gets the scratch's allocation, and the launch.

    Sizes are fixed, and no order of rows is held: otherwise an operator stays whole, and plans when
    it runs. The stream of the graph is unknown, so its launchers take only scratch of a call.
    """
    need = BACKENDS[backend].scratch(op, name, arguments)
    scratch = None
    if need is not None:
        if need.lifetime != CALL:
            raise RuntimeError(f"{op}: a compiled graph has no scratch of lifetime {need.lifetime}")
        scratch = provide(need, arguments[-1].device)
    if backend == "cuda":
        getattr(torch.ops.diglot_cuda, name)(*flatten(name, arguments), scratch)
    else:
        _find(backend, op, name)(*arguments, scratch)


def flatten(name: str, arguments: tuple[Any, ...]) -> list[Any]:
    """A CUDA launcher's arguments in the form that its operator takes.

    Schemas have no number that is an integer or a float: one travels as both, and the parameter
    after it is named `<name>_integer`.
    """
    parameters = [a.name for a in getattr(torch.ops.diglot_cuda, name).default._schema.arguments]
    flattened: list[Any] = []
    for argument in arguments:
        flattened.append(argument)
        place = len(flattened)
        if place < len(parameters) and parameters[place] == f"{parameters[place - 1]}_integer":
            is_integer = isinstance(argument, int)
            flattened[-1] = float(argument)
            flattened.append(wrap_to_64_bits(argument) if is_integer else 0)
    return flattened


def wrap_to_64_bits(value: int) -> int:
    """The two's complement 64-bit integer congruent to `value`."""
    return (int(value) + 2**63) % 2**64 - 2**63


def note_run(op: str, name: str, backend: str, variant: str) -> None:
    """Records that a launcher ran, and which variant, where it was not called by `run`."""
    _thread.last = (op, name, backend, variant)


def last_run() -> LastRun | None:
    """The last run on this thread in eager mode; None before the first.

    Compiled graphs call kernels directly, so they do not change it. Autograd runs backward passes
    of CUDA tensors on threads of its own: `record_runs` sees those.
    """
    if _thread.last is None:
        return None
    op, name, backend, variant = _thread.last
    # An interpreted backend takes no other tensors than interpreted ones.
    return LastRun(op, name, backend, variant, is_interpreted(backend, CPU))


@contextmanager
def observe_runs(observer: Callable[[LastRun, tuple[Any, ...]], None]) -> Iterator[None]:
    """Context manager: a function is told of every run, on any thread, and its arguments."""
    global _observers
    with _lock:
        _observers = (*_observers, observer)
    try:
        yield
    finally:
        with _lock:
            _observers = tuple(other for other in _observers if other is not observer)


@contextmanager
def record_runs() -> Iterator[list[LastRun]]:
    """Context manager: gives a list, to which every run on any thread is appended."""
    recording: list[LastRun] = []
    with observe_runs(lambda record, _: recording.append(record)):
        yield recording


@contextmanager
def mark_runs(mark: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Context manager: every launcher, on any thread, runs inside a context that `mark` makes.

    Args:
        mark: from a label, such as "diglot::gelu_forward[cuda]", a context manager.
    """
    global _marks
    with _lock:
        _marks = (*_marks, mark)
        _launchers.clear()
    try:
        yield
    finally:
        with _lock:
            _marks = tuple(other for other in _marks if other is not mark)
            _launchers.clear()
