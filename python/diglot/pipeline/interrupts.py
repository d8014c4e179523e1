"""Ctrl-C during work that must come to an orderly end."""

from __future__ import annotations

import _signal  # without enumerations, whose making raises and catches an error
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
    if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        yield False
        return
    came = False

    def handle(*_: object) -> None:
        nonlocal came
        came = True
        stop()

    _signal.signal(_signal.SIGINT, handle)
    try:
        yield True
    finally:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
