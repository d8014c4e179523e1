"""Ctrl-C, which is not to break off what has to be brought to an end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def called_on_interrupt(stop: Callable[[], None]) -> Iterator[bool]:
    """Context manager: on Ctrl-C a function is called, and KeyboardInterrupt is raised at the end,
    not wherever this thread happens to be.

    Yields whether it is so. It is not where a handler of the user's may raise what it likes.
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
