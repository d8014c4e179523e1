"""The lessons of examples/lessons, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "examples/lessons"
PAGE = FOLDER.parents[1] / "docs/lessons.md"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A lesson as a module, with its folder on the path, as Python itself would have it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"lesson_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
