"""The CUDA driver, for what PyTorch has no function for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library."""
    return ctypes.CDLL("libcuda.so.1")


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Lets this thread do what is otherwise an error while a stream is being captured.

    That is to load code, or to allocate memory and wait for another stream.
    """
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
