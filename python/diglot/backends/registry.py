"""The backends: where the launchers of each are, and the reasons why it cannot run.

A launcher writes the result of one direction of one op into tensors that it is given. Every backend
has the same launchers with the same argument lists, in namespaces: `diglot._C`, or in its place the
same kernels compiled for the host, `diglot._interpreter`; `diglot.triton_ops`; `diglot.reference`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from diglot.backends.choosing import answer_cuda
from diglot.backends.needs import OLDEST_ARCHITECTURE, Call, needs_of
from diglot.backends.plans import Device, KernelLaunch, Plan, Scratch
from diglot.backends.tunables import on_change, short_name, tunables

INTERPRET = os.environ.get("DIGLOT_INTERPRET") == "1"
INTERPRETERS = {"cuda": "diglot's", "triton": "Triton's"}

# Reasons.
ON_CPU = "it takes CUDA tensors, and this one is on the CPU"
NO_EXTENSION = (
    "diglot was installed without its CUDA extension (no nvcc, or DIGLOT_SKIP_CUDA); "
    "in a clone, `make setup` builds it"
)
NO_INTERPRETER = "diglot was installed without its CUDA interpreter (no g++, or DIGLOT_SKIP_CUDA=1)"


@dataclass(frozen=True)
class Backend:
    """One way of running ops.

    `module(op)` is the namespace of an op's launchers. `refusal(device)` says why no op can run on
    tensors of that device, or is None. `plan(op, launcher, device, arguments)` is a launcher's plan
    for a named device, or for that of its tensors. `scratch(op, launcher, arguments)` is the
    scratch that a compiled graph gives the launcher, wherever its tensors' memory begins.
    """

    name: str
    module: Callable[[str], ModuleType]
    refusal: Callable[[torch.device], str | None]
    plan: Callable[[str, str, Device | None, tuple[Any, ...]], Plan]
    scratch: Callable[[str, str, tuple[Any, ...]], Scratch | None]


def _load(name: str, what: str, absent: str) -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError:
        return None, absent
    except ImportError as error:
        return None, f"the CUDA {what} does not load: {error}"


@functools.cache
def load_extension() -> tuple[ModuleType | None, str]:
    """The CUDA extension, or why it did not load."""
    return _with_tunables(*_load("diglot._C", "extension", NO_EXTENSION))


@functools.cache
def load_interpreter() -> tuple[ModuleType | None, str]:
    """The CUDA kernels compiled for the host, or why they did not load."""
    return _with_tunables(*_load("diglot._interpreter", "interpreter", NO_INTERPRETER))


# By a device's index, the GPU whose tunables a library has for it; -1 stands for other devices.
_gpus: dict[ModuleType, dict[int, str]] = {}


def _with_tunables(module: ModuleType | None, reason: str) -> tuple[ModuleType | None, str]:
    if module is not None:
        _set_tunables(module, -1, "")
        module.set_chooser(answer_cuda)
    return module, reason


def _set_tunables(module: ModuleType, device: int, gpu: str) -> None:
    """Hands a library of CUDA's kernels the tunables of a device, unless it has them."""
    known = _gpus.setdefault(module, {})
    if known.get(device) != gpu:
        module.set_tunables(device, *_numbers_of(gpu))
        known[device] = gpu


def _numbers_of(gpu: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """The numbers that CUDA's planners read on a GPU, and its short name; "" without a GPU."""
    return tunables(gpu).of_language("cuda"), short_name(gpu) if gpu else ""


@on_change
def _update_tunables() -> None:
    for module, gpus in list(_gpus.items()):
        for device, gpu in list(gpus.items()):
            module.set_tunables(device, *_numbers_of(gpu))


def has_interpreter() -> bool:
    """Whether the CUDA kernels were compiled for the host; nothing is loaded to tell."""
    return importlib.util.find_spec("diglot._interpreter") is not None


@functools.cache
def load_triton() -> tuple[ModuleType | None, str]:
    """Triton, or why it does not import."""
    try:
        return importlib.import_module("triton"), ""
    except ImportError as error:
        return None, f"Triton does not import: {error}"


def triton_interprets() -> bool:
    """Whether Triton interprets the kernels of this process. It has its own variable for that."""
    return importlib.import_module("diglot.triton_ops.lib.types").INTERPRETED


def cuda_module() -> tuple[ModuleType | None, str]:
    """The module of CUDA's launchers in this process, or the reason why it is missing."""
    return load_interpreter() if INTERPRET else load_extension()


def _cuda_module(op: str) -> ModuleType:
    module, reason = cuda_module()
    if module is None:
        raise RuntimeError(reason)
    return module


def _plan_cuda(op: str, launcher: str, device: Device | None, arguments: tuple[Any, ...]) -> Plan:
    # The extension plans for a device that is only named, even in a process that interprets.
    module, reason = load_extension() if device is not None else cuda_module()
    if module is None:
        raise RuntimeError(reason)
    facts = None
    if device is not None:
        facts = (*device[:4], *_numbers_of(Device(*device).name))
    with contextlib.nullcontext() if device is not None else _planned_on(arguments[-1].device):
        variant, launches, scratch, decided = module.plan(launcher, facts, *arguments)
    return Plan(
        variant,
        tuple([KernelLaunch(*launch) for launch in launches]),
        None if scratch is None else Scratch(*scratch),
        tuple(decided),
    )


def _scratch_of_cuda(op: str, launcher: str, arguments: tuple[Any, ...]) -> Scratch | None:
    with _planned_on(arguments[-1].device):
        scratch = _cuda_module(op).scratch_of(launcher, *arguments)
    return None if scratch is None else Scratch(*scratch)


@contextlib.contextmanager
def _planned_on(device: torch.device) -> Iterator[None]:
    """Makes a tensor's GPU the current device, whose tunables the library knows."""
    if device.type != "cuda" or not torch.cuda.is_available():
        yield
        return
    module, _ = load_extension()
    index = torch.cuda.current_device() if device.index is None else device.index
    if module is not None:
        _set_tunables(module, index, torch.cuda.get_device_name(index))
    with torch.cuda.device(index):
        yield


def _plan_triton(op: str, launcher: str, device: Device | None, arguments: tuple[Any, ...]) -> Plan:
    plan = importlib.import_module("diglot.triton_ops.launch.launch").plan
    module = importlib.import_module(f"diglot.triton_ops.{op}")
    return plan(getattr(module, launcher), device, *arguments)


def _scratch_of_triton(op: str, launcher: str, arguments: tuple[Any, ...]) -> Scratch | None:
    return _plan_triton(op, launcher, None, arguments).scratch  # a traced plan has no addresses


def _plan_torch(op: str, launcher: str, device: Device | None, arguments: tuple[Any, ...]) -> Plan:
    return Plan("torch", (), None)


def _gpu_refusal(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it takes CUDA tensors, and this one is on {device.type}"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA GPU"
    architecture = architecture_of(device)
    if architecture is not None and architecture < OLDEST_ARCHITECTURE:
        name = torch.cuda.get_device_name(device)
        return f"{name} is sm_{architecture}; the oldest that can run is sm_{OLDEST_ARCHITECTURE}"
    return None


def _interpreted_refusal(device: torch.device) -> str | None:
    if device.type == "cpu":
        return None
    return "DIGLOT_INTERPRET=1 is set, and interpreted kernels take CPU tensors"


def _could_interpret(backend: str) -> str:
    return (
        f"{ON_CPU}; with DIGLOT_INTERPRET=1 set before diglot is imported, "
        f"{INTERPRETERS[backend]} interpreter runs it there"
    )


def _cuda_refusal(device: torch.device) -> str | None:
    if INTERPRET:
        return _interpreted_refusal(device) or load_interpreter()[1] or None
    if device.type == "cpu":
        return _could_interpret("cuda") if has_interpreter() else f"{ON_CPU}; {NO_INTERPRETER}"
    module, reason = load_extension()
    if module is None:
        return reason
    refusal = _gpu_refusal(device)
    if refusal is not None:
        return refusal
    needed, found = module.cuda_version // 1000, module.driver_version() // 1000
    if found < needed:
        return (
            f"the extension was built with CUDA {needed}, and the driver supports up to {found}: "
            "update the driver, or build diglot with an older toolkit"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        module.check_device(index)
    except RuntimeError as error:
        return f"{error}; the extension was built for {module.architectures}"
    _set_tunables(module, index, torch.cuda.get_device_name(index))
    return None


def _triton_refusal(device: torch.device) -> str | None:
    module, reason = load_triton()
    if module is None:
        return reason
    if triton_interprets() != INTERPRET:
        return (
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET', '')} contradicts "
            f"DIGLOT_INTERPRET, which is {'1' if INTERPRET else 'not 1'}: leave the former unset, "
            "and diglot sets it"
        )
    if INTERPRET:
        return _interpreted_refusal(device)
    return _could_interpret("triton") if device.type == "cpu" else _gpu_refusal(device)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("cuda", _cuda_module, _cuda_refusal, _plan_cuda, _scratch_of_cuda),
        Backend(
            "triton",
            lambda op: importlib.import_module(f"diglot.triton_ops.{op}"),
            _triton_refusal,
            _plan_triton,
            _scratch_of_triton,
        ),
        Backend(
            "torch",
            lambda op: importlib.import_module(f"diglot.reference.{op}"),
            lambda device: None,
            _plan_torch,
            lambda op, launcher, arguments: None,
        ),
    )
}


def architecture_of(device: torch.device) -> int | None:
    """Ten times a GPU's compute capability, such as 90; None for a device that is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def supports(backend: str, op: str, call: Call) -> str | None:
    """Why a backend cannot run a call of an op; None if it can."""
    reason = BACKENDS[backend].refusal(call.device)
    needs = needs_of(op, backend)
    if reason is not None or needs is None:
        return reason
    interpreter = INTERPRETERS[backend] if is_interpreted(backend, call.device) else None
    return needs.refusal(call, interpreter)


def is_interpreted(backend: str, device: torch.device) -> bool:
    """Whether `backend` would run its kernels on tensors of `device` under an interpreter."""
    return backend in ("cuda", "triton") and INTERPRET and device.type == "cpu"
