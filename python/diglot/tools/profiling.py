"""`diglot.profile`: what runs, how long, and in which kernels.

A profiler (`profile_engines`), used as it must be. First calls are left out, and the device is
waited for before and after. Every launcher of diglot's, in backward passes too, has a range of its
own, which tells the backend.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diglot.backends.registry import INTERPRET, load_triton, triton_interprets
from diglot.backends.runs import MARK, LastRun, mark_runs, observe_runs
from diglot.files import check_folder, check_writable, writing
from diglot.names import unknown_name
from diglot.reference.specs import nbytes
from diglot.tools import flame, measure
from diglot.tools.module_costs import ModuleCost
from diglot.tools.module_scopes import module_scopes
from diglot.tools.profile_engines import ENGINES, Engine, TorchEngine
from diglot.tools.trace import Launches

ROWS = 20


class profile:
    """Context manager: profiles what runs in it.

        with diglot.profile() as p:
            y = model(x)
        print(p)
        p.save_trace("trace.json")

    It waits for the device before the first recorded event and after the last. First calls compile,
    load and allocate: leave them out with `warmup` and `step`, or with `profile_call`. Operators
    are recorded on this thread and on autograd's, kernels on all threads.

    Args:
        warmup: the number of steps to leave out; each ends with a call of `step`.
        engine: "torch", PyTorch's profiler; "proton", Triton's; "nvtx", ranges for Nsight Systems.
            The latter two need a GPU.
        modules: whether every call of a `torch.nn.Module` has a scope with its name, such as
            "encoder.layer.0.attention". A scope takes some microseconds on the host.
        frames: whether to record Python's frames (engine "torch"). That costs host time, and some
            kilobytes of memory per function call. By default yes, unless Triton interprets
            kernels, with very many calls.

    Raises:
        ValueError: the engine is unknown, or needs a GPU that is missing. Or there were fewer than
            `warmup` + 1 steps.
        RuntimeError: another profiler of this process is running.

    Attributes:
        notes: remarks on the recording, in sentences.
    """

    def __init__(
        self,
        *,
        warmup: int = 0,
        engine: str = "torch",
        modules: bool = True,
        frames: bool | None = None,
    ) -> None:
        if engine not in ENGINES:
            raise unknown_name("engine", engine, ENGINES)
        if engine != "torch" and not torch.cuda.is_available():
            raise ValueError(f"engine {engine!r} needs a GPU, and PyTorch finds none")
        if warmup < 0:
            raise ValueError("warmup must be at least 0")
        self._engine_name, self._modules = engine, modules
        self._frames = not _triton_interprets() if frames is None else frames
        self._warmup, self._steps = warmup, 0
        self._recording = self._done = False
        self.notes: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="diglot-profile-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._engine: Engine | None = None
        self._marks = contextlib.ExitStack()

    # --- recording -------------------------------------------------------------------------------

    def __enter__(self) -> profile:
        with contextlib.ExitStack() as stack:
            self._engine = ENGINES[self._engine_name](Path(self._folder), self._frames)
            stack.enter_context(mark_runs(self._engine.scope))
            if isinstance(self._engine, TorchEngine):
                stack.enter_context(observe_runs(self._weigh))
            if self._modules:
                stack.enter_context(module_scopes(self._engine.scope))
            if self._warmup == 0:
                self._start()
            self._marks = stack.pop_all()
        return self

    def _weigh(self, run: LastRun, arguments: tuple[Any, ...]) -> None:
        """Counts the bytes of a launcher's tensors: it reads or writes each once."""
        assert isinstance(self._engine, TorchEngine)
        if self._recording:
            moved, name = self._engine.moved, f"{MARK}{run.launcher}[{run.backend}]"
            tensors = [of for of in tree_leaves(arguments) if isinstance(of, torch.Tensor)]
            moved[name] = moved.get(name, 0.0) + sum(map(nbytes, tensors))

    def step(self) -> None:
        """Ends a step. After as many as `warmup`, recording begins."""
        self._steps += 1
        if self._steps == self._warmup:
            self._start()

    def scope(
        self, name: str, metrics: dict[str, float] | None = None
    ) -> AbstractContextManager[Any]:
        """A range with a name, which tables, traces and trees show.

        Args:
            metrics: numbers to show with it, such as {"bytes": 1e9} (engine "proton").
        """
        if self._engine is None:
            raise RuntimeError("scope is for use inside the with statement")
        return self._engine.scope(name, metrics)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._engine is not None
        self._marks.close()
        was_recording = self._recording
        if not was_recording:
            self._engine.start()  # so that it can be stopped
        # Work that failed may have left the device unusable. Even so, the host's part is kept.
        with contextlib.suppress(RuntimeError) if error else contextlib.nullcontext():
            _synchronize()
        self._recording = False
        self._engine.stop()
        if was_recording:
            self._done = True
            self.notes += self._told()
        elif error is None:
            raise ValueError(
                f"nothing was recorded: of {self._warmup} steps of warm-up {self._steps} ended "
                "with a call of step()"
            )

    def _start(self) -> None:
        assert self._engine is not None
        _synchronize()
        self._engine.start()
        self._recording = True

    def _told(self) -> list[str]:
        what = "recorded from the first call on, without warm-up"
        if self._warmup:
            recorded = self._steps - self._warmup
            what = f"{recorded} steps recorded after {self._warmup} of warm-up"
        if torch.cuda.is_available():
            what += "; the GPU was waited for before and after"
        notes = [what]
        no_gpu = measure.why_not()
        if no_gpu is not None:
            notes.append(f"times are not a GPU's: {no_gpu}")
        if isinstance(self._engine, TorchEngine) and not self._frames:
            notes.append("Python's frames were not recorded")
        return notes

    # --- results ---------------------------------------------------------------------------------

    def _finished(self) -> Engine:
        if self._engine is None or not self._done:
            raise RuntimeError("the profile is there when the with statement has ended")
        return self._engine

    def _torch(self) -> TorchEngine:
        engine = self._finished()
        if not isinstance(engine, TorchEngine):
            raise ValueError(f"engine {self._engine_name!r} has no trace; torch has")
        return engine

    def __str__(self) -> str:
        return "\n".join([*self._finished().lines(ROWS), "", *self.notes])

    @property
    def profiler(self) -> Any:
        """PyTorch's own object, a `torch.profiler._KinetoProfile` (engine "torch")."""
        return self._torch().profiler

    def table(self, rows: int = ROWS, *, by_shape: bool = False) -> str:
        """PyTorch's table of operators, scopes and kernels, by time on the GPU, else on the CPU."""
        return self._torch().table(rows, by_shape)

    def kernels_by_op(self) -> dict[str, Launches]:
        """Kernels by operator: which ran, how often, and how many to a call (engine "torch").

        An operator is the outermost, or a launcher of diglot's, such as
        "diglot::gelu_forward[cuda]". Without a GPU the operators stand for kernels that would have
        launched one, which is about right.
        """
        return self._torch().trace.kernels_by_op()

    def kernels_by_scope(self) -> dict[str, Launches]:
        """The same by the scopes that the user named."""
        return self._torch().trace.kernels_by_scope()

    def modules(self) -> dict[str, ModuleCost]:
        """What modules cost, by name, in the order in which they were called (engine "torch")."""
        return self._torch().modules

    def stacks(self) -> dict[tuple[str, ...], float]:
        """Microseconds by stack, outermost first: on the GPU, or without one on the CPU."""
        return self._finished().stacks()

    def save_trace(self, path: str | Path, force: bool = False) -> None:
        """Writes a Chrome trace, for chrome://tracing or ui.perfetto.dev."""
        source = self._torch().path
        check_writable(path, force)
        with writing(path):
            shutil.copyfile(source, path)

    def save_tensorboard(self, folder: str | Path, force: bool = False) -> None:
        """Writes a trace into a folder, for TensorBoard; other files are left alone."""
        source, folder = self._torch().path, Path(folder)
        check_folder(folder, force=True)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{socket.gethostname()}.{time.time_ns()}.pt.trace.json"
            shutil.copyfile(source, folder / name)

    def save_flame(self, path: str | Path, force: bool = False) -> None:
        """Writes a flame graph, as SVG."""
        engine = self._finished()
        is_of_host = isinstance(engine, TorchEngine) and not engine.trace.has_device
        where = "CPU" if is_of_host else "GPU"
        _write(path, flame.render(self.stacks(), f"Time on the {where} by stack"), force)

    def save_stacks(self, path: str | Path, force: bool = False) -> None:
        """Writes the stacks as text, `a;b;c 12` in microseconds, which other renderers read."""
        _write(path, flame.folded(self.stacks()), force)


def profile_call(
    function: Callable[[], object], *, warmup: int = 3, repeat: int = 5, **options: Any
) -> profile:
    """Profiles calls of a function, after calls that are not recorded.

    Args:
        warmup: the number of calls that are not recorded, at least one.
        repeat: the number of recorded calls, at least one.
        options: of `profile`.

    Returns:
        The profile.
    """
    if warmup < 1 or repeat < 1:
        raise ValueError("warmup and repeat must be at least 1")
    with profile(warmup=warmup, **options) as done:
        for _ in range(warmup + repeat):
            function()
            done.step()
    return done


def _triton_interprets() -> bool:
    return INTERPRET or (load_triton()[0] is not None and triton_interprets())


def _synchronize() -> None:
    """Waits for all GPUs that this process has used."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):
                torch.cuda.synchronize(device)


def _write(path: str | Path, text: str, force: bool) -> None:
    check_writable(path, force)
    with writing(path):
        Path(path).write_text(text, encoding="utf-8")
