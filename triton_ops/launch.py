"""Host side of a launch: one function that starts every kernel, whatever is to become of it.

- On a GPU it goes through a handle to the compiled kernel, kept by device, types and constants:
  Triton's own launch path costs twice as much host time.
- In a graph that is being compiled it is recorded as a kernel that the compiler sees into.
- Under Triton's interpreter the kernel is called as it is.
- Under `record_launches` nothing runs, and what would have been compiled is collected.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.compiler import ASTSource

from diglot.backends.driver import driver, relaxed_capture
from diglot.triton_ops.lib.types import INTERPRETED

if TYPE_CHECKING:
    from typing_extensions import Unpack

    # What a launch takes: the inputs, None where one is not given, and the output last.
    Tensors = tuple[Unpack[tuple[torch.Tensor | None, ...]], torch.Tensor]

# Names of Triton's types for the elements that pointers point to.
TYPE_NAMES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


@dataclass(frozen=True)
class Specialization:
    """A kernel with its types and constants: what a compilation needs.

    Attributes:
        kernel: the @triton.jit function. Its parameters are pointers, then integers, then
            constants.
        dtypes: element type of each pointer; None for a pointer that is not given.
        integers: how many integers follow.
        constants: values of the constants.
        num_warps: warps per program.
        cooperative: whether programs wait for each other, so that all must run at once.
        max_registers: of a thread; None: as many as the compiler likes.
    """

    kernel: Any
    dtypes: tuple[torch.dtype | None, ...]
    integers: int
    constants: tuple[Any, ...]
    num_warps: int
    cooperative: bool = False
    max_registers: int | None = None

    def source(self) -> ASTSource:
        """What Triton compiles: integers have 64 bits, and nothing is specialised on values."""
        names = self.kernel.arg_names
        types = ["constexpr" if d is None else f"*{TYPE_NAMES[d]}" for d in self.dtypes]
        types += ["i64"] * self.integers + ["constexpr"] * len(self.constants)
        first = len(self.dtypes) + self.integers
        constants = dict(zip(names[first:], self.constants, strict=True))
        constants |= {n: None for n, d in zip(names, self.dtypes, strict=False) if d is None}
        return ASTSource(self.kernel, dict(zip(names, types, strict=True)), constants)

    def compile(self, target: Any) -> Any:
        """Compiles for a target, on a GPU's machine or ahead of time."""
        # As nvcc is told: what is to be fused is written as fma, in both languages.
        options = {
            "num_warps": self.num_warps,
            "enable_fp_fusion": False,
            "launch_cooperative_grid": self.cooperative,
            "maxnreg": self.max_registers,
        }
        return triton.compile(self.source(), target=target, options=options)


_handles: dict[tuple[Any, ...], Any] = {}
_occupancies: dict[tuple[Any, ...], tuple[int, int]] = {}

ALL_PHASES = tl.constexpr(0)
COOPERATIVE_LAUNCH = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
# Under the interpreter, which runs them one after the other, more would only take longer.
INTERPRETED_PROGRAMS = 3
# It changes Triton's language while a kernel runs, for all threads.
_interpreter = threading.RLock()


def _forget_interpreter() -> None:
    """A child process has none of its parent's threads, one of which may have held the lock."""
    global _interpreter
    _interpreter = threading.RLock()


os.register_at_fork(after_in_child=_forget_interpreter)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.recordings: list[list[Specialization]] = []


_thread = _Thread()


def _interpret(kernel: Any, programs: int, *arguments: Any) -> None:
    with _interpreter:
        kernel[(programs,)](*arguments)


def launch(
    kernel: Any,
    programs: int,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
    max_registers: int | None = None,
) -> None:
    """Starts `programs` programs of a kernel on the current stream of its tensors' device.

    `max_registers`: of a thread, so that more programs run at once; None: as many as the compiler
    likes.
    """
    out = tensors[-1]
    kind = type(out)
    if _thread.recordings:
        _record(kernel, tensors, integers, constants, num_warps, False, max_registers)
    elif INTERPRETED:
        _interpret(kernel, programs, *tensors, *integers, *constants)
    elif kind is not torch.Tensor:
        wrapped = torch.library.wrap_triton(kernel)
        options: dict[str, int] = {} if max_registers is None else {"maxnreg": max_registers}
        wrapped[(programs,)](*tensors, *integers, *constants, num_warps=num_warps, **options)
    elif out.get_device() != torch._C._cuda_getDevice():
        with torch.cuda.device(_device_of(out)):
            launch(kernel, programs, tensors, integers, constants, num_warps, max_registers)
    else:
        handle, _ = _find(kernel, tensors, integers, constants, num_warps, False, max_registers)
        _run(handle, programs, tensors, integers, constants)


def launch_cooperatively(
    kernel: Any,
    most: int,
    per_multiprocessor: int | None,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
    phases: int,
    max_registers: int | None = None,
    together: int = 1,
) -> int:
    """Starts programs that run at once, so that they may wait for each other.

    The kernel's last constant, which is added here, is ALL_PHASES, or the one phase to run, from 1
    to `phases`: Triton's interpreter, in which no program waits for another, runs the phases as
    launches one after the other.

    Args:
        most: how many programs at most; what work there is the kernel takes by `tl.num_programs`.
        per_multiprocessor: how many of them at most on each; None: exactly `most` in all.
        phases: between two phases there is a barrier.
        max_registers: of a thread, so that more programs fit; None: as many as the compiler likes.
        together: their number is a multiple of this; `most` is one.

    Returns:
        How many programs.

    Raises:
        ValueError: exactly `most` were asked for, or `together`, and they do not run at once.
    """
    if _thread.recordings:
        every = (*constants, ALL_PHASES)
        _record(kernel, tensors, integers, every, num_warps, True, max_registers)
        programs = most
    elif INTERPRETED:
        programs = most
        if per_multiprocessor is not None:
            programs = min(most, max(1, INTERPRETED_PROGRAMS // together) * together)
        for phase in range(1, phases + 1):
            _interpret(kernel, programs, *tensors, *integers, *constants, phase)
    else:
        every = (*constants, ALL_PHASES)
        with torch.cuda.device(_device_of(tensors[-1])):
            handle, key = _find(kernel, tensors, integers, every, num_warps, True, max_registers)
            occupancy, multiprocessors = _occupancies.get(key) or _occupancy(handle, key)
            fit = multiprocessors * occupancy
            if per_multiprocessor is not None:
                room = min(fit, multiprocessors * per_multiprocessor)
                most = max(1, min(most, room) // together) * together
            if most > fit:
                raise ValueError(
                    f"launching {kernel.fn.__name__}: its programs wait for each other, {most} of "
                    f"them were asked for, and of {num_warps} warps and {handle.metadata.shared} "
                    f"bytes of shared memory this device runs {fit} at once"
                )
            _run(handle, most, tensors, integers, every)
            programs = most
    return programs


def _device_of(tensor: torch.Tensor) -> int:
    """The index of a tensor's device. The facade refuses others than CUDA tensors; operators, which
    anybody can call, come here without it.
    """
    device = tensor.get_device()
    if device < 0:
        raise ValueError("a Triton kernel takes CUDA tensors")
    return device


def most_programs(tensor: torch.Tensor, per_multiprocessor: int) -> int:
    """How many programs run at once on a tensor's device, so many on each multiprocessor; 0 where
    none can be launched so that they wait for each other.

    Where none runs, interpreted or recorded, as many as are asked for.
    """
    if INTERPRETED or _thread.recordings:
        return sys.maxsize
    multiprocessors = _multiprocessors(_device_of(tensor))
    return multiprocessors * per_multiprocessor


@functools.cache
def _multiprocessors(device: int) -> int:
    """That programs can be launched on co-operatively."""
    is_cooperative = ctypes.c_int()
    driver().cuDeviceGetAttribute(ctypes.byref(is_cooperative), COOPERATIVE_LAUNCH, device)
    if not is_cooperative:
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def _record(
    kernel: Any,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
    *how: Any,
) -> None:
    dtypes = tuple(None if t is None else t.dtype for t in tensors)
    made = Specialization(kernel, dtypes, len(integers), constants, num_warps, *how)
    _thread.recordings[-1].append(made)


def _find(
    kernel: Any,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
    *how: Any,
) -> tuple[Any, tuple[Any, ...]]:
    """The handle to a compiled kernel on the current device, and its key.

    `how` are the rest of a Specialization's fields.
    """
    dtypes = tuple([None if t is None else t.dtype for t in tensors])
    # A JITFunction hashes its source.
    key = (kernel.fn, tensors[-1].get_device(), dtypes, constants, num_warps, how)
    handle = _handles.get(key)
    if handle is None:
        made = Specialization(kernel, dtypes, len(integers), constants, num_warps, *how)
        handle = _handles[key] = _load(made)
    return handle, key


def _run(
    handle: Any,
    programs: int,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
) -> None:
    stream = torch._C._cuda_getCurrentRawStream(tensors[-1].get_device())
    # Addresses instead of tensors: Triton's launcher would ask the driver about each.
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    arguments = (*pointers, *integers, *constants)
    # Chains without hooks, as they are where no profiler has added one, are not worth the calls.
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    grid = (programs, 1, 1)
    metadata = None
    if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
        metadata = handle.launch_metadata(grid, stream, *arguments)
    else:
        enter = leave = None
    handle.run(
        *grid,
        stream,
        handle.function,
        handle.packed_metadata,
        metadata,
        enter,
        leave,
        *arguments,
    )


def _occupancy(handle: Any, key: tuple[Any, ...]) -> tuple[int, int]:
    """How many programs a multiprocessor runs at once, and how many multiprocessors there are."""
    blocks, is_cooperative = ctypes.c_int(), ctypes.c_int()
    driver().cuDeviceGetAttribute(ctypes.byref(is_cooperative), COOPERATIVE_LAUNCH, key[1])
    if not is_cooperative:
        raise RuntimeError(
            "this device launches no kernel co-operatively, so that programs could wait for each "
            "other"
        )
    status = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks),
        ctypes.c_void_p(handle.function),
        32 * handle.metadata.num_warps,
        ctypes.c_size_t(handle.metadata.shared),
    )
    if status != 0:
        raise RuntimeError(f"asking for a kernel's occupancy: CUDA error {status}")
    count = torch.cuda.get_device_properties(key[1]).multi_processor_count
    _occupancies[key] = blocks.value, count
    return _occupancies[key]


def _load(specialization: Specialization) -> Any:
    """Compiles for, and loads onto, the current device."""
    handle = specialization.compile(triton.runtime.driver.active.get_current_target())
    with relaxed_capture():
        handle._init_handles()
    return handle


@contextlib.contextmanager
def record_launches() -> Iterator[list[Specialization]]:
    """Context manager: what launchers called in it, on this thread, would run; nothing runs."""
    recording: list[Specialization] = []
    _thread.recordings.append(recording)
    try:
        yield recording
    finally:
        _thread.recordings.pop()


def _pack_halves(kind: type, value: float) -> tuple[int, int]:
    if kind is float:
        return struct.unpack("<ii", struct.pack("<d", value))[::-1]
    return struct.unpack("<ii", struct.pack("<q", (int(value) + 2**63) % 2**64 - 2**63))[::-1]


_halves = functools.lru_cache(maxsize=1024)(_pack_halves)


def number_halves(value: float, dtype: torch.dtype) -> tuple[int, int]:
    """The high and low 32 bits of a number: of a float64 where `dtype` is floating, else an int64.

    Kernels take every number so, because Triton passes a Python float as float32, and Inductor no
    integer constant beyond 32 bits.
    """
    kind = float if dtype.is_floating_point else int
    # A cache takes 0.0 and -0.0 for one key.
    return _halves(kind, value) if value != 0 else _pack_halves(kind, value)
