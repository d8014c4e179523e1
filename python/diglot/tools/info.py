"""Installed versions, their build, and what can run here: `diglot info`."""

from __future__ import annotations

import os
import platform

import torch

from diglot.backends.registry import INTERPRET, load_extension, load_interpreter, load_triton
from diglot.backends.selection import explain_device
from diglot.bench.evidence import installed
from diglot.tools.device import ask_driver
from diglot.tools.table import Table


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver() -> str:
    module, _ = load_extension()
    supported = module.driver_version() if module is not None else 0
    version = ask_driver(["driver_version"]).get("driver_version")
    if version is None and not supported:
        return "none found"
    return (version or "found") + (f", supports CUDA {_cuda(supported)}" if supported else "")


def _extension() -> dict[str, str]:
    module, reason = load_extension()
    if module is None:
        return {"not loaded": reason}
    return {
        "built with CUDA": _cuda(module.cuda_version),
        "built with torch": module.built_with_torch,
        "built for": module.architectures,
    }


def _gpus() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ()
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            f"cuda:{index}: {properties.name}, compute capability {properties.major}."
            f"{properties.minor}, {properties.total_memory / 2**30:.0f} GiB"
        )
    return tuple(gpus)


def collect() -> Table:
    """Finds everything out. Without a GPU nothing of CUDA is initialised."""
    gpus = _gpus()
    triton, reason = load_triton()
    interpreter, why_none = load_interpreter()
    cuda = f"built with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    first, *others = gpus or ("none",)
    rows = [
        ("diglot", installed("diglot") or "not installed"),
        ("python", platform.python_version()),
        ("torch", f"{torch.__version__}, {cuda}"),
        ("triton", reason if triton is None else installed("triton") or "not installed"),
        ("driver", _driver()),
        ("GPUs", first),
        *(("", gpu) for gpu in others),
        ("", ""),
        ("CUDA extension", ""),
        *((f"  {name}", value) for name, value in _extension().items()),
        ("", ""),
        ("CUDA interpreter", why_none if interpreter is None else "built"),
        ("DIGLOT_INTERPRET", "1" if INTERPRET else "not set"),
        ("DIGLOT_BACKEND", os.environ.get("DIGLOT_BACKEND") or "not set"),
    ]
    for device in ("cpu", *(f"cuda:{index}" for index in range(len(gpus)))):
        found = explain_device(torch.device(device))
        rows += [("", ""), (f"backends on {device}", "")]
        for name, why_not in found.reasons.items():
            note = f" ({found.notes[name]})" if name in found.notes else ""
            verdict = "can run" if why_not is None else f"cannot run: {why_not}"
            rows.append((f"  {name}", f"{verdict}{note}"))
    return Table(("", ""), rows)
