"""Results that a call allocates: who makes their pages ready, and which, by counting.

Another madvise stands before the system's, in a process of its own, so that the library's calls are
seen as Python's are. A program that skips work fails here, however fast it is.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import CUDA, HAS_CUDA
from new_results import CHUNK_ROWS, ROWS, THREADS

from diglot.pipeline import pages, results
from diglot.pipeline.copier import library
from diglot.pipeline.host import HostArray

HERE = Path(__file__).parent
PAGE = mmap.PAGESIZE
CHUNKS = ROWS // CHUNK_ROWS
# The native engine; Python's with the library's threads; Python's with its own.
ENGINES = [
    pytest.param("cuda", marks=CUDA.marks),
    pytest.param("library", marks=pytest.mark.skipif(library() is None, reason="no library")),
    "python",
]
AVAILABLE = [*(["cuda"] if HAS_CUDA else []), *(["library"] if library() else []), "python"]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The other madvise."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("madvise") / "madvise.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", HERE / "madvise.c", "-o", path], check=True
    )
    return path


@pytest.fixture(scope="module")
def seen(shim):
    """What runs by an engine asked of the system, by what results were: "new", "small", "out"."""
    settings = (f"WAIT_FOR={THREADS}", f"FAILS={errno.EFAULT}")
    done = subprocess.run(
        [
            *(sys.executable, HERE / "new_results.py"),
            *(f"{engine}:{setting}" for engine in AVAILABLE for setting in settings),
        ],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line[0] == "[")

    def of(engine, variable, value):
        assert f"{engine}:{variable}={value}" in found, done.stderr
        answers = found[f"{engine}:{variable}={value}"]
        for answer in answers.values():
            assert answer["right"]
            assert answer["engine"] == ("native" if engine == "cuda" else "python")
        return answers

    return of


def asked(answer, advice):
    """(begin, end, thread) of requests for the result's memory, by addresses."""
    begin, end = answer["address"], answer["address"] + answer["size"]
    return sorted(
        (at, at + size, thread)
        for at, size, what, thread, _ in answer["calls"]
        if what == advice and at < end and begin < at + size
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_several_threads_make_all_pages_ready(seen, engine):
    answer = seen(engine, "WAIT_FOR", THREADS)["new"]
    pieces = asked(answer, pages.MADV_POPULATE_WRITE)
    reached = answer["address"] // PAGE * PAGE
    for begin, end, _ in pieces:
        assert begin <= reached  # no gap
        assert end - begin <= answer["size"] // CHUNKS + PAGE  # a thread has a chunk, or less
        reached = max(reached, end)
    assert reached >= answer["address"] + answer["size"]
    assert len({thread for *_, thread in pieces}) == THREADS
    if engine == "python":
        assert len(pieces) > 2 * CHUNKS  # a little at a time, while the cache has it


@pytest.mark.parametrize("engine", ENGINES)
def test_large_pages_are_asked_for_first(seen, engine):
    answer = seen(engine, "WAIT_FOR", THREADS)["new"]
    ((begin, end, _),) = asked(answer, mmap.MADV_HUGEPAGE)
    assert begin <= answer["address"] and end >= answer["address"] + answer["size"]
    order = [what for at, _, what, *_ in answer["calls"] if begin <= at < end]
    assert order[0] == mmap.MADV_HUGEPAGE


@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_byte_is_touched_first(seen, engine):
    """Linux then clears a large page upwards, which is faster."""
    answer = seen(engine, "WAIT_FOR", THREADS)["new"]
    there = [call[-1] for call in answer["calls"] if call[2] == pages.MADV_POPULATE_WRITE]
    assert there and all(there)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ["small", "out"])
def test_other_memory_is_left_alone(seen, engine, what):
    """What the C library may have had before, and what the caller gave."""
    answer = seen(engine, "WAIT_FOR", THREADS)[what]
    assert not asked(answer, pages.MADV_POPULATE_WRITE) and not asked(answer, mmap.MADV_HUGEPAGE)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_system_that_does_not(seen, engine):
    """There are faults then, and the result is right: of an older one, or without memory."""
    answer = seen(engine, "FAILS", errno.EFAULT)["new"]
    assert asked(answer, pages.MADV_POPULATE_WRITE)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float64, torch.complex64])
@pytest.mark.parametrize("size", [0, 1, 4095, (1 << 20) + 3])
def test_any_size_and_dtype(monkeypatch, dtype, size):
    """Written as it is, with nothing beside it."""
    monkeypatch.setattr(pages, "LARGE", 1)
    monkeypatch.setattr(pages, "LARGE_PAGE", 1 << 13)
    source = torch.randint(0, 2, (size,)).to(dtype)
    array = HostArray.new((size,), dtype)
    assert array.is_new == (size > 0) and array.tensor.dtype == dtype
    assert array.address % (1 << 13) == 0
    array.write(0, size, source)
    assert torch.equal(array.tensor, source)


def test_only_these_bytes_are_written():
    """Rows between others."""
    array = HostArray.new((3, pages.LARGE // 2 + 5), torch.uint8)
    assert array.is_new
    array.tensor.fill_(7)
    array.write(1, 2, torch.ones_like(array.tensor[:1]))
    assert (array.tensor == torch.tensor([[7], [1], [7]])).all()


def test_large_memory_begins_with_a_large_page():
    tensor = results.new_tensor((pages.LARGE // 8, 2), torch.float32)
    assert tensor.data_ptr() % pages.LARGE_PAGE == 0
    assert tensor.untyped_storage().nbytes() == tensor.nbytes == pages.LARGE


def test_the_memory_goes_back(monkeypatch):
    """To the system, as soon as nothing uses the result, if nothing is kept."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    fresh = results.ResultCache()
    fresh.limit(0)
    monkeypatch.setattr(results, "result_cache", fresh)
    before = resident()
    tensor = results.new_tensor((2 * pages.LARGE,), torch.uint8).fill_(1)
    part = tensor[5:]
    del tensor
    assert resident() - before > pages.LARGE
    assert part.sum() == len(part)
    del part
    assert resident() - before < pages.LARGE // 2


def test_no_memory():
    """The system's refusal is an error that says how much was asked for."""
    size = 1 << 62
    with pytest.raises(MemoryError, match=f"a new result of {size} bytes: "):
        results.new_tensor((size,), torch.uint8)
