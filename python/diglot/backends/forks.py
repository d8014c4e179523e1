"""Locks in child processes. The parent's threads are missing there, so none would release a lock
that it held.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def renew_in_children(
    namespace: dict[str, Any], name: str, make: Callable[[], Any] = threading.Lock
) -> None:
    """Gives each child process its own lock, under a name in a module's globals."""
    os.register_at_fork(after_in_child=lambda: namespace.update({name: make()}))
