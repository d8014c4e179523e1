"""Running a launcher, and the record of what ran."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diglot.backends.registry import BACKENDS, cuda_module, is_interpreted


@dataclass(frozen=True)
class LastRun:
    """What ran: an op's launcher, on a backend, by a kernel variant.

    Attributes:
        op: the op's name, such as "gelu".
        launcher: the direction, such as "gelu_forward".
        backend: "cuda", "triton" or "torch".
        variant: the kernel variant that the launcher chose.
        interpreted: whether an interpreter ran it, not a GPU.
    """

    op: str
    launcher: str
    backend: str
    variant: str
    interpreted: bool


CPU = torch.device("cpu")
MARK = "diglot::"  # how labels of `mark_runs` begin


class _Thread(threading.local):
    last: tuple[str, str, str, str | None] | None = None


_thread = _Thread()
_launchers: dict[tuple[str, str], Callable[..., str | None]] = {}
# Called on the thread of each run, after it, with the run and the launcher's arguments. Observers
# come and go while other threads run: a tuple stays as it is.
_observers: tuple[Callable[[LastRun, tuple[Any, ...]], None], ...] = ()
# What launchers run in. They are wrapped only while there is one: otherwise it costs nothing.
_marks: tuple[Callable[[str], AbstractContextManager[Any]], ...] = ()
_lock = threading.Lock()  # held by who changes either


def _find(backend: str, op: str, name: str) -> Callable[..., str | None]:
    return getattr(BACKENDS[backend].module(op), name)


def _load(backend: str, op: str, name: str) -> Callable[..., str | None]:
    launcher = _find(backend, op, name)
    if _marks:
        launcher = _marked(f"{MARK}{name}[{backend}]", launcher)
    _launchers[backend, name] = launcher
    return launcher


def _marked(label: str, launcher: Callable[..., str | None]) -> Callable[..., str | None]:
    def run_marked(*arguments: Any) -> str | None:
        with ExitStack() as stack:
            for mark in _marks:
                stack.enter_context(mark(label))
            return launcher(*arguments)

    return run_marked


def run(backend: str, op: str, name: str, *arguments: Any) -> None:
    """Calls launcher `name` of `op`. The last argument is the output.

    Tensors that are being traced go to the launcher's operator instead of its function, where the
    two differ (`cuda`), so that a compiled graph holds a call of it.
    """
    out = arguments[-1]
    if type(out) is not Tensor:
        _run_traced(backend, op, name, arguments)
        return
    launcher = _launchers.get((backend, name)) or _load(backend, op, name)
    variant = launcher(*arguments)
    _thread.last = (op, name, backend, variant)
    if _observers:
        record = last_run()
        assert record is not None
        for observer in _observers:
            observer(record, arguments)


def _run_traced(backend: str, op: str, name: str, arguments: tuple[Any, ...]) -> None:
    if backend != "cuda":
        _find(backend, op, name)(*arguments)
        return
    flattened: list[Any] = []
    for argument in arguments:
        # Schemas have no exact number: one travels as a float and as an integer.
        if isinstance(argument, int):
            flattened += [float(argument), wrap_to_64_bits(argument)]
        elif isinstance(argument, float):
            flattened += [argument, 0]
        else:
            flattened.append(argument)
    getattr(torch.ops.diglot_cuda, name)(*flattened)


def wrap_to_64_bits(value: int) -> int:
    """The two's complement 64-bit integer congruent to `value`."""
    return (int(value) + 2**63) % 2**64 - 2**63


def note_run(op: str, name: str, backend: str, variant: str) -> None:
    """Records that a launcher ran, and which variant, where it was not called by `run`."""
    _thread.last = (op, name, backend, variant)


def last_run() -> LastRun | None:
    """What ran last on this thread in eager mode; None if nothing has.

    Compiled graphs call kernels without passing here, and change nothing of it. Autograd runs
    backward passes of CUDA tensors on threads of its own: `record_runs` sees those.
    """
    if _thread.last is None:
        return None
    op, name, backend, variant = _thread.last
    if variant is None:
        # CUDA's launchers return no name, which would cost every call; the library keeps that of
        # this thread's last call from Python, and neither a compiled graph's nor one that failed
        # changes it.
        module, _ = cuda_module()
        variant = module.last_variant() if module is not None else ""
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
    """Context manager: a list that every run, on any thread, is appended to."""
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
