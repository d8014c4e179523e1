"""The plans that a call may have. A tuner times them, and chooses one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from diglot.backends.choosing import use_plans
from diglot.backends.plans import KernelLaunch, Plan
from diglot.backends.runs import plan
from diglot.backends.store import Numbers
from diglot.backends.tunable_files import TunableError
from diglot.backends.tunables import generic_name, is_overridden, specs


@dataclass(frozen=True)
class Candidate:
    """One way to run a call.

    Attributes:
        plan: the plan.
        numbers: within `use_plans(numbers)` the call has this plan.
    """

    plan: Plan
    numbers: Numbers


def candidate_plans(
    backend: str, op: str, name: str, *arguments: Any, start: Numbers | None = None
) -> list[Candidate]:
    """The distinct plans of a call: one, and those that differ from it in one tunable.

    Each tunable that decided takes its alternatives, while the others stay. Tunables on which
    results depend are left alone. The process drops its kept plans, as `use_plans` says.

    Args:
        backend: "cuda" or "triton".
        op, name: the op, and the launcher.
        arguments: the launcher's, without its scratch.
        start: the numbers of the first plan; by default the planner's own.
    """
    own = dict(start or {})
    with use_plans(own):
        first = plan(backend, op, name, *arguments)
    candidates = [Candidate(first, own)]
    seen = [_launched(first)]
    for full, value in first.tunables:
        spec = specs()[full]
        tunable = generic_name(full, spec)
        if spec.same_everywhere or is_overridden(tunable):
            continue
        for other in (spec.value, *spec.alternatives):
            if other == value:
                continue
            numbers = {**own, tunable: other}
            if other == spec.value:
                del numbers[tunable]
            try:
                with use_plans(numbers):
                    made = plan(backend, op, name, *arguments)
            except TunableError:  # no number of another tunable fits this one
                continue
            if _launched(made) not in seen:
                seen.append(_launched(made))
                candidates.append(Candidate(made, numbers))
    return candidates


def _launched(made: Plan) -> tuple[Any, ...]:
    """A plan's launches, for a comparison: plans that launch the same are equal here."""
    # The function that makes a kernel's numbers is left out: equal plans may have different
    # objects.
    launches = [
        launch if isinstance(launch, KernelLaunch) else replace(launch, numbers=None)
        for launch in made.launches
    ]
    return made.variant, launches, made.scratch
