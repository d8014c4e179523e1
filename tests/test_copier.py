"""Threads that copy, Python's and the library's: what they copy, what they tell, how they end."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from diglot.pipeline import copier, host
from diglot.pipeline.copier import NativeCopier, Piece, PythonCopier, copier_for, library
from diglot.pipeline.host import HostArray

np = pytest.importorskip("numpy")

X = torch.randn(500, 33)
NATIVE = pytest.mark.skipif(library() is None, reason="there is no library with threads")
COPIERS = [
    PythonCopier,
    pytest.param(lambda threads: NativeCopier(threads, library()), marks=NATIVE),
]


@pytest.fixture(params=COPIERS, ids=["python", "native"])
def threads(request):
    made = request.param(3)
    yield made
    made.close()


def mapped(path, mode, values=None, is_output=False):
    """A map of a file, open."""
    if values is not None:
        np.save(path, values)
    array = HostArray(torch.from_numpy(np.load(path, mmap_mode=mode)), is_output=is_output)
    assert array.kind == "file"
    array.open()
    return array


def test_what_is_copied(threads):
    array, out = HostArray(X), HostArray(torch.full_like(X, 7), is_output=True)
    buffers = [torch.empty(60, 33) for _ in range(8)]
    spans = []
    for begin, buffer in zip(range(0, 480, 60), buffers, strict=True):
        spans.append(threads.submit([Piece(array, begin, begin + 60, buffer)]).result())
    began = time.perf_counter()
    writing = [
        threads.submit([Piece(out, begin, begin + 60, buffer)])
        for begin, buffer in zip(range(0, 480, 60), buffers, strict=True)
    ]
    spans += [copies.result() for copies in writing]
    assert torch.equal(out.tensor[:480], X[:480]) and (out.tensor[480:] == 7).all()
    assert all(begin <= end <= time.perf_counter() for begin, end in spans)
    assert all(begin >= began for begin, _ in spans[8:])
    assert all(begin <= began for begin, _ in spans[:8])


def test_pieces_of_several_arrays(threads):
    arrays = [HostArray(X), HostArray(X.int())]
    buffers = [torch.empty(3, 33), torch.empty(3, 33, dtype=torch.int32)]
    pieces = [Piece(a, 497, 500, b) for a, b in zip(arrays, buffers, strict=True)]
    threads.submit(pieces).result()
    assert torch.equal(buffers[0], X[497:]) and torch.equal(buffers[1], X[497:].int())


def test_maps_of_files(threads, tmp_path):
    array = mapped(tmp_path / "x.npy", "r", X.numpy())
    out = mapped(tmp_path / "out.npy", "r+", np.zeros_like(X.numpy()), is_output=True)
    buffer = torch.empty(200, 33)
    threads.submit([Piece(array, 100, 300, buffer)]).result()
    threads.submit([Piece(out, 100, 300, buffer)]).result()
    expected = torch.zeros_like(X)
    expected[100:300] = X[100:300]
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected.numpy())
    array.close()
    out.close()


def test_what_fails_is_told_when_it_is_waited_for(threads, tmp_path, monkeypatch):
    """The system's errors keep their numbers; what comes after is copied."""
    monkeypatch.setattr(host, "MARGIN", 1 << 60)  # no disk has room to spare
    array = mapped(tmp_path / "x.npy", "r", X.numpy())
    out = mapped(tmp_path / "out.npy", "r+", np.zeros_like(X.numpy()), is_output=True)
    os.close(out.file)
    out.file = array.file  # blocks cannot be asked for where nothing may be written
    buffer = torch.empty(500, 33)
    failing, working = (threads.submit([Piece(a, 0, 500, buffer)]) for a in (out, array))
    with pytest.raises(OSError, match="Bad file descriptor") as failed:
        failing.result()
    assert failed.value.errno == errno.EBADF
    working.result()
    assert torch.equal(buffer, X)
    os.truncate(tmp_path / "x.npy", 1000)
    with pytest.raises((OSError, RuntimeError), match=r"the file end.* cut short"):
        threads.submit([Piece(array, 0, 500, buffer)]).result()
    array.close()


def test_python_goes_on_meanwhile(threads):
    big = HostArray(torch.ones(1 << 26, dtype=torch.uint8))
    copies = threads.submit([Piece(big, 0, 1 << 26, torch.empty(1 << 26, dtype=torch.uint8))])
    turns = 0
    while not copies.done():
        turns += 1
    assert turns > 10
    copies.result()


def test_closing_waits_for_what_was_begun(threads):
    """And leaves out the others: of each piece all is there, or nothing."""
    big = HostArray(torch.ones(1 << 24, dtype=torch.uint8))
    buffers = [torch.zeros(1 << 24, dtype=torch.uint8) for _ in range(20)]
    copies = [threads.submit([Piece(big, 0, 1 << 24, buffer)]) for buffer in buffers]
    threads.close()
    found = [buffer.float().mean().item() for buffer in buffers]
    assert set(found) <= {0.0, 1.0}
    assert all(of.done() for of in copies)
    time.sleep(0.02)
    assert [buffer.float().mean().item() for buffer in buffers] == found
    threads.close()


@NATIVE
def test_the_librarys_end_with_what_holds_them():
    def threads():
        return {path.name for path in Path("/proc/self/task").iterdir()}

    before, of_python = threads(), threading.active_count()
    made = NativeCopier(5, library())
    its_own = threads() - before
    assert (len(its_own), threading.active_count()) == (5, of_python)
    del made
    gc.collect()
    until = time.monotonic() + 10  # the system takes a moment
    while its_own & threads() and time.monotonic() < until:
        time.sleep(1e-3)
    assert not its_own & threads()


@NATIVE
def test_wrong_arguments():
    module = library()
    with pytest.raises(ValueError, match="there must be a thread"):
        module.make_copier(0)
    with pytest.raises(TypeError, match="expected 1 arguments, got 0"):
        module.make_copier()
    made = module.make_copier(1)
    with pytest.raises(ValueError, match="no such copies"):
        module.wait_for_copies(made, 0)
    with pytest.raises(ValueError, match="too short"):
        module.submit_copies(made, ((True, 0, 0),))
    with pytest.raises(ValueError, match="negative"):
        module.submit_copies(made, ((False, 0, -1, 0, -1, 0, 0, False),))
    with pytest.raises(ValueError):
        module.submit_copies(object(), ())
    ticket = module.submit_copies(made, ())
    assert module.wait_for_copies(made, ticket)[0] > 0
    with pytest.raises(ValueError, match="no such copies"):  # twice
        module.wait_for_copies(made, ticket)


@NATIVE
def test_who_copies(monkeypatch):
    strided = HostArray(X.T)
    assert strided.kind == "strided"
    assert isinstance(copier_for(1, [HostArray(X), strided]), PythonCopier)
    assert isinstance(copier_for(1, [HostArray(X)]), NativeCopier)
    monkeypatch.setattr(copier, "library", lambda: None)
    assert isinstance(copier_for(1, [HostArray(X)]), PythonCopier)


# With nothing of PyTorch's in the thread, which aborts the process before Python 3.14.
AT_EXIT = """
import threading, time, torch
from diglot.pipeline.copier import NativeCopier, Piece, library
from diglot.pipeline.host import HostArray
piece = Piece(HostArray(torch.ones(1 << 20)), 0, 1 << 20, torch.empty(1 << 20))
copier = NativeCopier(1, library())
def work():
    while True:
        copier.submit([piece]).result()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


@NATIVE
def test_a_process_ends_while_a_daemon_thread_copies():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
