"""copy_rows, which copies tensors to where a graph reads them: interpreted, byte by byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted.library import ROOT, build_interpreted, runner

HEADER = 128  # values, as in tests/planted/copies.cu
BYTES = 4096  # of the source, and of the target
# Where rows begin, there and here; their bytes and number; from a row to the next, there and here.
Rows = tuple[int, int, int, int, int, int]


@pytest.fixture(scope="module")
def run():
    return runner(build_interpreted(ROOT / "tests/planted/copies.cu"))


def check(run, *copies: Rows) -> None:
    values = torch.zeros(HEADER + BYTES // 4)
    values[: 1 + 6 * len(copies)] = torch.tensor([len(copies), *sum(copies, ())])
    source = torch.randint(256, (BYTES,), dtype=torch.uint8)
    values[HEADER:] = source.view(torch.float32)
    message, out = run("copy_rows", values=values, blocks=BYTES // 4)
    assert message == ""
    expected = torch.full((BYTES // 4,), -1.0).view(torch.uint8)
    for to, start, count, rows, to_pitch, from_pitch in copies:
        for row in range(rows):
            there, here = to + row * to_pitch, start + row * from_pitch
            expected[there : there + count] = source[here : here + count]
    assert torch.equal(out.view(torch.uint8), expected)


@pytest.mark.parametrize(
    "rows",
    [
        (0, 0, BYTES, 1, 0, 0),  # in accesses of 16 bytes, more than there are threads
        (16, 32, 48, 20, 64, 80),
        (4, 32, 48, 20, 64, 80),  # of 4
        (16, 32, 48, 20, 64, 52),
        (16, 33, 48, 20, 64, 80),  # of one
        (16, 32, 7, 20, 64, 80),
        (0, 8, 4, 600, 4, 0),  # one element again and again
        (5, 9, 1, 1, 0, 0),
    ],
)
def test_one_copy(run, rows):
    check(run, rows)


@settings(max_examples=25)
@given(data=st.data())
def test_several_at_once(run, data):
    share = BYTES // 16
    copies = []
    for i in range(data.draw(st.integers(1, 16), "copies")):
        count = data.draw(st.integers(1, 24), "bytes")
        rows = data.draw(st.integers(1, 4), "rows")
        pitch = st.sampled_from([count, count + 1, 32, 48])
        to = i * share + data.draw(st.integers(0, 40), "to")
        start = data.draw(st.integers(0, BYTES // 2), "from")
        from_pitch = data.draw(pitch | st.just(0), "from pitch")
        copies.append((to, start, count, rows, max(count, data.draw(pitch, "pitch")), from_pitch))
    check(run, *copies)
