"""Old name of sync/grid_barrier.py, kept for one release."""

from .sync.grid_barrier import *  # noqa: F403
