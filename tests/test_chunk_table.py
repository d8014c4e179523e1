"""Tables of chunks: what they hold, and how long they are kept."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from backends import DEVICE, FLOATING
from clipping import check, clip, draw
from hypothesis import given
from hypothesis import strategies as st

import diglot
from diglot.backends import chunk_table, scratch
from diglot.backends.chunk_table import CODES, DenseTensors, build_rows

CHUNK = 16384  # bytes, of tensors as small as these


@pytest.fixture
def built(monkeypatch):
    """The tables that are built, in order; none are kept from before."""
    tables = []

    def build(tensors):
        tables.append(tensors)
        return build_rows(tensors)

    monkeypatch.setattr(chunk_table, "build_rows", build)
    scratch._values.clear()
    return tables


def test_a_table_is_kept(built):
    grads = draw([5000, 300])
    for _ in range(3):
        check("torch", grads, 0.5)
    assert len(built) == 1
    # Another address, size or type is another table.
    for other in ([grads[0], grads[1].clone()], [grads[0], grads[1][:299]], [grads[0]]):
        check("torch", other, 0.5)
    grads[1].fill_(1)
    check("torch", [grads[0], grads[1].view(torch.bfloat16)], 0.5)
    assert len(built) == 5
    check("torch", grads, 0.5)
    # A gradient with a gap is another, wherever it lies.
    memory = torch.randn(600, device=DEVICE)
    check("torch", [memory[:300]], 0.5)
    check("torch", [memory[::2]], 0.5)
    assert len(built) == 7


def test_tables_are_not_kept_for_ever(built):
    memory = torch.randn(1000, device=DEVICE)
    for size in range(1, scratch.MOST_VALUES + 10):
        clip([memory[:size]], 1.0, backend="torch")
    assert len(scratch._values) == scratch.MOST_VALUES
    count = len(built)
    clip([memory[:20]], 1.0, backend="torch")
    assert len(built) == count
    clip([memory[:1]], 1.0, backend="torch")
    assert len(built) == count + 1


def unpack(rows):
    """Of each row: address, number of elements, code, whether it is a repeated one."""
    return [(a, p & 0xFFFFFFFF, p >> 32 & 0xFF, p >> 40) for a, p in rows.tolist()]


SIZE = st.one_of(st.integers(0, 40), st.integers(8000, 8400), st.integers(0, 100_000))


@given(
    parts=st.lists(st.tuples(SIZE, st.integers(0, 20), st.sampled_from(FLOATING)), max_size=6),
    repeated=st.booleans(),
)
def test_chunks_are_what_the_tensors_are(parts, repeated):
    tensors, address = [], 1 << 20
    for size, gap, dtype in parts:
        address += gap * dtype.itemsize + -address % dtype.itemsize
        tensors.append((address, size, dtype))
        address += size * dtype.itemsize
    rows = unpack(build_rows(DenseTensors(*zip(*tensors * (1 + repeated), strict=True))
                             if tensors else DenseTensors((), (), ())))  # fmt: skip
    filled = [t for t in tensors if t[1] > 0]
    position = 0
    for index, (begin, size, dtype) in enumerate(filled * (1 + repeated)):
        at, end = begin, begin + size * dtype.itemsize
        while at < end:
            address, count, code, is_repeated = rows[position]
            assert (address, code, is_repeated) == (at, CODES[dtype], index >= len(filled))
            nbytes = count * dtype.itemsize
            assert 0 < nbytes <= CHUNK and (at % 16 == 0 or nbytes < 16)
            at += nbytes
            position += 1
        assert at == end
    assert position == len(rows)


def test_large_tensors_have_large_chunks():
    sizes = (123, 3 * 2**30, 2**29)
    starts = (0, *itertools.accumulate(4 * size for size in sizes[:-1]))
    rows = build_rows(DenseTensors(starts, sizes, (torch.float32,) * 3))
    assert chunk_table.MOST_CHUNKS / 2 < len(rows) <= chunk_table.MOST_CHUNKS + 3
    assert (rows[:, 1] & 0xFFFFFFFF).sum() == sum(sizes)


def test_codes_are_those_of_the_kernels():
    from diglot.triton_ops.lib import chunks

    text = (Path(diglot.get_include()) / "diglot/types.cuh").read_text()
    names = re.search(r"enum class DType : int32_t \{(.*?)\}", text, re.DOTALL)[1].split(",")
    codes = {name.strip().lower(): code for code, name in enumerate(names) if name.strip()}
    for dtype, code in CODES.items():
        name = str(dtype).removeprefix("torch.")
        assert codes["k" + name] == code == getattr(chunks, name.upper()).value
