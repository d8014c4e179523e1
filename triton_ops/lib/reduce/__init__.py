"""Reductions: states and how they combine (states.py), and whole arrays (global_.py).

The names of the old module `reduce.py`, now reduce/states.py, stay here for one release.
"""

from .states import *  # noqa: F403
