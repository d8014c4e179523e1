"""Ceilings of copies: they copy everything; their figures are looked at on a GPU."""

from __future__ import annotations

import pytest
import torch

from diglot.tools import transfer

np = pytest.importorskip("numpy")

SIZE = 3 * transfer.PIECE_BYTES + 17


def random_bytes(size):
    return np.random.default_rng(0).integers(1, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [0, 1, transfer.PIECE_BYTES, SIZE])
def test_a_copy_within_the_host_is_whole(threads, size):
    source, target = random_bytes(size), np.zeros(size, np.uint8)
    transfer.copy_host(source, target, threads)
    assert np.array_equal(source, target)


def test_from_map_to_map(tmp_path):
    source = random_bytes(SIZE)
    np.save(tmp_path / "in.npy", source)
    made = []

    def target():
        made.append(tmp_path / f"out{len(made)}.npy")
        return np.lib.format.open_memmap(made[-1], mode="w+", dtype=np.uint8, shape=(SIZE,))

    speed, threads = transfer.host_ceiling(np.load(tmp_path / "in.npy", mmap_mode="r"), target, 2)
    assert speed > 0 and threads in transfer.THREADS
    assert len(made) >= 4 and len(made) % 2 == 0  # two for each number of threads
    for path in made:
        assert np.array_equal(np.load(path), source)


def test_sizes_that_differ():
    with pytest.raises(ValueError, match="source has 3 bytes, and target 4"):
        transfer.copy_host(random_bytes(3), random_bytes(4), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_ceiling_without_a_gpu():
    with pytest.raises(RuntimeError, match="not timed"):
        transfer.Copies("cuda", torch.zeros(1), torch.zeros(1))


@pytest.fixture
def pinned():
    memory = [torch.from_numpy(random_bytes(40_000_007)).pin_memory(), torch.empty(0)]
    memory[1] = torch.zeros_like(memory[0]).pin_memory()
    return memory


@pytest.mark.gpu
def test_copies_between_host_and_device(pinned):
    source, target = pinned
    copies = transfer.Copies("cuda", source, target, 1 << 20)
    copies.run(d2h=False)
    assert not target.any()
    chunks = copies._chunks[0]
    assert sum(len(chunk[0]) for chunk in chunks) == len(source)
    assert all(torch.equal(chunk[0], chunk[2].cpu()) for chunk in chunks[-transfer.SLOTS :])
    copies.run(h2d=False)
    assert all(torch.equal(chunk[1], chunk[3].cpu()) for chunk in chunks)


@pytest.mark.gpu
def test_devices_share_the_bytes(pinned):
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("there is one GPU")
    copies = transfer.Copies(list(range(count)), *pinned, 1 << 20)
    shares = [sum(len(chunk[0]) for chunk in chunks) for chunks in copies._chunks]
    assert len(shares) == count and sum(shares) == len(pinned[0])
    copies.run()
    assert pinned[1].any()


@pytest.mark.gpu
@pytest.mark.alone
def test_both_directions_at_once_are_more_than_one(pinned):
    found = transfer.duplex(transfer.Copies("cuda", *pinned))
    assert 1 < found.both <= 1.05 * min(found.h2d, found.d2h)
    assert 2 * found.both > max(found.h2d, found.d2h)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s, t: (s.clone(), t), "source must be pinned memory"),
        (lambda s, t: (s, t.clone()), "target must be pinned memory"),
        (lambda s, t: (s[1:], t), "must be of one size"),
        (lambda s, t: (s.view(torch.int8), t), "source must be contiguous torch.uint8"),
        (lambda s, t: (s, t[::2]), "target must be contiguous torch.uint8"),
    ],
)
def test_memory_that_is_no_use(pinned, spoil, message):
    with pytest.raises(ValueError, match=message):
        transfer.Copies("cuda", *spoil(*pinned))
