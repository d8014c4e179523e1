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
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton import knobs
from triton.compiler import ASTSource

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
    """

    kernel: Any
    dtypes: tuple[torch.dtype | None, ...]
    integers: int
    constants: tuple[Any, ...]
    num_warps: int

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
        options = {"num_warps": self.num_warps, "enable_fp_fusion": False}
        return triton.compile(self.source(), target=target, options=options)


_handles: dict[tuple[Any, ...], Any] = {}


class _Thread(threading.local):
    def __init__(self) -> None:
        self.recordings: list[list[Specialization]] = []


_thread = _Thread()


def launch(
    kernel: Any,
    programs: int,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
) -> None:
    """Starts `programs` programs of a kernel on the current stream of its tensors' device."""
    out = tensors[-1]
    kind = type(out)
    if _thread.recordings:
        dtypes = tuple(None if t is None else t.dtype for t in tensors)
        made = Specialization(kernel, dtypes, len(integers), constants, num_warps)
        _thread.recordings[-1].append(made)
    elif INTERPRETED:
        kernel[(programs,)](*tensors, *integers, *constants)
    elif kind is not torch.Tensor:
        wrapped = torch.library.wrap_triton(kernel)
        wrapped[(programs,)](*tensors, *integers, *constants, num_warps=num_warps)
    else:
        _launch_handle(kernel, programs, tensors, integers, constants, num_warps)


def _launch_handle(
    kernel: Any,
    programs: int,
    tensors: Tensors,
    integers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int,
) -> None:
    device = tensors[-1].get_device()
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            _launch_handle(kernel, programs, tensors, integers, constants, num_warps)
        return
    dtypes = tuple([None if t is None else t.dtype for t in tensors])
    key = (kernel.fn, device, dtypes, constants, num_warps)  # a JITFunction hashes its source
    handle = _handles.get(key)
    if handle is None:
        made = Specialization(kernel, dtypes, len(integers), constants, num_warps)
        handle = _handles[key] = _load(made)
    stream = torch._C._cuda_getCurrentRawStream(device)
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


def _load(specialization: Specialization) -> Any:
    """Compiles for, and loads onto, the current device."""
    handle = specialization.compile(triton.runtime.driver.active.get_current_target())
    with _relaxed_capture():
        handle._init_handles()
    return handle


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@contextlib.contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Lets this thread load code while a stream is being captured, which is otherwise an error."""
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


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
