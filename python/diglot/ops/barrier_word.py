"""The word of memory that a grid barrier lives in."""

from __future__ import annotations

import threading

import torch

from diglot.backends.capture import beside_captures, is_captured, ordinary_tensors

WORDS = 1024  # of captured launches, that are allocated at once
PER_THREAD_STREAM = 2  # cudaStreamPerThread: each thread's own, though of one handle

_words: dict[tuple[int, int, int], torch.Tensor] = {}
_spare: dict[int, list[torch.Tensor]] = {}
# Graphs hold addresses, not tensors: what words of captured launches lie in is never freed.
_captured: list[torch.Tensor] = []
_lock = threading.Lock()


def barrier_word(device: torch.device) -> torch.Tensor:
    """A word, int32 of shape [1], for the barriers of one launch on the device's current stream.

    No two running kernels may share one. Launches on one stream run one after the other, and a
    barrier leaves the word as the next one wants it: they share a word, that is zeroed once. So
    does a launch that is captured in a CUDA graph, with its own replays, which run one after the
    other too: it has a word of its own, that is zeroed before the graph first runs, and is never
    given to another. (To zero it in the graph would take a node of its own, before each launch.)
    On the CPU, whose threads may interpret kernels at once, every launch has one.

    Streams are told apart by their handles: one that is destroyed while its kernel runs must not be
    followed by another at once.
    """
    if device.type != "cuda":
        return torch.zeros(1, dtype=torch.int32, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    if is_captured(device):
        return _word_of_capture(index)
    stream = torch._C._cuda_getCurrentRawStream(index)
    key = (index, stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0)
    word = _words.get(key)
    if word is None:
        # Made on the stream that uses it, so that the zeros are there before its first launch.
        with ordinary_tensors():
            word = _words.setdefault(key, torch.zeros(1, dtype=torch.int32, device=device))
    return word


def _word_of_capture(index: int) -> torch.Tensor:
    with _lock:
        spare = _spare.setdefault(index, [])
        if not spare:
            device = torch.device("cuda", index)
            with ordinary_tensors(), beside_captures(device):
                words = torch.zeros(WORDS, dtype=torch.int32, device=device)
                _captured.append(words)
                spare.extend(words.split(1))
        return spare.pop()
