"""The backends: for each, where its launchers are and what keeps it from running.

A launcher writes the result of one direction of one op into tensors that it is given. Every backend
has the same launchers with the same argument lists: `diglot._C`, `diglot.triton_ops` and
`diglot.reference` are three namespaces of them.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

INTERPRET = os.environ.get("DIGLOT_INTERPRET") == "1"
OLDEST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Backend:
    """One way of running ops.

    `module(op)` is the namespace of an op's launchers; `refusal(device)` says why no op can run on
    tensors of that device, or is None.
    """

    name: str
    module: Callable[[str], ModuleType]
    refusal: Callable[[torch.device], str | None]


@functools.cache
def load_extension() -> tuple[ModuleType | None, str]:
    """The CUDA extension, or why it did not load."""
    try:
        return importlib.import_module("diglot._C"), ""
    except ModuleNotFoundError:
        return (
            None,
            "diglot was installed without its CUDA extension (no nvcc, or DIGLOT_SKIP_CUDA=1)",
        )
    except ImportError as error:
        return None, f"the CUDA extension does not load: {error}"


@functools.cache
def load_interpreter() -> tuple[ModuleType | None, str]:
    """The CUDA kernels compiled for the host, or why they did not load."""
    try:
        return importlib.import_module("diglot._interpreter"), ""
    except ModuleNotFoundError:
        return None, "diglot was installed without its CUDA interpreter (no g++ at installation)"
    except ImportError as error:
        return None, f"the CUDA interpreter does not load: {error}"


@functools.cache
def load_triton() -> tuple[ModuleType | None, str]:
    """Triton, or why it does not import."""
    try:
        return importlib.import_module("triton"), ""
    except ImportError as error:
        return None, f"Triton does not import: {error}"


def cuda_module() -> tuple[ModuleType | None, str]:
    """Where CUDA's launchers are in this process, or why there are none."""
    return load_interpreter() if INTERPRET else load_extension()


def _cuda_module(op: str) -> ModuleType:
    module, reason = cuda_module()
    if module is None:
        raise RuntimeError(reason)
    return module


def _gpu_refusal(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it takes CUDA tensors, and this one is on {device.type}"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability "
            f"{capability[0]}.{capability[1]}; the least is "
            f"{OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}"
        )
    return None


def _device_refusal(device: torch.device, interpreter: str) -> str | None:
    """Why kernels that are interpreted, or are not, take no tensors of `device`."""
    if INTERPRET:
        if device.type == "cpu":
            return None
        return "DIGLOT_INTERPRET=1 is set, and interpreted kernels take CPU tensors"
    if device.type == "cpu":
        return (
            "it takes CUDA tensors, and this one is on the CPU; with DIGLOT_INTERPRET=1 set before "
            f"diglot is imported, {interpreter} interpreter runs it there"
        )
    return _gpu_refusal(device)


def _cuda_refusal(device: torch.device) -> str | None:
    module, reason = cuda_module()
    if module is None and device.type != "cpu":
        return reason
    refusal = _device_refusal(device, "diglot's")
    if refusal is not None or INTERPRET:
        return refusal or reason or None
    assert module is not None
    needed, found = module.cuda_version // 1000, module.driver_version() // 1000
    if found < needed:
        return (
            f"the extension was built with CUDA {needed}, and the driver supports up to {found}: "
            "update the driver, or build diglot with an older toolkit"
        )
    try:
        module.check_device(torch.cuda.current_device() if device.index is None else device.index)
    except RuntimeError as error:
        return f"{error}; the extension was built for {module.architectures}"
    return None


def _triton_refusal(device: torch.device) -> str | None:
    module, reason = load_triton()
    if module is None:
        return reason
    return _device_refusal(device, "Triton's")


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("cuda", _cuda_module, _cuda_refusal),
        Backend(
            "triton",
            lambda op: importlib.import_module(f"diglot.triton_ops.{op}"),
            _triton_refusal,
        ),
        Backend(
            "torch",
            lambda op: importlib.import_module(f"diglot.reference.{op}"),
            lambda device: None,
        ),
    )
}


def is_interpreted(backend: str, device: torch.device) -> bool:
    """Whether `backend` would run its kernels on tensors of `device` under an interpreter."""
    return backend in ("cuda", "triton") and INTERPRET and device.type == "cpu"
