"""Which backend runs a call: argument, then `use_backend`, then `DIGLOT_BACKEND`, then "auto"."""

from __future__ import annotations

import importlib
import os
import threading
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from torch.compiler import is_compiling

from diglot.backends import needs
from diglot.backends.compiled_order import order
from diglot.backends.needs import Call
from diglot.backends.plans import Plan, plan_runs, planning
from diglot.backends.registry import BACKENDS, architecture_of, is_interpreted, supports
from diglot.names import suggestion, unknown_name

AUTO = "auto"  # tries the backends in the order of BACKENDS, or in the op's own


class BackendUnavailable(RuntimeError):
    """The requested backend cannot run this call. The message gives a reason per backend."""


class _Scope(threading.local):
    # Not an attribute of the class: Dynamo (PyTorch 2.11) would take it for the thread's own.
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
        near = suggestion(backend, (*BACKENDS, AUTO))
        raise ValueError(f"{source} must be one of {allowed}, not {backend!r}{near}")


class use_backend:
    """Context manager: ops that this thread calls in its scope run on `backend`.

    Args:
        backend: "cuda", "triton", "torch" or "auto". A call's argument `backend=` overrides it.

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
    """The backend of `use_backend` on this thread; None outside of its scopes."""
    return _scope.backend


def requested(backend: str | None) -> str:
    """The backend that a call asks for by its argument, its scope or the environment, or "auto"."""
    return backend if backend is not None else _scope.backend or _environment


def choose(
    op: str, device: torch.device, backend: str | None, *tensors: torch.Tensor | None
) -> str:
    """The backend that runs a call of `op`.

    Args:
        op: the op's name.
        device: where its tensors are.
        backend: the argument of the call.
        tensors: its tensor arguments; needed only for an op with `Needs` of dtypes or shapes.

    Raises:
        ValueError: the name is unknown.
        BackendUnavailable: the requested backend cannot run the call.
    """
    # As `requested`, whose call would take a tenth of this function.
    name = backend if backend is not None else _scope.backend or _environment
    chosen: str | None
    if is_compiling():
        chosen = _resolve(op, device, name, order.is_held)
    else:
        try:
            chosen = _chosen.get((name, op, device))
        except TypeError:  # a list, say, has no hash
            chosen = None
        if chosen is None:
            chosen = _resolve(op, device, name)
            if planning.runs is None:
                _chosen[name, op, device] = chosen
    if op in needs.per_call:
        chosen = _resolve_call(
            op, Call.from_tensors(device, architecture_of(device), tensors), name
        )
    return chosen


def _resolve(op: str, device: torch.device, name: str, is_held: bool = False) -> str:
    """The backend that `name` stands for on a device, as far as the device decides.

    `is_held` decides nothing here. Dynamo guards its arguments, and so compiles again in the mode
    that holds the order of rows.
    """
    check_name(name, "DIGLOT_BACKEND" if name == _environment else "backend")
    return _resolve_call(op, _call_on(device), name)


# torch.compiler.assume_constant_result sets this mark, but imports the compiler: 1.5 s.
_resolve._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _resolve_call(op: str, call: Call, name: str) -> str:
    chosen = _choice(op, call, name)
    if chosen is None:
        raise BackendUnavailable(f"{op}: backend {name!r} cannot run.\n{_explain(op, call, name)}")
    return chosen


def _call_on(device: torch.device) -> Call:
    return Call(device, architecture_of(device))


def _choice(op: str, call: Call, name: str) -> str | None:
    """The backend that `name` stands for, or None if it cannot run the call."""
    if name != AUTO:
        return name if _refusal(name, op, call) is None else None
    if call.device.type == "meta":
        return "torch"
    backends = needs.order_of(op) or BACKENDS
    return next((b for b in backends if _auto_refusal(b, op, call) is None), None)


def _refusal(backend: str, op: str, call: Call) -> str | None:
    if call.device.type == "meta" or planning.runs is not None:  # nothing will run
        return None
    return supports(backend, op, call)


def _auto_refusal(backend: str, op: str, call: Call) -> str | None:
    if is_interpreted(backend, call.device):
        return "it would be interpreted, and 'auto' never chooses that"
    return _refusal(backend, op, call)


@dataclass(frozen=True)
class Explanation:
    """Why a backend is chosen for an op on a device, and why the others are not.

    Attributes:
        op: the op's name.
        device: the device asked about.
        chosen: the backend that runs, or None if the requested one cannot.
        reasons: by backend, why it cannot run; None if it can.
        notes: remarks on backends that can run.
        plans: by backend, the plans of the call and how each was chosen, if the inputs make a call.
    """

    op: str
    device: torch.device
    chosen: str | None
    reasons: dict[str, str | None]
    notes: dict[str, str]
    plans: dict[str, tuple[Plan, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}:"]
        for name, reason in self.reasons.items():
            verdict = "can run" if reason is None else f"cannot run: {reason}"
            note = f" ({self.notes[name]})" if name in self.notes else ""
            mark = "->" if name == self.chosen else "  "
            lines.append(f"{mark} {name}: {verdict}{note}")
            for plan in self.plans.get(name, ()):
                chosen = "; ".join(map(str, plan.choices)) or "by the planner alone"
                lines.append(f"     {plan.variant}: {chosen}")
                lines += [f"       {order}" for order in plan.order]
        return "\n".join(lines)


def _device_of(where: Any) -> torch.device:
    if isinstance(where, torch.Tensor):
        return where.device
    if where is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(where)


def explain(op: str | Any, *inputs: Any, **options: Any) -> Explanation:
    """Every backend's verdict on running an op, and how its plan for a call is chosen.

    Args:
        op: an op's name, or the op itself (`diglot.gelu`).
        inputs: the arguments of a call, or a device. By default the first GPU, or the CPU without
            one.
        options: keyword arguments of the call.

    Returns:
        An `Explanation`. Printed, it has a line per backend, per plan of the call, and per launch.

    Raises:
        ValueError: there is no such op. The message suggests a near name.
    """
    name = op if isinstance(op, str) else op.__name__
    # Imported here, because the records import ops, which import this module.
    known = {*importlib.import_module("diglot.reference.specs").all_op_names(), *needs.ops()}
    if name not in known:
        raise unknown_name("op", name, sorted(known))
    device = _device_of(inputs[0] if inputs else None)
    tensors = tuple([each for each in inputs if isinstance(each, torch.Tensor)])
    wanted = _scope.backend or _environment
    check_name(wanted, "DIGLOT_BACKEND")
    said = _explain(name, Call.from_tensors(device, architecture_of(device), tensors), wanted)
    if not tensors or device.type == "meta":
        return said
    kernels = [b for b, reason in said.reasons.items() if reason is None and b != "torch"]
    return replace(said, plans={b: _plans_of(name, inputs, options, b) for b in kernels})


def explain_device(device: torch.device) -> Explanation:
    """Every backend's verdict on a device, for any op."""
    return _explain("", _call_on(device), _scope.backend or _environment)


def _plans_of(op: str, inputs: Any, options: Any, backend: str) -> tuple[Plan, ...]:
    """The plans of a call's launches; empty if the op does not take these arguments."""
    function: Any = getattr(importlib.import_module("diglot"), op, None)
    try:
        # An op may draw a seed.
        gpus = {i.device for i in inputs if isinstance(i, torch.Tensor) and i.is_cuda}
        with torch.random.fork_rng(gpus), plan_runs() as runs:
            function(*inputs, **{**options, "backend": backend})
    except (TypeError, ValueError, RuntimeError):
        return ()
    return tuple([run.plan for run in runs])


def _explain(op: str, call: Call, wanted: str) -> Explanation:
    reasons = {backend: _refusal(backend, op, call) for backend in BACKENDS}
    notes = {
        backend: "interpreted; never chosen by 'auto'"
        for backend, reason in reasons.items()
        if reason is None and is_interpreted(backend, call.device)
    }
    if call.device.type == "meta":
        notes = dict.fromkeys(BACKENDS, "nothing runs on meta tensors")
    return Explanation(op, call.device, _choice(op, call, wanted), reasons, notes)


def available_backends(device: torch.device | str | None = None) -> tuple[str, ...]:
    """Names of the backends that can run on a device.

    Args:
        device: by default the first GPU, or the CPU without one.
    """
    call = _call_on(_device_of(device))
    return tuple(backend for backend in BACKENDS if _refusal(backend, "", call) is None)
