"""The bar of 64 MiB in bench/stream_cases.py."""

from __future__ import annotations

import pytest

from diglot.bench.stream_cases import ideal
from diglot.tools.transfer import Duplex

COPIES = Duplex(h2d=2.0, d2h=4.0, both=1.0)


@pytest.mark.parametrize(
    ("computing", "seconds"),
    [
        (0.5, 4 / 2 + 6 / 1 + 2 / 4),  # the bus is slower
        (20.0, 4 / 2 + 0.6 * 20 + 2 / 4),  # the kernel is
    ],
)
def test_the_ideal(computing, seconds):
    """Of ten GB the first four, the other six, and the last two."""
    found = ideal(10 * 10**9, 4 * 10**9, COPIES, computing)
    assert found == pytest.approx(seconds)


def test_the_ideal_of_whole_chunks():
    assert ideal(8 * 10**9, 4 * 10**9, COPIES, 0.0) == pytest.approx(2 + 4 + 1)
