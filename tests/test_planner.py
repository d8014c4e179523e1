"""The planner: every small size."""

from __future__ import annotations

import itertools

import pytest

from diglot.pipeline.planner import CHUNKING, MIB, STEP, chunking, plan, split

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
                    # As large as may be: another row is too many, or all rows are taken.
                    assert (cut.chunk_rows + 1) * largest > chunk_bytes or cut.chunks <= 1
                assert cut.slots == min(num_slots, cut.chunks)
                slot = cut.chunk_rows * (sum(of_in) + sum(of_out))
                assert cut.device_bytes == cut.slots * slot
                assert cut.device_bytes <= num_slots * chunk_bytes * len((*of_in, *of_out))


@pytest.mark.parametrize("rows", [0, 1, 5, 24, 1000, 10**6, 10**10])
@pytest.mark.parametrize("row_bytes", [0, 1, 4, 4096, 3 * MIB, 100 * MIB])
@pytest.mark.parametrize("kind", CHUNKING)
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_default_chunks(rows, row_bytes, kind, devices):
    default = chunking(*kind, devices)
    cut = plan(rows, (row_bytes,), (row_bytes,), default=default, devices=devices)
    assert (cut.chunks - 1) * cut.chunk_rows < rows <= cut.chunks * cut.chunk_rows or rows == 0
    # A row is never too large by default.
    assert cut.chunk_rows == 1 or cut.chunk_rows * row_bytes <= default.most
    if cut.chunks > 1 and row_bytes > 0:
        assert (cut.chunk_rows + 1) * row_bytes > STEP


@pytest.mark.parametrize("kind", CHUNKING)
@pytest.mark.parametrize("size", [1, 3, 16, 64, 100, 256, 1000, 4096, 100_000])
def test_default_chunks_take_the_least_time(kind, size):
    """By the model: the first chunk in, the last chunk out, and an engine's work for each."""
    default, size = CHUNKING[kind], size * MIB

    def time(chunk):
        return 2 * chunk + (size - chunk) + default.each * size / chunk

    chosen = default.bytes_of(size)
    assert chosen % STEP == 0 and STEP <= chosen <= default.most
    assert all(
        time(chosen) <= 1.01 * time(chunk)
        for chunk in range(STEP, min(size, default.most) + 1, STEP)
    )


def test_default_chunks_of_some_sizes():
    """Native chunks are smaller: the engine does less for each."""
    sizes = (4, 64, 256, 4096)
    for engine, expected in (("native", (2, 4, 8, 32)), ("python", (2, 8, 16, 16))):
        found = [CHUNKING[engine, False].bytes_of(size * MIB) // MIB for size in sizes]
        assert tuple(found) == expected


def test_chunks_of_several_devices():
    """By the device's share, and, where Python enqueues them one after the other, larger."""
    one, two = chunking("python", False, 1), chunking("python", False, 2)
    assert (two.each, two.most) == (2 * one.each, 2 * one.most)
    assert chunking("native", False, 2) == chunking("native", False, 1)
    assert chunking("python", True, 2) == chunking("python", True, 1)
    for devices, expected in ((1, 32), (2, 22), (4, 16), (8, 12)):
        default = chunking("native", False, devices)
        cut = plan(4 << 20, (1024,), (1024,), default=default, devices=devices)
        assert cut.chunk_rows * 1024 == expected * MIB


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
    assert timed[: min(chunks, 6)] == list(range(min(chunks, 6)))
    assert timed[-1] == chunks - 1
    assert all(b - a <= 16 for a, b in itertools.pairwise(timed))
    assert len(timed) <= 7 + chunks // 16
