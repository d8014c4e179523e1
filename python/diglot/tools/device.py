"""What the driver says of a GPU of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# What nvidia-smi is asked, by the names here.
_ASKED = {
    "clock_mhz": "clocks.sm",
    "max_clock_mhz": "clocks.max.sm",
    "max_memory_clock_mhz": "clocks.max.memory",
    "power_limit_w": "power.limit",
}


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU as its driver describes it; None where it does not say.

    Attributes:
        memory_bytes: of the device memory that PyTorch can use.
        shared_bytes_per_block: what a block can have of it, if it asks.
        clock_mhz: of the multiprocessors, now.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    l2_bytes: int
    multiprocessors: int
    shared_bytes_per_multiprocessor: int | None
    shared_bytes_per_block: int | None
    clock_mhz: float | None
    max_clock_mhz: float | None
    max_memory_clock_mhz: float | None
    power_limit_w: float | None
    driver: str | None


def query(device: torch.device | str | int = "cuda") -> DeviceFacts:
    """Asks the driver of a GPU. CUDA is initialised.

    Raises:
        RuntimeError: PyTorch finds no such GPU.
    """
    of: Any = torch.cuda.get_device_properties(device)
    told = ask_driver([*_ASKED.values(), "driver_version"], f"GPU-{getattr(of, 'uuid', '')}")
    return DeviceFacts(
        name=of.name,
        compute_capability=f"{of.major}.{of.minor}",
        memory_bytes=of.total_memory,
        l2_bytes=of.L2_cache_size,
        multiprocessors=of.multi_processor_count,
        shared_bytes_per_multiprocessor=getattr(of, "shared_memory_per_multiprocessor", None),
        shared_bytes_per_block=getattr(of, "shared_memory_per_block_optin", None),
        driver=told.get("driver_version"),
        **{name: _number(told.get(asked)) for name, asked in _ASKED.items()},
    )


def ask_driver(asked: Sequence[str], uuid: str = "0") -> dict[str, str]:
    """What nvidia-smi says of a GPU, by its own names; nothing where it cannot be asked."""
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(asked)}"]
    try:
        answer = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    values = [value.strip() for value in answer.stdout.strip().split(",")]
    return dict(zip(asked, values, strict=False))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:  # "[N/A]"
        return None
