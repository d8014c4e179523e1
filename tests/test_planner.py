"""The planner: every small size."""

from __future__ import annotations

import itertools

import pytest

from diglot.pipeline.planner import (
    CHUNK_BYTES,
    FEWEST_CHUNKS,
    MIB,
    SMALLEST_CHUNK_BYTES,
    chunk_range,
    plan,
    split,
)

# Of a row: of the inputs, of the outputs.
ROW_BYTES = [((4,), (4,)), ((4,), ()), ((3, 8), (5,)), ((1,), (7, 2)), ((0,), (0,)), ((0, 2), (4,))]


def assert_covers(cut):
    """Every row is in one chunk, in order, and only the last chunk is smaller."""
    chunks = [cut.rows_of(chunk) for chunk in range(cut.chunks)]
    assert [row for begin, end in chunks for row in range(begin, end)] == list(range(cut.rows))
    assert all(end - begin == cut.chunk_rows for begin, end in chunks[:-1])
    assert all(0 < end - begin <= cut.chunk_rows for begin, end in chunks)


@pytest.mark.parametrize("row_bytes", ROW_BYTES, ids=str)
def test_every_small_size(row_bytes):
    of_in, of_out = row_bytes
    largest = max(*of_in, *of_out, 1)
    for rows in range(61):
        for chunk_bytes in (*range(largest, 70), 1000):
            for num_slots in (1, 2, 3, 7, 100):
                cut = plan(rows, of_in, of_out, chunk_bytes, num_slots)
                assert (cut.rows, cut.in_row_bytes, cut.out_row_bytes) == (rows, of_in, of_out)
                if num_slots == 1:
                    assert_covers(cut)
                    assert cut.chunk_rows * largest <= chunk_bytes
                    # As large as may be: another row is too many, or there is none.
                    assert (cut.chunk_rows + 1) * largest > chunk_bytes or cut.chunks <= 1
                assert cut.slots == min(num_slots, cut.chunks)
                slot = cut.chunk_rows * (sum(of_in) + sum(of_out))
                assert cut.device_bytes == cut.slots * slot
                assert cut.device_bytes <= num_slots * chunk_bytes * len((*of_in, *of_out))


@pytest.mark.parametrize("rows", [0, 1, 5, 24, 1000, 10**6, 10**10])
@pytest.mark.parametrize("row_bytes", [0, 1, 4, 4096, 3 * MIB, 100 * MIB])
@pytest.mark.parametrize("kind", CHUNK_BYTES)
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_default_chunks(rows, row_bytes, kind, devices):
    least, most = chunk_range(*kind, devices)
    cut = plan(rows, (row_bytes,), (row_bytes,), default_bytes=(least, most), devices=devices)
    assert (cut.chunks - 1) * cut.chunk_rows < rows <= cut.chunks * cut.chunk_rows or rows == 0
    # A row is never too large by default.
    assert cut.chunk_rows == 1 or cut.chunk_rows * row_bytes <= most
    if cut.chunks > 1 and row_bytes > 0:
        more = (cut.chunk_rows + 1) * row_bytes
        assert more > SMALLEST_CHUNK_BYTES
        share = rows * row_bytes // devices
        assert more * FEWEST_CHUNKS > share or more > least
        # Chunks of a share overlap with one another.
        assert cut.chunks >= FEWEST_CHUNKS * devices or share <= 2 * FEWEST_CHUNKS * max(
            SMALLEST_CHUNK_BYTES, row_bytes
        )


def test_chunks_of_several_devices():
    """By the device's share, and, where Python enqueues them one after the other, larger."""
    assert chunk_range("python", False, 2) == (32 * MIB, 32 * MIB)
    assert chunk_range("native", False, 2) == chunk_range("native", False, 1) == (8 * MIB, 32 * MIB)
    assert chunk_range("python", True, 2) == chunk_range("python", True, 1)
    for devices, expected in ((1, 32 * MIB), (2, 16 * MIB), (4, 8 * MIB), (8, 8 * MIB)):
        default = chunk_range("native", False, devices)
        cut = plan(4 << 20, (1024,), (1024,), default_bytes=default, devices=devices)
        assert cut.chunk_rows * 1024 == expected


def test_a_chunk_has_at_most_the_bytes_of_its_largest_array():
    assert plan(100, (4,), (), 40).chunk_rows == 10
    assert plan(100, (4,), (8,), 40).chunk_rows == 5
    assert plan(100, (4, 40), (8,), 40).chunk_rows == 1


def test_split():
    for rows in range(61):
        for parts in range(1, 10):
            shares = split(rows, parts)
            assert len(shares) == parts
            assert [r for begin, end in shares for r in range(begin, end)] == list(range(rows))
            sizes = [end - begin for begin, end in shares]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, (4,), (4,)), "rows must be 0 or more, not -1"),
        ((5, (4,), (4,), 0), "chunk_bytes must be positive, not 0"),
        ((5, (4,), (4,), -8), "chunk_bytes must be positive, not -8"),
        ((5, (4,), (9,), 8), "a row has 9 bytes, and a chunk takes 8"),
        ((5, (4,), (4,), 8, 0), "num_slots must be at least 1, not 0"),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(*arguments)


def test_no_parts():
    with pytest.raises(ValueError, match="parts must be at least 1"):
        split(5, 0)


@pytest.mark.parametrize("chunks", [1, 16, 17, 100, 1000])
def test_which_chunks_are_timed(chunks):
    cut = plan(chunks, [8], [8], 8)
    timed = [chunk for chunk in range(cut.chunks) if cut.is_timed(chunk)]
    assert timed[: min(chunks, 16)] == list(range(min(chunks, 16)))
    assert timed[-1] == chunks - 1
    assert all(b - a <= 16 for a, b in itertools.pairwise(timed))
    assert len(timed) <= 18 + chunks // 16
