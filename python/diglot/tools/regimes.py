"""Which regime a call is in: bound by bandwidth, by compute or by overhead (docs/regimes.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diglot.tools.ceilings import load
from diglot.tools.gpus import find_gpu

# The device's time of a kernel's start, where no copy was timed beside it. An estimate: on an
# H200, gelu of 4096 elements takes 1.4 µs in a CUDA graph, and softmax 2.1 µs.
START_US = 2.0
# By an operand's type, as a trace names it. Other types are no tensors.
ELEMENT_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2}
ELEMENT_BYTES |= {"c10::Half": 2, "bool": 1, "signed char": 1, "unsigned char": 1}


@dataclass(frozen=True)
class Regime:
    """What bounds a call.

    Attributes:
        name: "bandwidth", "compute" or "overhead".
        share: its share of the time from one such call to the next, from 0 to 1.
    """

    name: str
    share: float

    def __str__(self) -> str:
        return f"{self.name} {100 * self.share:.0f} %"


def find_regime(
    device_us: float,
    moved_bytes: float,
    gb_per_s: float,
    *,
    copy_us: float | None = None,
    host_us: float | None = None,
) -> Regime:
    """The largest of the three parts of the time from one such call to the next.

    That time is the device's, or the host's where a call takes the host longer. Its parts:

    - Bandwidth is the bytes at the peak bandwidth.
    - Overhead is the time of a copy of as many bytes, less the first part. The time in which the
      device waits for the host is added.
    - Compute is the rest of the device's time. Beyond such a copy a kernel's time goes into
      instructions, and into waiting for their results.

    Args:
        device_us: the device's time of a call, in microseconds.
        moved_bytes: what it must move: each input once, each output once.
        gb_per_s: the GPU's peak bandwidth, in 10^9 bytes/s.
        copy_us: the device's time of a copy of as many bytes, in the same run; None: unknown.
        host_us: the host's time of a call; None where the host is not in the way, as in a graph.
    """
    moving = min(moved_bytes / gb_per_s / 1e3, device_us)
    starting = START_US if copy_us is None else max(0.0, copy_us - moving)
    starting = min(starting, device_us - moving)
    between = max(device_us, host_us or 0.0)
    parts = {
        "bandwidth": moving,
        "overhead": starting + between - device_us,
        "compute": device_us - moving - starting,
    }
    name = max(parts, key=lambda part: parts[part])
    return Regime(name, parts[name] / between)


def peak_gb_per_s(gpu: str) -> float | None:
    """A GPU's peak bandwidth: its data sheet's, else as it was measured; None if unknown."""
    sheet = find_gpu(gpu)
    if sheet is not None:
        return sheet.bandwidth_gb_per_s
    measured = load(gpu)
    return None if measured is None else measured.gb_per_s()


def input_bytes(types: Sequence[str] | None, shapes: Sequence[Sequence[int]] | None) -> float:
    """The bytes of an operator's tensors, each once, by what a trace says of its operands.

    NaN where it does not say it: of ranges that are no operators, and of lists of tensors.
    """
    if types is None or shapes is None or "TensorList" in types:
        return math.nan
    sizes = zip(types, shapes, strict=True)
    return sum(math.prod(shape) * ELEMENT_BYTES[of] for of, shape in sizes if of in ELEMENT_BYTES)
