"""Which backend runs a call: argument, then `use_backend`, then `DIGLOT_BACKEND`, then "auto"."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.compiler import is_compiling

from diglot.backends.registry import BACKENDS, is_interpreted

AUTO = "auto"

# The order in which "auto" tries backends. Data, per op where a measurement speaks for another
# order than the usual one.
DEFAULT_ORDER = ("cuda", "triton", "torch")
ORDER: dict[str, tuple[str, ...]] = {}


class BackendUnavailable(RuntimeError):
    """The backend asked for cannot run this call. The message gives a reason per backend."""


class _Scope(threading.local):
    # Not an attribute of the class: Dynamo (PyTorch 2.11) would take that for the thread's own.
    def __init__(self) -> None:
        self.backend: str | None = None


# Plain attributes of a module's objects, so that torch.compile guards them.
_scope = _Scope()
_environment = os.environ.get("DIGLOT_BACKEND", "").strip() or AUTO
_chosen: dict[tuple[str, str, torch.device], str] = {}


def check_name(backend: str, source: str = "backend") -> None:
    """Raises ValueError unless `backend` names a backend or is "auto"."""
    if not isinstance(backend, str) or (backend != AUTO and backend not in BACKENDS):
        allowed = ", ".join(repr(name) for name in (*BACKENDS, AUTO))
        raise ValueError(f"{source} must be one of {allowed}, not {backend!r}")


class use_backend:
    """Context manager: ops called in its scope, on this thread, run on `backend`.

    Args:
        backend: "cuda", "triton", "torch" or "auto". An argument `backend=` of a call overrides it.

    Raises:
        ValueError: `backend` names no backend.
    """

    def __init__(self, backend: str) -> None:
        check_name(backend)
        self.backend = backend
        self.previous: list[str | None] = []

    def __enter__(self) -> None:
        self.previous.append(_scope.backend)
        _scope.backend = self.backend

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _scope.backend = self.previous.pop()


def scoped_backend() -> str | None:
    """What `use_backend` says on this thread; None if this is in no scope of it."""
    return _scope.backend


def choose(op: str, device: torch.device, backend: str | None) -> str:
    """The backend that runs `op` on tensors of `device`.

    Raises:
        ValueError: an unknown name.
        BackendUnavailable: the backend asked for cannot run there.
    """
    name = backend if backend is not None else _scope.backend or _environment
    if is_compiling():
        return _resolve(op, device, name)
    try:
        chosen = _chosen.get((name, op, device))
    except TypeError:  # a list, say, has no hash
        chosen = None
    if chosen is None:
        chosen = _chosen[name, op, device] = _resolve(op, device, name)
    return chosen


@torch.compiler.assume_constant_result
def _resolve(op: str, device: torch.device, name: str) -> str:
    check_name(name, "DIGLOT_BACKEND" if name == _environment else "backend")
    chosen = _choice(op, device, name)
    if chosen is None:
        raise BackendUnavailable(f"{op}: backend {name!r} cannot run.\n{explain(op, device)}")
    return chosen


def _choice(op: str, device: torch.device, name: str) -> str | None:
    """The backend that `name` stands for there, or None if it cannot run."""
    if name != AUTO:
        return name if _refusal(name, device) is None else None
    if device.type == "meta":
        return "torch"
    return next(b for b in ORDER.get(op, DEFAULT_ORDER) if _auto_refusal(b, device) is None)


def _refusal(backend: str, device: torch.device) -> str | None:
    if device.type == "meta":  # nothing will run
        return None
    return BACKENDS[backend].refusal(device)


def _auto_refusal(backend: str, device: torch.device) -> str | None:
    if is_interpreted(backend, device):
        return "it would be interpreted, which 'auto' never chooses"
    return _refusal(backend, device)


@dataclass(frozen=True)
class Explanation:
    """Why a backend is chosen for an op on a device, and why the others are not.

    Attributes:
        op: the op's name.
        device: the device asked about.
        chosen: the backend that runs, or None if the one asked for cannot.
        reasons: for every backend, why it cannot run; None if it can.
        notes: remarks on backends that can run.
    """

    op: str
    device: torch.device
    chosen: str | None
    reasons: dict[str, str | None]
    notes: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}:"]
        for name, reason in self.reasons.items():
            verdict = "can run" if reason is None else f"cannot run: {reason}"
            note = f" ({self.notes[name]})" if name in self.notes else ""
            mark = "->" if name == self.chosen else "  "
            lines.append(f"{mark} {name}: {verdict}{note}")
        return "\n".join(lines)


def _device_of(where: Any) -> torch.device:
    if isinstance(where, torch.Tensor):
        return where.device
    if where is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(where)


def explain(op: str | Any, input: torch.Tensor | torch.device | str | None = None) -> Explanation:
    """Every backend's verdict on running an op.

    Args:
        op: an op's name, or the op itself (`diglot.gelu`).
        input: a tensor, or a device; the first GPU if there is one, else the CPU, by default.

    Returns:
        An `Explanation`; printed, it has a line per backend.
    """
    name = op if isinstance(op, str) else op.__name__
    device = _device_of(input)
    wanted = _scope.backend or _environment
    check_name(wanted, "DIGLOT_BACKEND")
    reasons = {backend: _refusal(backend, device) for backend in BACKENDS}
    notes = {
        backend: "interpreted; never chosen by 'auto'"
        for backend, reason in reasons.items()
        if reason is None and is_interpreted(backend, device)
    }
    if device.type == "meta":
        notes = dict.fromkeys(BACKENDS, "on meta tensors nothing runs")
    return Explanation(name, device, _choice(name, device, wanted), reasons, notes)


def available_backends(device: torch.device | str | None = None) -> tuple[str, ...]:
    """Names of the backends that can run on a device.

    Args:
        device: the device; the first GPU if there is one, else the CPU, by default.
    """
    where = _device_of(device)
    return tuple(backend for backend in BACKENDS if _refusal(backend, where) is None)
