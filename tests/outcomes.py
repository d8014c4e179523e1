"""What a run of the tests on a GPU came to: bench/results/<gpu>/tests.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def added(before: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The outcome of two runs, of different tests of the same sources.

    Raises:
        ValueError: they are not of the same.
    """
    together = before | record
    for key, value in record.items():
        of_before = before.get(key)
        if key in ("passed", "failed", "skipped"):
            together[key] = of_before + value
        elif key == "failures":
            together[key] = sorted({*of_before, *value})
        elif key == "skip_reasons":
            together[key] = dict(sorted((Counter(of_before) + Counter(value)).items()))
        elif key == "selection" and value in of_before.split("; "):
            raise ValueError(f"--evidence=add: {value!r} is in it already")
        elif key == "selection":
            together[key] = f"{of_before}; {value}"
        elif of_before != value and key != "incomplete":
            raise ValueError(f"--evidence=add: {key} was {of_before}, and is {value}")
    return together


def last_results(results: Path, sources: str) -> list[str]:
    """A line for each GPU with a recorded run: its outcome, and whether it is of these sources."""
    lines = []
    for path in sorted(results.glob("*/tests.json")):
        name = path.parent.name
        try:
            run = json.loads(path.read_text())
            outcome = ", ".join(f"{run[key]} {key}" for key in ("passed", "failed", "skipped"))
            if run.get("incomplete"):
                outcome += f", {run['incomplete']}"
            is_same = run["sources"] == sources
            state = "of these sources" if is_same else "STALE: the sources have changed since"
            lines.append(f"last run on {name}: {outcome}, commit {run['commit']}; {state}")
        except (ValueError, KeyError, OSError) as error:
            lines.append(f"last run on {name}: {path.name} cannot be read ({error!r})")
    return lines or ["last run on a GPU: none is recorded in bench/results"]
