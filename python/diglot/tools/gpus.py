"""GPUs as their data sheets describe them: `gpus.json`, read."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diglot.backends.plans import Device


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its data sheet.

    Attributes:
        match: a regular expression of the name that PyTorch reports.
        memory_gb: device memory, in 2^30 bytes; the driver keeps some of it.
        bandwidth_gb_per_s: of the device memory, in 10^9 bytes/s.
        l2_mb: the L2 cache, in 2^20 bytes.
        shared_kb_per_multiprocessor: shared memory, in 2^10 bytes.
        shared_kb_per_block: what a block can have of it.
        tflop_per_s: peak rates without sparsity, in 10^12 operations/s: "float32" outside the
            tensor cores, "tf32", "bfloat16", "float16" and "float8" by them; None for what it
            lacks.
        sources: where the figures are from; "as quoted": only others' quotations of it were read.
        undocumented: names of figures that no document of NVIDIA was found to give for this GPU.
    """

    name: str
    match: str
    architecture: str
    compute_capability: str
    memory_gb: float
    memory: str
    bandwidth_gb_per_s: float
    l2_mb: float
    multiprocessors: int
    shared_kb_per_multiprocessor: int
    shared_kb_per_block: int
    tflop_per_s: dict[str, float | None]
    sources: tuple[str, ...]
    undocumented: tuple[str, ...]


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the table, newest first."""
    table: dict[str, Any] = json.loads(Path(__file__).with_name("gpus.json").read_text())
    lists = ("sources", "undocumented")
    return tuple(Gpu(**row | {name: tuple(row[name]) for name in lists}) for row in table["gpus"])


def find_gpu(name: str) -> Gpu | None:
    """The GPU that PyTorch calls so; None if the table lacks it."""
    return next((gpu for gpu in gpus() if re.fullmatch(gpu.match, name)), None)


def named_device(name: str) -> Device:
    """What planners ask of the GPU that PyTorch calls so. It need not be here.

    Raises:
        ValueError: the table lacks it.
    """
    gpu = find_gpu(name)
    if gpu is None:
        known = ", ".join(gpu.match for gpu in gpus())
        raise ValueError(f"no GPU is known as {name!r}; these are: {known}")
    architecture = int(gpu.compute_capability.replace(".", ""))
    shared_bytes = gpu.shared_kb_per_multiprocessor << 10
    return Device(architecture, gpu.multiprocessors, shared_bytes, architecture >= 90, name)
