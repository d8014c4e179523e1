"""What ops do while a stream is captured in a CUDA graph, and must not become part of it."""

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
    """Whether what is launched on the device's current stream goes to a CUDA graph."""
    if device.type != "cuda":
        return False
    if device.index is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Tensors made in this context may be kept: no mode that is entered has a part in them."""
    with torch.inference_mode(False), _disable_current_modes():
        yield


@contextlib.contextmanager
def beside_captures(device: torch.device) -> Iterator[None]:
    """What is enqueued in this context is done when it ends, and by no graph.

    Memory that is allocated in it lives as long as its tensors, whatever becomes of a graph.
    """
    with relaxed_capture(), torch.cuda.stream(own_stream(device, "beside captures")):
        yield
        torch.cuda.current_stream(device).synchronize()


@functools.cache
def own_stream(device: torch.device, use: str) -> torch.cuda.Stream:
    """A stream for one use. PyTorch gives its own streams out in turns: they may be captured, or
    busy.
    """
    stream = ctypes.c_void_p()
    with torch.cuda.device(device):
        status = driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
    if status != 0:
        raise RuntimeError(f"making a stream: CUDA error {status}")
    return torch.cuda.ExternalStream(stream.value, device)
