"""Calls of the CUDA driver for which PyTorch has no function."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch

# Of CUstreamCaptureStatus and CUstreamCaptureMode
CAPTURE_NONE, CAPTURE_ACTIVE = 0, 1
MODE_THREAD_LOCAL, MODE_RELAXED = 1, 2


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def check_driver(status: int, what: str) -> None:
    """Raises RuntimeError unless a call of the driver succeeded."""
    if status != 0:
        raise RuntimeError(f"{what}: CUDA error {status}")


def stream_number(index: int) -> int:
    """The number of the device's current stream, which no other stream has or will have.

    Each thread's own stream (cudaStreamPerThread) has its own number, though all share one handle.
    """
    number = ctypes.c_ulonglong()
    handle = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
    if torch.cuda.current_device() == index:
        status = driver().cuStreamGetId(handle, ctypes.byref(number))
    else:  # the handle of a default stream means that of the current device
        with torch.cuda.device(index):
            status = driver().cuStreamGetId(handle, ctypes.byref(number))
    check_driver(status, "asking for a stream's number")
    return number.value


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Switches this thread to relaxed stream capture.

    It may then load code, allocate memory, and wait for another stream during a capture.
    """
    mode = ctypes.c_int(MODE_RELAXED)
    driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def replace_broken_capture(stream: int) -> None:
    """Begins an empty capture of a stream whose capture is broken, or has just ended.

    Args:
        stream: its handle.
    """
    handle, status = ctypes.c_void_p(stream), ctypes.c_int()
    check_driver(
        driver().cuStreamIsCapturing(handle, ctypes.byref(status)), "asking for a stream's capture"
    )
    if status.value == CAPTURE_ACTIVE:
        return
    if status.value != CAPTURE_NONE:
        graph = ctypes.c_void_p()
        driver().cuStreamEndCapture(handle, ctypes.byref(graph))  # it says that it is broken
    begun = driver().cuStreamBeginCapture_v2(handle, MODE_THREAD_LOCAL)
    check_driver(begun, "replacing a broken capture")
