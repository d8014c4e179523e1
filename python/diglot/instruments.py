"""The one door from the library to its instruments.

The library imports no instrument. What an instrument adds to it, such as `diglot.compare`, is
loaded when somebody asks for it.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def instrument(name: str) -> ModuleType:
    """The module `diglot.tools.<name>`, loaded now if it was not."""
    return importlib.import_module(f"diglot.tools.{name}")
