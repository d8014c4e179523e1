"""Reductions: states and how they combine; whole arrays.

The names of the old module `reduce.py`, now reduce/states.py, stay here for one release.
"""

from .states import *  # noqa: F403
