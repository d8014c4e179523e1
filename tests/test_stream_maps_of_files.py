"""stream_map from files to files through their maps."""

from __future__ import annotations

import errno
import functools
import os
import warnings
from pathlib import Path

import pytest
import torch
from backends import CUDA, HAS_CUDA

import diglot
from diglot import StreamError, last_stream_report, stream_map
from diglot.pipeline import copier, host
from diglot.pipeline.host import HostArray

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

X = torch.randn(500, 33)
ROW = 33 * 4
# Both languages' by the native engine, if it is there; whatever, by Python's.
ENGINES = [pytest.param("cuda", marks=CUDA.marks), "triton", None]


def stream(engine, x, **options):
    """x + 1 by an engine."""
    if engine is None:
        return stream_map(lambda c: c + 1, x, **options)
    # Triton's interpreter is slow: chunks are large.
    options["chunk_bytes"] = max(options.get("chunk_bytes", 0), 60 * ROW)
    result = stream_map(functools.partial(diglot.add, other=1), x, backend=engine, **options)
    assert last_stream_report().engine == ("native" if HAS_CUDA else "python")
    return result


def kind(array, is_output=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an array is read-only
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    return HostArray(tensor, is_output=is_output).kind


@pytest.fixture
def npy(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X.numpy())
    return path


def new(path, shape=tuple(X.shape)):
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


@pytest.mark.parametrize("engine", ENGINES)
def test_npy_to_npy(engine, npy, tmp_path):
    x, out = np.load(npy, mmap_mode="r"), new(tmp_path / "out.npy")
    assert (kind(x), kind(out, True)) == ("file", "file")
    assert stream(engine, x, out=out, chunk_bytes=11 * ROW) is out
    assert np.array_equal(out, X.numpy() + 1)
    del out
    assert np.array_equal(np.load(tmp_path / "out.npy"), X.numpy() + 1)
    assert np.array_equal(np.load(npy), X.numpy())


@pytest.mark.parametrize("name", [b"a b.npy", b"\x0c.npy", "\u2028.npy".encode(), b"\xff.npy"])
def test_odd_names(npy, tmp_path, name):
    """Some end lines elsewhere, and one is no text."""
    path = npy.rename(tmp_path / os.fsdecode(name))
    x = np.load(path, mmap_mode="r")
    assert kind(x) == "file"
    assert kind(np.ones(1 << 20)) == "memory"  # what lies behind it is found, too


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("begin", [1, 77])
def test_parts_of_maps(engine, npy, tmp_path, begin):
    x, out = np.load(npy, mmap_mode="r"), new(tmp_path / "out.npy")
    out[:] = 5
    stream(engine, x[begin:-3], out=out[3:-begin], chunk_bytes=11 * ROW)
    assert np.array_equal(out[3:-begin], X.numpy()[begin:-3] + 1)
    assert (out[:3] == 5).all()
    assert (out[-begin:] == 5).all()


def test_strided_parts_of_maps(npy):
    x = np.load(npy, mmap_mode="r")
    assert np.array_equal(stream(None, x[::3, 5:9]), X.numpy()[::3, 5:9] + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_private_map_holds_for_itself(engine, npy):
    x = np.load(npy, mmap_mode="c")
    x[100:200] = 9
    assert kind(x) == "memory"
    result = stream(engine, x, chunk_bytes=11 * ROW)
    assert np.array_equal(result, x + 1)
    assert (result[100:200] == 10).all()
    # As an output it is memory too: the file stays as it is.
    stream(engine, X, out=x)
    assert np.array_equal(x, X.numpy() + 1)
    assert np.array_equal(np.load(npy), X.numpy())


def test_what_was_written_to_a_shared_map_before(npy):
    x = np.load(npy, mmap_mode="r+")
    x[3] = 4
    assert np.array_equal(stream(None, x), np.asarray(x) + 1)


@pytest.mark.parametrize("shared", [False, True])
def test_from_file(tmp_path, shared):
    path = tmp_path / "x"
    path.write_bytes(X.numpy().tobytes())
    x = torch.from_file(str(path), shared=shared, size=X.numel()).view_as(X)
    assert torch.equal(stream(None, x, chunk_bytes=11 * ROW), X + 1)
    out = torch.from_file(str(path), shared=shared, size=X.numel()).view_as(X)
    stream(None, X, out=out)
    assert torch.equal(out, X + 1)
    on_disk = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).view_as(X)
    assert torch.equal(on_disk, X + 1 if shared else X)


@pytest.mark.parametrize("engine", ENGINES)
def test_safetensors(engine, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"a": X, "b": X * 2}, path)
    loaded = safetensors.load_file(path)
    assert torch.equal(stream(engine, loaded["b"], chunk_bytes=11 * ROW), X * 2 + 1)
    with pytest.importorskip("safetensors").safe_open(path, "pt") as file:
        assert torch.equal(stream(engine, file.get_tensor("a")), X + 1)


def test_files_of_other_names(npy, tmp_path):
    """A link, a name with spaces and a line's end, a file that is gone."""
    for name in ("a b  c.npy", "line\nend.npy", "x (deleted)"):
        path = tmp_path / name
        path.write_bytes(npy.read_bytes())
        x = np.load(path, mmap_mode="r")
        assert np.array_equal(stream(None, x), X.numpy() + 1)
        path.unlink()
        assert kind(x) == "memory"
        assert np.array_equal(stream(None, x), X.numpy() + 1)
    x = np.load(npy, mmap_mode="r")
    npy.rename(tmp_path / "moved")
    npy.write_bytes(b"another" * 1000)
    assert np.array_equal(stream(None, x), X.numpy() + 1)


def test_memory_stays_small(tmp_path):
    """Neither the bytes read nor those written become the process's."""

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssFile"))

    size = 64 << 20
    np.save(tmp_path / "x.npy", np.zeros((size // 4096, 1024), np.float32))
    x, out = (
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        new(tmp_path / "out.npy", (size // 4096, 1024)),
    )
    before = resident()
    stream(None, x, out=out)
    assert resident() - before < size // 4
    assert (out[::97] == 1).all()


# Faults.


@pytest.mark.parametrize("engine", ENGINES)
def test_an_input_that_was_cut_short(engine, npy):
    x = np.load(npy, mmap_mode="r")
    os.truncate(npy, 128 + 130 * ROW)
    out = torch.full(X.shape, 7.0)
    with pytest.raises(StreamError, match=r"the file end.* cut short") as failed:
        stream(engine, x, out=out, chunk_bytes=60 * ROW)
    assert failed.value.chunk == 2
    assert failed.value.rows in (0, 60, 120)
    assert torch.equal(out[: failed.value.rows], X[: failed.value.rows] + 1)
    assert (out[120:] == 7).all()


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_output_that_is_cut_short(engine, library, tmp_path, monkeypatch):
    """Elsewhere that is a signal, which ends the process."""
    if not library:
        monkeypatch.setattr(copier, "library", lambda: None)
    out = new(tmp_path / "out.npy")
    before = out[:120].copy()
    os.truncate(tmp_path / "out.npy", 128 + 130 * ROW)
    with pytest.raises(StreamError, match=r"cut short|No space") as failed:
        stream(engine, X, out=out, chunk_bytes=60 * ROW)
    assert failed.value.rows <= 180
    assert not np.array_equal(out[:60], before[:60])


def read_only_outputs(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = np.load(path, mmap_mode="r")
        frozen = np.zeros(X.shape, np.float32)
        frozen.flags.writeable = False
        return {
            "a map": array,
            "its tensor": torch.from_numpy(array),
            "a part": torch.from_numpy(array)[3:9],
            "an array": frozen,
        }


@pytest.mark.parametrize("name", ["a map", "its tensor", "a part", "an array"])
def test_outputs_that_cannot_be_written(npy, name):
    out = read_only_outputs(npy)[name]
    with pytest.raises(ValueError, match=r"^stream_map: out is read-only"):
        stream(None, X[: len(out)], out=out)


def test_a_deleted_map_that_cannot_be_written(npy):
    out = read_only_outputs(npy)["its tensor"]
    npy.unlink()
    with pytest.raises(ValueError, match="out is read-only"):
        stream(None, X, out=out)


def test_a_full_disk(monkeypatch, tmp_path):
    out = new(tmp_path / "out.npy")
    fallocate = os.posix_fallocate

    def full(file, offset, size):
        if offset >= 128 + 120 * ROW:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fallocate(file, offset, size)

    monkeypatch.setattr(copier, "library", lambda: None)
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(host, "MARGIN", 1 << 60)  # no disk has room to spare
    with pytest.raises(StreamError, match="No space left on device") as failed:
        stream(None, X, out=out, chunk_bytes=60 * ROW)
    assert (failed.value.chunk, failed.value.rows) == (2, 120)
    assert isinstance(failed.value.__cause__, OSError)
    assert np.array_equal(out[:120], X.numpy()[:120] + 1)
    assert (out[120:180] == 0).all()


def test_the_same_file_as_input_and_output(npy, tmp_path):
    """Whatever path and map it has."""
    os.link(npy, tmp_path / "link.npy")
    for path in (npy, tmp_path / "link.npy"):
        x, out = np.load(npy, mmap_mode="r"), np.load(path, mmap_mode="r+")
        with pytest.raises(ValueError, match="out shares memory with input 0"):
            stream(None, x[:-1], out=out[1:])
        both = (out[:200], np.load(npy, mmap_mode="r+")[199:399])
        with pytest.raises(ValueError, match="out 1 shares memory with out 0"):
            stream_map(lambda c: (c, c), X[:200], out=both)
        # Parts that have nothing in common are as good as two files.
        stream(None, x[:200], out=out[200:400])
        assert np.array_equal(out[200:400], X.numpy()[:200] + 1)
        out[200:400] = X.numpy()[200:400]


@pytest.mark.parametrize("how", ["strided", "by columns", "private", "safetensors"])
def test_the_same_file_seen_otherwise(npy, tmp_path, how):
    """An input of another kind than a map that is read as a file."""
    begin = 128 + 10 * ROW
    if how == "safetensors":
        safetensors = pytest.importorskip("safetensors.torch")
        npy = tmp_path / "x.safetensors"
        safetensors.save_file({"x": X}, npy)
        x = safetensors.load_file(npy)["x"]
        begin = npy.stat().st_size - X.nbytes + 10 * ROW
    elif how == "by columns":
        np.save(npy, np.asfortranarray(X.numpy()))
        x = np.load(npy, mmap_mode="r")
    else:
        x = np.load(npy, mmap_mode="c" if how == "private" else "r")
    x = x[: len(X) - 10]
    if how == "strided":
        x = x[:, :2]
    out = np.memmap(npy, np.float32, "r+", offset=begin, shape=tuple(x.shape))
    before = npy.read_bytes()
    with pytest.raises(ValueError, match="out shares memory with input 0"):
        stream_map(lambda c: c + 1, x, out=out)
    assert npy.read_bytes() == before


def test_a_private_map_as_output_leaves_its_file_alone(npy):
    x, out = np.load(npy, mmap_mode="r"), np.load(npy, mmap_mode="c")
    stream(None, x, out=out)
    assert np.array_equal(out, X.numpy() + 1) and np.array_equal(x, X.numpy())


def test_the_system_is_asked_of_what_matters_alone(npy, monkeypatch):
    """It takes long to tell of all memory."""
    asked = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: asked.append(path) or read(path))
    stream_map(torch.neg, X[:, ::2])
    assert asked == []
    stream_map(torch.neg, X[:, ::2], out=torch.empty(len(X), X[0, ::2].numel()))
    assert asked == [Path("/proc/self/maps")]
