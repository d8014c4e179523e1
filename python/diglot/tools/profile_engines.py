"""The profilers that `diglot.profile` drives: PyTorch's, Triton's, and ranges for NVIDIA's."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from diglot.tools.module_costs import ModuleCost, module_costs
from diglot.tools.profile_tables import launch_table, module_table
from diglot.tools.proton import Node
from diglot.tools.regimes import peak_gb_per_s
from diglot.tools.trace import Trace

Metrics = dict[str, float] | None
ONE_AT_A_TIME = "of PyTorch's profilers one can record at a time"


def silence_kineto() -> None:
    """Has PyTorch's profiler print no lines of its own, unless the user set how many.

    Before it records for the first time in a process: it reads the level once.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


class Engine:
    """A profiler. It is made before the warm-up, and records from `start` to `stop`.

    Its files go into `folder`. With `frames` it records Python's frames, if it can.
    """

    def __init__(self, folder: Path, frames: bool) -> None:
        self.folder = folder

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def scope(self, name: str, metrics: Metrics = None) -> AbstractContextManager[Any]:
        """A range with a name, and where the engine shows numbers, with these."""
        raise NotImplementedError

    def lines(self, rows: int) -> list[str]:
        """The findings as text."""
        raise NotImplementedError

    def stacks(self) -> dict[tuple[str, ...], float]:
        """Microseconds by stack, outermost first."""
        raise ValueError("this engine records no stacks")


class TorchEngine(Engine):
    """PyTorch's profiler."""

    def __init__(self, folder: Path, frames: bool) -> None:
        super().__init__(folder, frames)
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, _KinetoProfile

        if torch.autograd._profiler_enabled():
            raise RuntimeError(f"{ONE_AT_A_TIME}, and one is recording already")
        silence_kineto()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self.profiler = _KinetoProfile(
            activities=activities,
            record_shapes=True,
            profile_memory=True,
            with_stack=frames,
            with_modules=True,
            acc_events=True,  # or PyTorch 2.11 warns that it forgets those of earlier recordings
            # Without it the profiler's own `export_stacks` writes nothing.
            experimental_config=_ExperimentalConfig(verbose=True),
        )
        self.profiler.prepare_trace()
        self.moved: dict[str, float] = {}  # bytes of what launchers were given, by their marks

    def start(self) -> None:
        self.profiler.start_trace()

    def stop(self) -> None:
        is_there = torch.autograd._profiler_enabled()
        self.profiler.stop_trace()
        if not is_there:  # and to export nothing would be a crash
            raise RuntimeError(f"{ONE_AT_A_TIME}, and another one ended this recording")
        # Once only: a second export is an error.
        self.profiler.export_chrome_trace(str(self.path))

    @property
    def path(self) -> Path:
        """Of the trace."""
        return self.folder / "trace.json"

    @cached_property
    def trace(self) -> Trace:
        """What the trace holds; read when it is asked for, which may take seconds."""
        return Trace.read(self.path)

    def scope(self, name: str, metrics: Metrics = None) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name)

    @cached_property
    def modules(self) -> dict[str, ModuleCost]:
        """What modules cost."""
        return module_costs(self.trace)

    def table(self, rows: int, by_shape: bool) -> str:
        """PyTorch's own table, by time on the GPU, or without one on the CPU."""
        averages = self.profiler.key_averages(group_by_input_shape=by_shape)
        # Frames would fill it, and modules have a table of their own.
        others = {span.name for span in self.trace.spans if span.kind in ("frame", "module")}
        averages[:] = [average for average in averages if average.key not in others]
        by = "device_time_total" if self.trace.has_device else "cpu_time_total"
        return averages.table(sort_by=by, row_limit=rows)

    def stacks(self) -> dict[tuple[str, ...], float]:
        return self.trace.stacks()

    def lines(self, rows: int) -> list[str]:
        peak = peak_gb_per_s(torch.cuda.get_device_name()) if self.trace.has_device else None
        lines = [self.table(rows, False), launch_table(self.trace, rows, peak, self.moved)]
        if self.modules:
            lines += ["", module_table(self.modules, rows, self.trace.has_device)]
        return lines


class ProtonEngine(Engine):
    """Triton's profiler. It has no context manager: `triton.profiler.profile` is a decorator."""

    def start(self) -> None:
        from triton import profiler

        try:
            profiler.start(str(self.folder / "proton"), hook="triton")
        except RuntimeError as error:  # as where another profiler of this process holds CUPTI
            raise RuntimeError(
                f"Proton cannot start ({error}); one process has one profiler at a time"
            ) from error

    def stop(self) -> None:
        from triton import profiler

        profiler.finalize()
        self.tree = Node.read(self.folder / "proton.hatchet")

    def scope(self, name: str, metrics: Metrics = None) -> AbstractContextManager[Any]:
        from triton import profiler

        return profiler.scope(name, metrics)

    def stacks(self) -> dict[tuple[str, ...], float]:
        return self.tree.stacks()

    def lines(self, rows: int) -> list[str]:
        return [str(self.tree)]


class NvtxEngine(Engine):
    """Ranges alone, for Nsight Systems, which is started around the process."""

    def start(self) -> None:
        torch.cuda.profiler.start()  # `nsys profile --capture-range=cudaProfilerApi`

    def stop(self) -> None:
        torch.cuda.profiler.stop()

    def scope(self, name: str, metrics: Metrics = None) -> AbstractContextManager[Any]:
        return torch.cuda.nvtx.range("{}", name)  # whose first argument is a format

    def lines(self, rows: int) -> list[str]:
        return ["NVTX ranges were marked; Nsight Systems, started around this process, shows them"]


ENGINES: dict[str, type[Engine]] = {
    "torch": TorchEngine,
    "proton": ProtonEngine,
    "nvtx": NvtxEngine,
}
