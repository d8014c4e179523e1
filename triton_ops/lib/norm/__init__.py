"""Norms of rows, forward and backward.

The names of the old module `norm.py`, now norm/forward.py, stay here for one release.
"""

from .forward import *  # noqa: F403
