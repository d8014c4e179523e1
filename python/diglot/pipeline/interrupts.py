"""Ctrl-C during work that must come to an orderly end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def called_on_interrupt(stop: Callable[[], None]) -> Iterator[bool]:
    """Context manager: Ctrl-C calls a function, and KeyboardInterrupt is raised at the end, not in
    the middle of the thread's work.

    Yields whether it does so. It does not where the user has a handler of their own, which may
    raise anything.
    """
    if threading.current_thread() is not threading.main_thread():
        yield True  # signals come to the main thread alone
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield False
        return
    came = False

    def handle(*_: object) -> None:
        nonlocal came
        came = True
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
