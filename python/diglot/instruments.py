"""The one door from the library to its instruments.

The library imports no instrument. An instrument, such as `diglot.compare`, is loaded at its first
use.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def instrument(name: str) -> ModuleType:
    """The module `diglot.tools.<name>`, loaded now if it was not."""
    return importlib.import_module(f"diglot.tools.{name}")
