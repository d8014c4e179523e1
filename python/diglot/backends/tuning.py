"""The plans that a call may have: what a tuner times, and chooses among."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diglot.backends.plans import KernelLaunch, Plan
from diglot.backends.runs import plan
from diglot.backends.tunable_files import TunableError
from diglot.backends.tunables import specs, use_tunables


@dataclass(frozen=True)
class Candidate:
    """One way to run a call.

    Attributes:
        plan: it.
        overrides: within `use_tunables` of these the call has this plan.
    """

    plan: Plan
    overrides: Mapping[str, int]


def candidate_plans(backend: str, op: str, name: str, *arguments: Any) -> list[Candidate]:
    """The distinct plans of a call: the one that it has, and those by other tunables.

    Of the tunables that decided, each takes its alternatives, one at a time, and the others stay.
    The plans that the process keeps are forgotten meanwhile, as `use_tunables` says.

    Args:
        backend: "cuda" or "triton".
        op, name: the op, and the launcher.
        arguments: the launcher's, but for its scratch.
    """
    first = plan(backend, op, name, *arguments)
    candidates = [Candidate(first, {})]
    seen = [_launched(first)]
    for tunable, value in first.tunables:
        for other in specs()[tunable].alternatives:
            overrides = {tunable: other}
            if other == value:
                continue
            try:
                with use_tunables(overrides):
                    made = plan(backend, op, name, *arguments)
            except TunableError:  # no number of another tunable fits this one
                continue
            if _launched(made) not in seen:
                seen.append(_launched(made))
                candidates.append(Candidate(made, overrides))
    return candidates


def _launched(made: Plan) -> tuple[Any, ...]:
    """What two plans that launch the same have in common."""
    # What makes a kernel's numbers is the same function, but may have been made anew.
    launches = [
        launch if isinstance(launch, KernelLaunch) else replace(launch, numbers=None)
        for launch in made.launches
    ]
    return made.variant, launches, made.scratch
