"""The word of memory that a grid barrier lives in."""

from __future__ import annotations

import torch

_words: dict[tuple[int, int], torch.Tensor] = {}


def is_captured(device: torch.device) -> bool:
    """Whether what is launched on the device's current stream goes to a CUDA graph."""
    if device.type != "cuda":
        return False
    if device.index is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def barrier_word(device: torch.device) -> torch.Tensor:
    """A word, int32 of shape [1], for the barriers of one launch on the device's current stream.

    No two running kernels may share one. Launches on one stream run one after the other, and a
    barrier leaves the word as the next one wants it: they share a word, that is zeroed once. A
    launch that is captured in a CUDA graph has a word of its own, zeroed inside the graph: its
    replays may be on any stream. On the CPU, whose threads may interpret kernels at once, so has
    every launch.

    Streams are told apart by their handles: one that is destroyed while its kernel runs must not be
    followed by another at once.
    """
    if device.type != "cuda" or is_captured(device):
        return torch.zeros(1, dtype=torch.int32, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (index, torch._C._cuda_getCurrentRawStream(index))
    word = _words.get(key)
    if word is None:
        # Made on the stream that uses it, so that the zeros are there before its first launch.
        with torch.inference_mode(False):
            word = _words.setdefault(key, torch.zeros(1, dtype=torch.int32, device=device))
    return word
