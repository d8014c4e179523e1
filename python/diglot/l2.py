"""L2 persistence: keeps a tensor in a part of the GPU's L2 cache while other data streams past.

    with diglot.l2.persist(table):
        ...  # kernels of the current stream find more of `table` in the cache

It changes speed, never results. docs/l2.md measures when it helps, and when it costs. Source of the
scheme: "L2 Cache Control" in NVIDIA's CUDA Programming Guide.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from diglot.backends.registry import load_extension
from diglot.ops.checks import check_tensor
from diglot.ops.numbers import check_number

__all__ = ["Info", "Window", "info", "persist"]

OLDEST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Info:
    """A GPU's L2 cache. Sizes are in bytes.

    Attributes:
        size: of the cache.
        set_aside: the part that is set aside for persisting lines now, in this process. The driver
            may set some aside from the start.
        largest_set_aside: the most that `persist` sets aside: 3/4, or the device's limit.
        largest_window: the most of a tensor that `persist` covers.
        refusal: why `persist` has no effect there; None if it has an effect.
    """

    size: int
    set_aside: int
    largest_set_aside: int
    largest_window: int
    refusal: str | None


@dataclass(frozen=True)
class Window:
    """The request of a `persist`.

    Attributes:
        address: the start of the range.
        num_bytes: its length.
        hit_ratio: the share of its lines that persist.
    """

    address: int
    num_bytes: int
    hit_ratio: float


def info(device: torch.device | str | int | None = None) -> Info:
    """The L2 cache of a GPU, and the part of it that can be set aside.

    Args:
        device: a CUDA device; by default the current one. The call initialises CUDA.

    Raises:
        ValueError: `device` is not a CUDA device.
        RuntimeError: there is no GPU, or diglot was installed without its CUDA extension.
    """
    if isinstance(device, int):  # which torch.device takes for the accelerator, if there is one
        where = torch.device("cuda", device)
    else:
        where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        raise ValueError(f"l2.info: device must be a CUDA device, not {where}")
    native = _native("l2.info")
    if not torch.cuda.is_available():
        raise RuntimeError("l2.info: PyTorch finds no CUDA GPU")
    index = torch.cuda.current_device() if where.index is None else where.index
    size = native.l2_size(index)
    return Info(
        size=size,
        set_aside=native.l2_set_aside(index),
        largest_set_aside=min(3 * size // 4, native.l2_largest_set_aside(index)),
        largest_window=native.l2_largest_window(index),
        refusal=_refusal(native, index),
    )


@contextmanager
def persist(tensor: torch.Tensor, hit_ratio: float | None = None) -> Iterator[Window | None]:
    """Context manager: lines of `tensor` persist in the L2 cache.

    The entry sets aside as much of the cache as the tensor needs, up to `info().largest_set_aside`.
    It also sets an access-policy window on the current stream, over the tensor's memory. Kernels
    that are launched on that stream mark the lines that they touch there as persisting. Other data
    does not displace these lines.

    The exit clears the stream's window at once, after an exception too. A thread of diglot waits
    until the work of this scope, and of every other scope on the device, is done. Then persisting
    lines become normal ones, and the set-aside is restored. The exit does not wait for that.

    CUDA changes the set-aside only when all work on the device is done, and blocks launches until
    then. A scope changes it, on entry and after its exit, only if it needs more than is already set
    aside. That may be the driver's default (11.25 MB on an H200) or an outer scope's.

    Scopes nest, and may be open on several streams and threads. Their needs add up. On one stream
    the window opened last counts. The process ends only after the work of its scopes.

    During the capture of a CUDA graph, the captured kernels get the window for good, and nothing is
    set aside. Replay the graph in a scope of its own.

    Args:
        tensor: a CUDA tensor of any dtype and strides. The window covers the memory from its first
            element to its last, gaps included, but at most `info().largest_window` bytes.
        hit_ratio: the share of the window's lines that persist, greater than 0 and at most 1. CUDA
            chooses which. By default it is as large as the set-aside allows; beyond that, lines
            displace each other.

    Returns:
        The `Window`, as the target of `as`; None if there is no effect.

    Raises:
        TypeError: `tensor` is not a dense tensor, or `hit_ratio` not a number.
        ValueError: the tensor is not on a GPU or has no elements; `hit_ratio` is out of range.
        RuntimeError: diglot was installed without its CUDA extension, or CUDA fails.

    Warns:
        RuntimeWarning: there is no effect, because the GPU is older than compute capability 8.0 or
            in MIG mode, or the process runs under MPS.
    """
    check_tensor("l2.persist", "tensor", tensor)
    if hit_ratio is not None:
        hit_ratio = float(check_number("l2.persist", "hit_ratio", hit_ratio))
        if not 0 < hit_ratio <= 1:
            raise ValueError(
                f"l2.persist: hit_ratio must be greater than 0 and at most 1, not {hit_ratio}"
            )
    if tensor.device.type != "cuda":
        raise ValueError(f"l2.persist: tensor must be on a CUDA device, not on {tensor.device}")
    if tensor.numel() == 0:
        raise ValueError("l2.persist: tensor has no elements")
    native, device = _native("l2.persist"), tensor.device.index
    state = info(tensor.device)
    if state.refusal is not None:
        warnings.warn(f"l2.persist has no effect: {state.refusal}", RuntimeWarning, stacklevel=3)
        yield None
        return
    num_bytes = min(span_bytes(tensor), state.largest_window)
    if hit_ratio is None:
        hit_ratio = min(1.0, state.largest_set_aside / num_bytes)
    window = Window(tensor.data_ptr(), num_bytes, hit_ratio)
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        is_captured = torch.cuda.is_current_stream_capturing()
    # Captured work runs later, so it needs nothing now, and an event would not show when it ends.
    need = 0 if is_captured else math.ceil(num_bytes * hit_ratio)
    scopes = _scopes.setdefault(device, _Scopes(native, device, state.largest_set_aside))
    scopes.begin(stream.cuda_stream, window, need)
    try:
        yield window
    except BaseException:
        # Where the context is lost, the first error is the one to tell.
        with suppress(RuntimeError):
            scopes.end(stream.cuda_stream, window, need)
        raise
    scopes.end(stream.cuda_stream, window, need)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last; it has at least one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _native(caller: str) -> Any:
    module, reason = load_extension()
    if module is None:
        raise RuntimeError(f"{caller}: {reason}")
    return module


def _refusal(native: Any, device: int) -> str | None:
    """Why nothing can be set aside on a device, or None."""
    name = torch.cuda.get_device_name(device)
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        found, least = (f"{major}.{minor}" for major, minor in (capability, OLDEST_CAPABILITY))
        return f"{name} has compute capability {found}; the least is {least}"
    if " MIG " in name:
        return f"{name} is a part of a GPU in MIG mode, and MIG cannot set cache aside"
    if native.l2_is_under_mps(device):
        return (
            f"{name} is used through MPS, whose server fixes at its start how much is set aside "
            "(CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT)"
        )
    if native.l2_largest_set_aside(device) == 0:
        return f"{name} cannot set cache aside (as in MIG mode)"
    return None


class _Scopes:
    """The scopes on one device.

    The set-aside and the persisting lines belong to the device's context: both are reset after the
    work of the last scope. Windows belong to their streams.
    """

    def __init__(self, native: Any, device: int, largest_set_aside: int) -> None:
        self.native = native
        self.device = device
        self.largest_set_aside = largest_set_aside
        self.set_aside_before = 0
        self.needs: list[int] = []  # bytes, of scopes that are open or whose work is not done
        self.windows: dict[int, list[Window]] = {}  # of open scopes, by the stream
        # Reentrant: a scope that nobody closed ends when it is collected, maybe in here.
        self.lock = threading.RLock()

    def begin(self, stream: int, window: Window, need: int) -> None:
        """Puts a window on a stream, and sets `need` bytes aside."""
        with self.lock:
            if need:
                self._hold(need)
            self.windows.setdefault(stream, []).append(window)
            try:
                self._show(stream)
            except RuntimeError:
                self.windows[stream].remove(window)
                self._release(need)
                raise

    def end(self, stream: int, window: Window, need: int) -> None:
        """Takes the window off, and frees its set-aside when the stream's work is done."""
        with self.lock:
            self.windows[stream].remove(window)
            try:
                self._show(stream)
                event = self.native.l2_record(self.device, stream) if need else None
            except RuntimeError:
                self._release(need)
                raise
        if event is not None:
            _waiter().submit(self._finish, event, need)

    def _show(self, stream: int) -> None:
        """Puts the window that was opened last on the stream, or none."""
        window = self.windows[stream][-1] if self.windows[stream] else Window(0, 0, 0.0)
        self.native.l2_set_window(
            self.device, stream, window.address, window.num_bytes, window.hit_ratio
        )

    def _finish(self, event: int, need: int) -> None:
        try:
            self.native.l2_await(self.device, event)
        finally:
            self._release(need)

    def _hold(self, need: int) -> None:
        found = self.native.l2_set_aside(self.device)
        wanted = min(sum(self.needs) + need, self.largest_set_aside)
        if found < wanted:
            self.native.l2_set_set_aside(self.device, wanted)
        if not self.needs:
            self.set_aside_before = found
        self.needs.append(need)

    def _release(self, need: int) -> None:
        with self.lock:
            if not need:
                return
            self.needs.remove(need)
            if not self.needs:
                self.native.l2_reset_lines(self.device)
                if self.native.l2_set_aside(self.device) != self.set_aside_before:
                    self.native.l2_set_set_aside(self.device, self.set_aside_before)


_scopes: dict[int, _Scopes] = {}


@functools.cache
def _waiter() -> ThreadPoolExecutor:
    # One thread: a reset waits for all scopes anyway. Python joins it when the process ends.
    return ThreadPoolExecutor(1, thread_name_prefix="diglot-l2")
