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
CALL, STREAM = "call", "stream"
# At the start of a stream's scratch: the state of the grid barrier.
BARRIER_BYTES = 16


class Scratch(NamedTuple):
    """Memory that a launch needs beside its operands.

    Attributes:
        bytes: how much.
        zeroed: leading bytes that are zero when the launch begins.
        lifetime: "call": for one call. "stream": kept by the stream; launches with as many zeroed
            bytes share it. These are zero at first, and every launch leaves them ready for the
            next: 16 are the grid barrier's state, more are zero again.
    """

    bytes: int
    zeroed: int
    lifetime: str


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


class Order(NamedTuple):
    """The order in which one launch sums, as data. A printed order has what tells plans apart.

    Attributes:
        kernel: its name, with its template arguments in CUDA C++.
        grid: blocks along each axis; in Triton, programs.
        threads: of a block, in words: "256 threads", "8 warps".
        cluster: blocks of a cluster.
        numbers: by name, how the kernel shares out its work. Some have no name ("").
    """

    kernel: str
    grid: tuple[int, ...]
    threads: str
    cluster: int
    numbers: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        parts = [f"{self.kernel}: {'x'.join(map(str, self.grid))} blocks of {self.threads}"]
        if self.cluster > 1:
            parts.append(f"clusters of {self.cluster}")
        # Left out: strides, such as `in0`, which belong to the call, and switches.
        known = [(name, n) for name, n in self.numbers if name.isalpha() and type(n) is int]
        shown = [f"{name} {n}" for name, n in known if n > 1]
        return ", ".join([*parts, *shown])


class KernelLaunch(NamedTuple):
    """One kernel of a plan of CUDA C++.

    Attributes:
        kernel: its demangled name.
        grid: blocks along each axis.
        block: threads along each axis.
        shared_bytes: dynamic shared memory of a block.
        cluster_blocks: blocks of a cluster; 1: no clusters.
        flags: "cooperative", "persistent", "pdl", ...
        numbers: by name, those of its arguments that set the order of its sums.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster_blocks: int
    flags: tuple[str, ...]
    numbers: tuple[tuple[str, int], ...] = ()

    @property
    def order(self) -> Order:
        """Everything that sets the order of sums."""
        grid, block = (_without_ones(axes) for axes in (self.grid, self.block))
        threads = f"{'x'.join(map(str, block))} threads"
        name = _without_parameters(self.kernel)
        return Order(name, grid, threads, self.cluster_blocks, self.numbers)


def _without_ones(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes along the axes, up to the last that is not 1."""
    last = max((i for i, size in enumerate(axes) if size != 1), default=0)
    return axes[: last + 1]


def _without_parameters(kernel: str) -> str:
    """A demangled kernel's name with its template arguments: no result, namespace, parameters."""
    depth, end = 0, len(kernel)
    for place in reversed(range(len(kernel))):
        depth += (kernel[place] == ")") - (kernel[place] == "(")
        if depth == 0:  # at the bracket that opens the parameters
            end = place if kernel[place] == "(" else end
            break
    return kernel[:end].removeprefix("void ").replace("diglot::", "")


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
    def order(self) -> tuple[Order, ...]:
        """The order of all sums, by launch.

        Plans of equal order give equal bits for a call. They may differ in registers, shared
        memory, and loads in flight. Plans of other orders may give equal bits, too.
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
