"""What ops do while a stream is captured in a CUDA graph, and must not become part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from diglot.backends.driver import relaxed_capture


def is_captured(device: torch.device) -> bool:
    """Whether what is launched on the device's current stream goes to a CUDA graph."""
    if device.type != "cuda":
        return False
    if device.index is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def beside_captures(device: torch.device) -> Iterator[None]:
    """What is enqueued in this context is done when it ends, and by no graph.

    Memory that is allocated in it lives as long as its tensors, whatever becomes of a graph.
    """
    with relaxed_capture(), torch.cuda.stream(_uncaptured_stream(device)):
        yield
        torch.cuda.current_stream(device).synchronize()


def _uncaptured_stream(device: torch.device) -> torch.cuda.Stream:
    """PyTorch has 32 streams, and gives them out in turns."""
    while True:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream
