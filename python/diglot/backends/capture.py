"""Work of ops during the capture of a CUDA graph that must not become part of the graph."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

from diglot.backends.driver import driver, relaxed_capture

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph captures the launches on the device's current stream."""
    if device.type != "cuda":
        return False
    if device.index is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Tensors made in this context may be kept: no active mode takes part in them."""
    with torch.inference_mode(False), _disable_current_modes():
        yield


@contextlib.contextmanager
def beside_captures(device: torch.device) -> Iterator[None]:
    """Work enqueued in this context is done when the context ends, and belongs to no graph.

    Memory allocated in it lives as long as its tensors, independent of any graph.
    """
    with relaxed_capture(), torch.cuda.stream(own_stream(device, "beside captures")):
        yield
        torch.cuda.current_stream(device).synchronize()


@functools.cache
def own_stream(device: torch.device, use: str) -> torch.cuda.Stream:
    """A stream for one use. PyTorch gives out its own in turns, so one may be captured, or busy."""
    stream = ctypes.c_void_p()
    with torch.cuda.device(device):
        status = driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
    if status != 0:
        raise RuntimeError(f"making a stream: CUDA error {status}")
    return torch.cuda.ExternalStream(stream.value, device)
