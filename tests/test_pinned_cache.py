"""The cache of pinned buffers; without a GPU of memory that is like them."""

from __future__ import annotations

import pytest
import torch

import diglot
from diglot import stream_map
from diglot.pipeline.pinned import PAGES, PinnedCache

X = torch.arange(120.0).reshape(40, 3)
ROW = 12


def test_the_cache_of_pinned_buffers():
    cache = PinnedCache()
    first = cache.take(PAGES + 1)
    assert (first.bytes, cache.bytes, cache.bytes_in_use) == (2 * PAGES, 0, 2 * PAGES)
    cache.give_back(first)
    assert (cache.bytes, cache.bytes_in_use) == (2 * PAGES, 0)
    assert cache.take(PAGES + 2) is first  # the one that was used last
    other = cache.take(10 * PAGES)
    cache.give_back(other)
    assert cache.take(PAGES) is not other  # most of it would lie idle
    cache.give_back(first)
    assert cache.bytes == 12 * PAGES
    cache.limit(11 * PAGES)
    assert cache.bytes == 2 * PAGES  # the buffer of the oldest use goes
    cache.limit(0)
    assert cache.bytes == 0
    with pytest.raises(ValueError, match="bytes must be 0 or more, not -1"):
        cache.limit(-1)
    for wrong in (True, 1.5, None, "1"):
        with pytest.raises(TypeError, match="bytes must be an int"):
            cache.limit(wrong)


def test_sizes_waste_nothing():
    """Whole pages, no powers of two."""
    cache = PinnedCache()
    for pages in (1, 3, 5, 9):
        assert cache.take(pages * PAGES).bytes == pages * PAGES


def test_calls_share_buffers(monkeypatch):
    cache = diglot.pinned_cache
    cache.clear()
    assert cache.bytes == 0
    stream_map(torch.neg, X, chunk_bytes=2 * ROW)
    kept = cache.bytes
    assert kept > 0
    stream_map(torch.neg, X, chunk_bytes=2 * ROW)
    assert cache.bytes == kept
    cache.clear()
    assert (cache.bytes, cache.bytes_in_use) == (0, 0)
    try:
        cache.limit(0)
        stream_map(torch.neg, X, chunk_bytes=2 * ROW)
        assert cache.bytes == 0
    finally:
        cache.limit(1 << 30)
