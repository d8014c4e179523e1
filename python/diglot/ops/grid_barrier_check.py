"""The check and the timing of grid barriers: the contract."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from diglot.backends.capture import is_captured
from diglot.backends.runs import run
from diglot.backends.selection import choose

WORDS = 8  # that a block writes in a phase
BLOCKS_ON_CPU = 8


class GridBarrierCheck(NamedTuple):
    """The result of `grid_barrier_check`.

    Attributes:
        mismatches: int32 of shape [phases], on the device. Each element counts how often a block
            read other words in that phase than the blocks had written. All are zero unless the
            barrier is broken.
        microseconds: the average time of a barrier, with nothing between barriers.
    """

    mismatches: torch.Tensor
    microseconds: float


def grid_barrier_check(
    phases: int,
    blocks: int | None = None,
    *,
    device: torch.device | str | None = None,
    backend: str | None = None,
) -> GridBarrierCheck:
    """Checks and times the barrier across the blocks of a grid, on which other ops are built.

    One launch checks: in every phase each block writes 8 words, waits at the barrier, and reads the
    words of all blocks. A second launch has only the barriers, and is timed. The call waits for it.
    The backend "torch" has no barrier across blocks, so each phase is several launches there.

    Args:
        phases: the number of phases; 0 or more.
        blocks: the number of blocks, of 256 threads each. By default one per SM, and 8 on the CPU.
        device: by default the current GPU, or the CPU without one.
        backend: as in `diglot.gelu`.

    Raises:
        ValueError: `phases` is negative; `blocks` is not positive, or more than can run at once;
            the device is of another kind.
        diglot.BackendUnavailable: the requested backend cannot run on the device.
        RuntimeError: a CUDA graph is being captured, in which nothing can be timed.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    if where.type not in ("cpu", "cuda"):
        raise ValueError(
            f"grid_barrier_check: device must be a CUDA device or the CPU, not {where}"
        )
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    if phases < 0:
        raise ValueError(f"grid_barrier_check: phases must be 0 or more, not {phases}")
    chosen = choose("grid_barrier_check", where, backend)
    is_gpu = where.type == "cuda"
    if blocks is None:
        blocks = BLOCKS_ON_CPU
        if is_gpu:
            blocks = torch.cuda.get_device_properties(where).multi_processor_count
    if blocks < 1:
        raise ValueError(f"grid_barrier_check: blocks must be positive, not {blocks}")
    if is_captured(where):
        raise RuntimeError("grid_barrier_check cannot measure time during a graph capture")
    slots = torch.zeros((2, blocks, WORDS), dtype=torch.int32, device=where)
    mismatches = torch.zeros(phases, dtype=torch.int32, device=where)
    if phases == 0:
        return GridBarrierCheck(mismatches, 0.0)
    name = "grid_barrier_check"

    def start(what: str) -> None:
        run(chosen, name, name, slots, "diglot", what, mismatches)

    start("check")
    start("wait")  # loads the kernel that is timed
    seconds = _seconds_on_gpu(where, start) if is_gpu else _seconds(start)
    return GridBarrierCheck(mismatches, 1e6 * seconds / phases)


def _seconds(start: Callable[[str], None]) -> float:
    begin = time.perf_counter()
    start("wait")
    return time.perf_counter() - begin


def _seconds_on_gpu(device: torch.device, start: Callable[[str], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        begin.record()
        start("wait")
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) / 1e3
