"""The memory of freed results: kept, bounded, and never anybody else's."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import diglot
from diglot.pipeline import pages, results
from diglot.pipeline.results import Block, ResultCache, default_limit, new_tensor

MIB = 1 << 20
SIZE = 4 * MIB


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    """The cache, empty, for results of a MiB or more."""
    monkeypatch.setattr(pages, "LARGE", MIB)
    fresh = ResultCache()
    monkeypatch.setattr(results, "result_cache", fresh)
    return fresh


def new(size=SIZE):
    return new_tensor((size,), torch.uint8)


def as_numpy(tensor):
    return tensor[5:].numpy()


def as_dlpack(tensor):
    return torch.from_dlpack(as_numpy(tensor))


def as_buffer(tensor):
    return memoryview(tensor.numpy())


def as_storage(tensor):
    return tensor.untyped_storage()


@pytest.mark.parametrize("of", [as_numpy, as_dlpack, as_buffer, as_storage, torch.Tensor.detach])
def test_memory_in_use_is_not_given_out(cache, of):
    tensor = new()
    address, held = tensor.data_ptr(), of(tensor)
    del tensor
    assert (cache.bytes, cache.bytes_in_use) == (0, SIZE)
    other = new()
    assert other.data_ptr() != address
    del held
    assert (cache.bytes, cache.bytes_in_use) == (SIZE, SIZE)
    assert new().data_ptr() == address


def test_the_next_result_of_such_a_size_gets_it(cache):
    address = new().data_ptr()
    much, little = new(SIZE + 3 * MIB), new(SIZE // 4)
    assert address not in (much.data_ptr(), little.data_ptr())
    near = new(SIZE - MIB)  # a page less, or a quarter
    assert near.data_ptr() == address and near.untyped_storage().nbytes() == SIZE - MIB
    assert near.data_ptr() % pages.LARGE_PAGE == 0
    assert cache.bytes == 0


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def lazily_free():
    """Bytes that the system may take: those that were offered, and not written since."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("LazyFree:"))
    return 1024 * int(line.split()[1])


def test_pages_stay_until_the_system_takes_them(cache):
    before = lazily_free()
    new(16 * MIB).fill_(1)
    assert lazily_free() - before == 16 * MIB
    tensor = new(16 * MIB).fill_(1)
    assert lazily_free() == before  # written again, so in use
    del tensor
    before = resident()
    cache.clear()
    assert cache.bytes == 0 and before - resident() > 12 * MIB


def test_pages_that_the_system_took(cache):
    """A result is right on memory that has lost some pages."""
    x = torch.randn(2048, 1024)
    first = diglot.stream_map(torch.neg, x)
    address = first.data_ptr()
    del first
    (block,) = cache._free
    block.memory.madvise(mmap.MADV_DONTNEED, 0, SIZE)
    again = diglot.stream_map(torch.neg, x, chunk_bytes=MIB)
    assert again.data_ptr() == address and torch.equal(again, -x)


def test_the_limit(cache):
    kept = [new(), new(), new()]
    addresses = [tensor.data_ptr() for tensor in kept]
    cache.limit(2 * SIZE)
    while kept:
        kept.pop(0)
    assert cache.bytes == 2 * SIZE and cache.bytes_in_use == 0
    kept = [new(), new()]
    assert {tensor.data_ptr() for tensor in kept} == set(addresses[1:])  # the first one went
    cache.limit(0)
    del kept
    assert (cache.bytes, cache.bytes_in_use) == (0, 0)


def test_the_default_limit(monkeypatch):
    for memory, limit in ((64 << 30, 8 << 30), (1 << 40, 16 << 30)):
        monkeypatch.setattr(os, "sysconf", lambda _, memory=memory: memory // mmap.PAGESIZE)
        assert default_limit() == limit


def test_a_system_that_cannot_take_pages_back(cache, monkeypatch):
    """Keeping would then cost memory: nothing is kept, and nothing is said."""

    class Locked(mmap.mmap):
        def madvise(self, advice, *place):
            if advice == mmap.MADV_FREE:
                raise OSError(22, "Invalid argument")
            super().madvise(advice, *place)

    monkeypatch.setattr(mmap, "mmap", Locked)
    tensor = new().fill_(1)
    before = resident()
    del tensor
    assert (cache.bytes, cache.bytes_in_use) == (0, 0)
    assert before - resident() > SIZE // 2


def test_kept_memory_makes_room(cache, monkeypatch):
    """Where the system has no more, kept memory goes first."""
    new()

    def refused(size):
        if cache.bytes:
            raise OSError(12, "Cannot allocate memory")
        return Block(size)

    monkeypatch.setattr(results, "Block", refused)
    assert new(16 * MIB).nbytes == 16 * MIB


def test_a_finalizer_while_the_lock_is_held(cache):
    """The garbage collector may free a result anywhere."""
    tensor = new()
    with cache._lock:
        del tensor
    assert cache.take(SIZE).bytes == SIZE
    assert (cache.bytes, cache.bytes_in_use) == (SIZE, SIZE)


def test_threads(cache):
    """Each keeps its results for a while: none is written by another thread."""
    x = [torch.full((1024, 1024), float(number)) for number in range(4)]
    wrong = []

    def work(number):
        before = None
        for _ in range(12):
            result = diglot.stream_map(torch.neg, x[number], chunk_bytes=MIB)
            if before is not None and not torch.equal(before, -x[number]):
                wrong.append(number)
            before = result

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(x))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.bytes_in_use == 0 and 2 * SIZE <= cache.bytes <= 8 * SIZE


def test_a_fork(monkeypatch):
    """The child begins without kept memory. A result that both have still belongs to each alone."""
    cache = diglot.result_cache
    cache.clear()
    monkeypatch.setattr(results, "result_cache", cache)
    shared = new().numpy()  # NumPy needs no threads, which the child would lack
    shared.fill(1)
    new(2 * SIZE)
    assert cache.bytes == 2 * SIZE
    child = os.fork()
    if child == 0:
        right = cache.bytes == 0 and bool((shared == 1).all())
        del shared
        right = right and cache.bytes == SIZE
        new().numpy().fill(2)
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (shared == 1).all() and cache.bytes == 2 * SIZE
    cache.clear()


def test_the_public_cache():
    assert isinstance(diglot.result_cache, ResultCache)
    with pytest.raises(ValueError, match="bytes must be 0 or more, not -1"):
        diglot.result_cache.limit(-1)


def test_arrays_too(cache):
    result = diglot.stream_map(torch.neg, np.ones((2048, 1024), np.float32))
    assert isinstance(result, np.ndarray) and cache.bytes_in_use == 2 * SIZE
    del result
    assert cache.bytes == 2 * SIZE
