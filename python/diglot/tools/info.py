"""What is installed, what it was built for, and what can run here: `diglot info`."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from diglot.backends.registry import INTERPRET, load_extension, load_interpreter, load_triton
from diglot.backends.selection import explain_device
from diglot.bench.evidence import installed
from diglot.tools.table import Table


@dataclass(frozen=True)
class Info:
    """What `diglot info` tells.

    Attributes:
        driver: of NVIDIA's driver and the CUDA version that it supports.
        gpus: name, compute capability and memory of each GPU.
        extension: what the CUDA extension was built with and for; or why it does not load.
        interpreter: "built" if the CUDA kernels are there for the host too; or why they are not.
        backends: by device, then by backend: why it cannot run; None if it can.
        notes: by device, then by backend: a remark on one that can run.
    """

    versions: dict[str, str]
    driver: str
    gpus: tuple[str, ...]
    extension: dict[str, str]
    interpreter: str
    interpret: bool
    backends: dict[str, dict[str, str | None]]
    notes: dict[str, dict[str, str]]

    def __str__(self) -> str:
        first, *others = self.gpus or ("none",)
        rows = [*self.versions.items(), ("driver", self.driver), ("GPUs", first)]
        rows += [*(("", gpu) for gpu in others), ("", ""), ("CUDA extension", "")]
        rows += [(f"  {name}", value) for name, value in self.extension.items()]
        rows += [("", ""), ("CUDA interpreter", self.interpreter)]
        rows += [("DIGLOT_INTERPRET", "1" if self.interpret else "not set")]
        for device, reasons in self.backends.items():
            rows += [("", ""), (f"backends on {device}", "")]
            for name, reason in reasons.items():
                note = self.notes[device].get(name)
                verdict = "can run" if reason is None else f"cannot run: {reason}"
                rows.append((f"  {name}", f"{verdict}{f' ({note})' if note else ''}"))
        return str(Table(("", ""), rows))


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver() -> str:
    module, _ = load_extension()
    supported = module.driver_version() if module is not None else 0
    path = Path("/proc/driver/nvidia/version")
    try:
        found = re.search(r"Module\D*([\d.]+)", path.read_text())
    except OSError:
        found = None
    if found is None and not supported:
        return "none found"
    version = found.group(1) if found else "found"
    return version + (f", supports CUDA {_cuda(supported)}" if supported else "")


def _extension() -> dict[str, str]:
    module, reason = load_extension()
    if module is None:
        return {"not loaded": reason}
    return {
        "built with CUDA": _cuda(module.cuda_version),
        "built with torch": module.built_with_torch,
        "built for": module.architectures,
    }


def _interpreter() -> str:
    module, reason = load_interpreter()
    return reason if module is None else "built"


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


def collect() -> Info:
    """Finds everything out. Without a GPU nothing of CUDA is initialised."""
    gpus = _gpus()
    triton, reason = load_triton()
    versions = {
        "diglot": installed("diglot") or "not installed",
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, "
        + (f"built with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"),
        "triton": reason if triton is None else installed("triton") or "not installed",
    }
    if os.environ.get("DIGLOT_BACKEND"):
        versions["DIGLOT_BACKEND"] = os.environ["DIGLOT_BACKEND"]
    devices = ["cpu", *(f"cuda:{index}" for index in range(len(gpus)))]
    explanations = {device: explain_device(torch.device(device)) for device in devices}
    return Info(
        versions=versions,
        driver=_driver(),
        gpus=gpus,
        extension=_extension(),
        interpreter=_interpreter(),
        interpret=INTERPRET,
        backends={device: of.reasons for device, of in explanations.items()},
        notes={device: of.notes for device, of in explanations.items()},
    )
