"""Locks in child processes: none of the parent's threads is there to let go of one that it held."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def renew_in_children(
    namespace: dict[str, Any], name: str, make: Callable[[], Any] = threading.Lock
) -> None:
    """Gives each child process a lock of its own, under a name of a module's globals."""
    os.register_at_fork(after_in_child=lambda: namespace.update({name: make()}))
