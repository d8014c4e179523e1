"""Backends: ways to run an op, how one is chosen, and why one is refused."""

from diglot.backends.choosing import use_plans
from diglot.backends.runs import LastRun, last_run, record_runs
from diglot.backends.selection import (
    BackendUnavailable,
    Explanation,
    available_backends,
    explain,
    use_backend,
)

__all__ = [
    "BackendUnavailable",
    "Explanation",
    "LastRun",
    "available_backends",
    "explain",
    "last_run",
    "record_runs",
    "use_backend",
    "use_plans",
]
