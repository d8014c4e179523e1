"""Launch plans as values: how a call will run, and the memory that it needs beside its operands.

A plan follows from a device's facts and from the operands' dtypes, sizes, strides and alignment.
Nothing is launched to make one, so a plan can be made for a device that is only named.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# How long scratch lives.
CALL, STREAM, GROUP = "call", "stream", "group"
# At the start of a stream's scratch: the state of the grid barrier.
BARRIER_BYTES = 16
# At the start of a group's scratch: the addresses of all ranks' buffers, eight bytes each.
GROUP_HEADER_BYTES = 512


class Scratch(NamedTuple):
    """Memory that a launch needs beside its operands.

    Attributes:
        bytes: how much.
        zeroed: leading bytes that are zero when the launch begins.
        lifetime: "call": for one call. "stream": kept by the stream, whose launches share it. Its
            first 16 bytes are the grid barrier's state: zero at first, and every launch leaves them
            ready for the next. "group": kept by a group of processes. Each process has one buffer
            per stream, which begins with all ranks' addresses (group_scratch.py).
        group: the group's name.
    """

    bytes: int
    zeroed: int
    lifetime: str
    group: str = ""


class Device(NamedTuple):
    """The facts of a device for a planner.

    Attributes:
        architecture: ten times the compute capability, such as 90.
        multiprocessors: how many.
        shared_bytes: shared memory of each multiprocessor.
        has_clusters: whether it launches clusters of blocks.
        name: the GPU's, such as "h200", which selects its tunables; other names get the default
            ones.
    """

    architecture: int
    multiprocessors: int
    shared_bytes: int
    has_clusters: bool
    name: str = ""


class KernelLaunch(NamedTuple):
    """One kernel of a plan of CUDA C++.

    Attributes:
        kernel: its demangled name.
        grid: blocks along each axis.
        block: threads along each axis.
        shared_bytes: dynamic shared memory of a block.
        cluster_blocks: blocks of a cluster; 1: no clusters.
        flags: "cooperative", "persistent", "pdl", ...
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster_blocks: int
    flags: tuple[str, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """Everything that sets the order of sums."""
        return self.kernel, self.grid, self.block, self.cluster_blocks


class Plan(NamedTuple):
    """How a launcher runs a call.

    Attributes:
        variant: the plan's name.
        launches: the kernels, in their order: `KernelLaunch` for CUDA C++, `Launch` of
            `diglot.triton_ops` for Triton.
        scratch: the memory that they need; None if none.
        tunables: the measured numbers that decided, by name (tunables.py).
        choices: how these were chosen (choosing.py): a `Choice` for each problem.
    """

    variant: str
    launches: tuple[Any, ...]
    scratch: Scratch | None
    tunables: tuple[tuple[str, int], ...] = ()
    choices: tuple[Any, ...] = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """Everything that sets the order of sums: the kernels, how they are compiled, and their
        threads.

        Plans of equal order give equal bits for a call. They may differ in registers, shared
        memory, and loads in flight.
        """
        return tuple([launch.order for launch in self.launches])


@dataclass(frozen=True)
class PlannedRun:
    """A launcher's call that was planned instead of run.

    Attributes:
        op: the op's name.
        launcher: the direction, such as "gelu_forward".
        backend: "cuda", "triton" or "torch".
        plan: how it would run.
        arguments: the launcher's, without scratch.
    """

    op: str
    launcher: str
    backend: str
    plan: Plan
    arguments: tuple[Any, ...]


class _Planning(threading.local):
    device: Device | None = None
    runs: list[PlannedRun] | None = None


planning = _Planning()


@contextlib.contextmanager
def plan_runs(device: Device | None = None) -> Iterator[list[PlannedRun]]:
    """Context manager: ops called in it, on this thread, are planned and not run.

    Their tensors may be on any device. Their results have undefined contents.

    Args:
        device: the device to plan for; the current one by default.
    """
    before = planning.device, planning.runs
    runs: list[PlannedRun] = []
    planning.device, planning.runs = device, runs
    try:
        yield runs
    finally:
        planning.device, planning.runs = before
