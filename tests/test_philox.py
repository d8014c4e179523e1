"""Philox-4x32-10 in both languages and the reference: published answers, and Python's integers."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from backends import BACKENDS, DEVICE, KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st

import diglot
from diglot.backends.registry import BACKENDS as REGISTRY
from diglot.backends.runs import run
from diglot.reference.philox import random_bits

# Of Random123's file kat_vectors: four words of a counter and two of a key, and the answer.
PUBLISHED = {
    (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (0xFFFFFFFF,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
        *(0xD16CFE09, 0x94FDCCEB),
        *(0x5001E420, 0x24126EA1),
    ),
}


def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Ten rounds in Python's integers."""
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & 0xFFFFFFFF,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def bits_of(seed: int, offset: int, index: int) -> int:
    """The bits of one element, by the documented layout."""
    counter = (offset + index // 4) % 2**64
    key = seed % 2**64
    words = philox(counter % 2**32, counter >> 32, 0, 0, key % 2**32, key >> 32)
    return words[index % 4]


def launched(backend: str, rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The words that a launcher makes of counters and keys."""
    given = torch.tensor(rows, dtype=torch.int64).to(torch.int32).to(DEVICE)
    out = torch.zeros(len(rows), 4, dtype=torch.int32, device=DEVICE)
    run(backend, "dropout", "philox_words", given, out)
    return [tuple(word & 0xFFFFFFFF for word in row) for row in out.tolist()]


def test_the_oracle_gives_the_published_answers():
    assert [philox(*row) for row in PUBLISHED] == list(PUBLISHED.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_published_answers(backend):
    assert launched(backend, list(PUBLISHED)) == list(PUBLISHED.values())


WORDS = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
ROWS = st.lists(st.tuples(*[WORDS] * 6), min_size=1, max_size=300)


@settings(max_examples=25)
@given(rows=ROWS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_counters_and_keys(backend, rows):
    assert launched(backend, rows) == [philox(*row) for row in rows]


@settings(max_examples=50)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    offset=st.integers(-(2**63), 2**63 - 1),
    n=st.integers(0, 50),
)
def test_the_layout_of_the_reference(seed, offset, n):
    bits = random_bits(torch.full((), seed, device=DEVICE), offset, n)
    assert bits.tolist() == [bits_of(seed, offset, i) for i in range(n)]


# Of what truncates the counter, in either language, as a test must find it.

HOST = """
#include "diglot/philox.cuh"
extern "C" void bits(uint64_t seed, uint64_t offset, int64_t n, uint32_t* out) {
  const diglot::PhiloxKeys keys = diglot::philox_keys(seed);
  for (int64_t i = 0; i + 8 <= n; i += 8) {
    const auto eight = diglot::random_bits<8>(keys, offset, i);
    for (int e = 0; e < 8; ++e) out[i + e] = eight[e];
  }
  for (int64_t i = 0; i < n; ++i) {  // the same, one by one and in twos
    if (diglot::random_bits<1>(keys, offset, i)[0] != out[i]) out[i] = 0;
    if (diglot::random_bits<2>(keys, offset, i / 2 * 2)[i % 2] != out[i]) out[i] = 0;
  }
}
"""
PLACES = (0, 2**32 - 3, 2**32 + 7, 2**63, 2**64 - 3)  # of counters


def right_places(bits) -> list[bool]:
    """At which places `bits(seed, offset, n)` gives what the layout says."""
    return [bits(77, at, 64) == [bits_of(77, at, i) for i in range(64)] for at in PLACES]


def compiled(folder: Path, replace: tuple[str, str]):
    """random_bits of CUDA C++, on the host, with a piece of its source replaced."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    include = Path(diglot.get_include())
    stand_ins = [p for p in (include / "interpreter", include.parent / "interpreter") if p.is_dir()]
    headers = folder / "diglot"
    shutil.copytree(include / "diglot", headers)
    text = (headers / "philox.cuh").read_text()
    assert replace[0] in text
    (headers / "philox.cuh").write_text(text.replace(*replace))
    (folder / "host.cpp").write_text(HOST)
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-DDIGLOT_INTERPRETER"]
    command += [f"-I{folder}", *(f"-I{q}" for p in stand_ins for q in (p / "include", p.parent))]
    command += [str(folder / "host.cpp"), "-o", str(folder / "host.so")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(folder / "host.so"))

    def bits(seed: int, offset: int, n: int) -> list[int]:
        out = (ctypes.c_uint32 * n)()
        library.bits(ctypes.c_uint64(seed), ctypes.c_uint64(offset), ctypes.c_int64(n), out)
        return list(out)

    return bits


# What truncates to 32 bits, and where the bits are then still right.
MUTATIONS = {
    "nothing": (("low_word(counter)", "low_word(counter)"), [True] * 5),
    "the upper word is lost": (
        ("high_word(counter), 0, 0", "0, 0, 0"),
        [True, False, False, False, False],
    ),
    "the offset is truncated": (
        ("= offset + ", "= static_cast<uint32_t>(offset) + "),
        [True, True, False, False, False],
    ),
    "the sum is truncated": (
        ("= offset + (static_cast<uint64_t>(index) >> 2)", "= uint32_t(offset + index / 4)"),
        [True, False, False, False, False],
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_truncated_counters_of_cuda_are_found(tmp_path, mutation):
    replace, right = MUTATIONS[mutation]
    assert right_places(compiled(tmp_path, replace)) == right


TRITON_MUTATIONS = {
    "nothing": (("high_word(counter)", "high_word(counter)"), [True] * 5),
    "the upper word is lost": (
        ("high_word(counter), zero, zero", "zero, zero, zero"),
        [True, False, False, False, False],
    ),
    "the offset is truncated": (
        ("= offset + ", "= offset.to(tl.uint32) + "),
        [True, True, False, False, False],
    ),
    "the sum is truncated": (
        (
            "offset + (index.to(tl.int64) >> 2)",
            "(offset + (index.to(tl.int64) >> 2)) & 0xFFFFFFFF",
        ),
        [True, False, False, False, False],
    ),
}


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, not interpreted")
@pytest.mark.parametrize("mutation", TRITON_MUTATIONS)
def test_truncated_counters_of_triton_are_found(tmp_path, monkeypatch, mutation):
    """By the launcher with offsets, as tests/test_dropout.py asks for far elements."""
    replace, right = TRITON_MUTATIONS[mutation]
    from diglot.triton_ops.lib import philox as library

    text = Path(library.__file__).read_text()
    assert replace[0] in text
    path = tmp_path / "mutated.py"
    path.write_text(text.replace(*replace))
    specification = importlib.util.spec_from_file_location("mutated", path)
    mutated = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(mutated)
    launchers = REGISTRY["triton"].module("dropout")
    monkeypatch.setattr(launchers, "random_bits", mutated.random_bits)
    x = torch.ones(64)

    def is_right(at: int) -> bool:
        out, seed = torch.empty_like(x), torch.full((), 77)
        launchers.dropout_forward(x, seed, at - 2**64 if at >= 2**63 else at, 2**31, 2.0, out, None)
        return (out != 0).tolist() == [bits_of(77, at, i) >= 2**31 for i in range(64)]

    assert [is_right(at) for at in PLACES] == right


@pytest.mark.parametrize("backend", KERNELS)
def test_no_rows(backend):
    assert launched(backend, []) == []
