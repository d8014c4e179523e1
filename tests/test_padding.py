"""A read of padding that a launch names is a fault: by a thread, `cp.async` or a bulk copy."""

from __future__ import annotations

import pytest
import torch
from backends import INTERPRETS_CUDA
from planted.library import ROOT, build_interpreted, runner

pytestmark = INTERPRETS_CUDA

ROWS, ROW, PITCH = 4, 20, 32  # as in planted/padding.cu
VALUES = torch.arange(ROWS * PITCH).float()

# The message after "padding is read: ".
WRONG = {
    "read_beyond": "bytes 80 to 83 of row ",
    "copy_beyond": "bytes 80 to 95 of row ",
    "load_beyond": "bytes 80 to 127 of row 1 ",
    "load_next_row": "bytes 80 to 127 of row 1 ",
    "load_wide_box": "bytes 80 to 127 of row 0 ",
    "add_to_padding": "bytes 80 to 83 of row 0 ",
}


@pytest.fixture(scope="module")
def run():
    start = runner(build_interpreted(ROOT / "tests/planted/padding.cu"))
    return lambda kernel, **options: start(
        kernel, values=VALUES, blocks=len(VALUES), threads=ROWS, **options
    )


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("kernel", WRONG)
def test_a_read_of_padding_is_named(run, kernel, races):
    for seed in range(4):
        message, _ = run(kernel, seed=seed, races=races)
        said = f"padding is read: {WRONG[kernel]}"
        assert said in message, (seed, message)
        assert "of a tensor, whose rows have 80 bytes" in message
        assert "planted/padding.cu:" in message


@pytest.mark.parametrize(
    ("kernel", "place", "expected"),
    [
        ("read_values", 0, sum(range(ROW))),
        ("copy_values", PITCH, PITCH + ROW - 1),
        ("load_row", 0, PITCH + ROW - 1),
        ("load_box", 0, 0),  # filled outside the tensor
        ("write_padding", ROW, 1),
        ("no_padding", 0, sum(range(PITCH))),
    ],
)
def test_other_accesses_are_not_reported(run, kernel, place, expected):
    message, out = run(kernel)
    assert message == ""
    assert out[place] == expected


def test_rows_longer_than_their_pitch_are_refused(run):
    message, _ = run("long_rows")
    assert message == "rows of 128 bytes are longer than their pitch of 80 bytes"
