"""What decides how a function runs, and is no argument: gradients, autocast, random state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from diglot.graphs.device import Device
from diglot.graphs.errors import GraphError

Modes = tuple[bool, torch.dtype | None]


def current_modes(device_type: str) -> Modes:
    """Whether gradients are recorded, and the dtype of autocast, if it is on."""
    return torch.is_grad_enabled(), autocast_dtype(device_type)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of autocast, if it is on."""
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def check_autocast(captured: torch.dtype | None, device_type: str) -> None:
    """Raises GraphError unless autocast is as in the capture."""
    now = autocast_dtype(device_type)
    if now != captured:
        raise GraphError(
            f"autocast was {captured or 'off'} in the capture, and is {now or 'off'} in this call: "
            "call as it was captured, or capture anew"
        )


def check_modes(captured: Modes, has_gradient: bool, device_type: str) -> None:
    """Raises GraphError if a graph would compute otherwise than the function does now."""
    check_autocast(captured[1], device_type)
    if torch.is_grad_enabled() and not captured[0] and not has_gradient:
        raise GraphError(
            "the graph was captured without gradients, and this call would record them: call it "
            "within torch.no_grad(), or capture anew where gradients are enabled"
        )


@contextlib.contextmanager
def as_captured(captured: Modes) -> Iterator[None]:
    """Context manager: gradients are recorded if they were in the first capture."""
    if captured[0]:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    else:
        yield


_captor: int | None = None  # the thread that runs a function for a capture: there is one at a time


def is_run_for_capture() -> bool:
    """Whether this thread runs a function to capture it, or to warm up for that."""
    return _captor is not None and _captor == threading.get_ident()


@contextlib.contextmanager
def run_for_capture() -> Iterator[None]:
    """Context manager: functions run in it for a capture, or for the warm-up before one.

    Their backward passes run in this thread. PyTorch's own thread for them is one for the whole
    GPU: it may wait for a lock that this thread holds. An autocast around the context keeps no
    casts. A graph would read them after they were freed, and casts that a graph makes are in its
    memory.
    """
    global _captor
    before, was_enabled = _captor, torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    _captor = threading.get_ident()
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _captor = before
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(was_enabled)


@contextlib.contextmanager
def undone(device: Device, tensors: Iterable[Tensor]) -> Iterator[None]:
    """Context manager: after it, random state and tensors are as before."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    on_host, on_device = torch.get_rng_state(), device.random_state()
    try:
        yield
    finally:
        device.set_random_state(on_device)
        torch.set_rng_state(on_host)
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
