"""What tests do to make Triton's launchers plan otherwise."""

from __future__ import annotations

from typing import Any

import pytest


def plan_anew(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any) -> None:
    """Replaces what planners look at; plans that are kept are put aside until the test ends."""
    from diglot.triton_ops.launch import launch

    monkeypatch.setattr(module, name, value)
    for launcher in launch.launchers:
        monkeypatch.setitem(launcher.__globals__, "plans", {})
