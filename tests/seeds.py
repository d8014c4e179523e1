"""Random numbers in tests: those of a test are the same each time, alone or among others."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

VARIABLE = "DIGLOT_TEST_SEED"
# The interpreter's own seeds, which order threads and copies.
SEEDS_OF_INTERPRETER = [
    pytest.param(range(8), id="8 seeds"),
    pytest.param(range(8, 200), id="200 seeds", marks=pytest.mark.slow),
]


def seed_of(name: str) -> int:
    """The seed of what has this name, under the variable's value."""
    text = f"{os.environ.get(VARIABLE, '0')} {name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")  # NumPy takes 32 bits


def seed_all(seed: int) -> None:
    """Seeds the generators that draw where a test names none."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def seeded(name: str) -> Iterator[None]:
    """Context manager: within it the generators are seeded; afterwards they are as they were."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_all(seed_of(name))
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


class _OfExamples:
    """PyTorch's generators, as Hypothesis sees to Python's: each example starts from one seed."""

    test = 0

    def seed(self, value: int) -> None:
        torch.manual_seed(self.test + value)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


_of_examples = _OfExamples()  # Hypothesis holds no reference that keeps it
hypothesis.register_random(_of_examples)


def name_of(item: pytest.Item) -> str:
    """The test's id, without what pytest-xdist adds to it."""
    group = item.get_closest_marker("xdist_group")
    names = [*group.args, *group.kwargs.values()] if group else []
    return item.nodeid.removesuffix(f"@{names[0]}") if names else item.nodeid


class Seeds:
    """A plugin: seeds each module, each shared fixture and each test by its name."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        with seeded(collector.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        index = getattr(request, "param_index", "")
        # Which test sets it up depends on those that are run.
        with seeded(f"{fixturedef.baseid}::{fixturedef.argname}[{index}]"):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        _of_examples.test = seed_of(name_of(item))
        seed_all(_of_examples.test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = yield
        if report.failed:
            value = os.environ.get(VARIABLE, "0")
            again = f"{VARIABLE}={value} python -m pytest '{name_of(item)}'"
            report.sections.append(("the same random numbers again", again))
        return report
