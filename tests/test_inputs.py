"""Files of tensors that the command line reads, and what it refuses to read."""

from __future__ import annotations

import errno
import io
import pickle
from pathlib import Path

import pytest
import torch
from commands import fails

from diglot.reference.specs import find_spec
from diglot.tools import inputs

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")


def npy_header(elements: int) -> bytes:
    """A .npy file that claims a number of elements, without them."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


@pytest.fixture
def files(tmp_path):
    """A folder of input files, good and bad."""
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    np.save(tmp_path / "a.npy", a.numpy())
    np.save(tmp_path / "big-endian.npy", a.numpy().astype(">f8"))
    np.save(tmp_path / "integers.npy", np.arange(5))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    torch.save(a, tmp_path / "one.pt")
    torch.save({"a": a, "b": b, "epoch": 3}, tmp_path / "two.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    torch.save(a.to_sparse(), tmp_path / "sparse.pt")
    torch.save(a.to("meta"), tmp_path / "meta.pt")
    np.save(tmp_path / "complex.npy", a.numpy().astype(np.complex64))
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x04\x00(((\n")
    (tmp_path / "huge.npy").write_bytes(npy_header(10**15))
    (tmp_path / "overflow.npy").write_bytes(npy_header(10**30))
    safetensors.save_file({}, tmp_path / "none.safetensors")
    torch.save({"a": a, "module": torch.nn.GELU()}, tmp_path / "module.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Attack()))
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Attack()))
    for name in ("junk.pt", "junk.npy", "junk.safetensors", "a.txt"):
        (tmp_path / name).write_bytes(b"this is not a tensor")
    for name in ("empty.pt", "empty.npy", "empty.safetensors"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.pt").mkdir()
    safetensors.save_file({"x": a, "y": b, "z": a.clone()}, tmp_path / "three.safetensors")
    safetensors.save_file(
        {"x": a, "y": b, "z": a.bfloat16()},
        tmp_path / "named.safetensors",
        {"diglot.add": "y,x", "diglot.gelu": "z"},
    )
    return tmp_path


attacks: list[str] = []


def attack():
    """What a pickle could do."""
    attacks.append("run")


class Attack:
    """A pickle that does something when it is loaded."""

    def __reduce__(self):
        return (attack, ())


@pytest.mark.parametrize(
    ("op", "file", "names"),
    [
        ("gelu", "a.npy", [""]),
        ("gelu", "big-endian.npy", [""]),
        ("gelu", "one.pt", [""]),
        ("gelu", "two.pt", ["a"]),
        ("add", "two.pt", ["a", "b"]),
        ("gelu", "named.safetensors", ["z"]),
        ("add", "named.safetensors", ["y", "x"]),
        ("add", "three.safetensors", ["x", "y"]),
    ],
)
def test_default_tensors(op, file, names, files):
    spec = find_spec(op)
    read = inputs.read_file(files / file)
    assert inputs.pick(spec, read, (), file) == names
    loaded = inputs.load(spec, files / file)
    assert all(torch.equal(t, read.tensors[n]) for t, n in zip(loaded, names, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gelu --input missing.npy", "--input: missing.npy is not there"),
        ("gelu --input folder.pt", "folder.pt is not a file"),
        ("gelu --input a.txt", "must end in one of .npy, .safetensors, .pt"),
        ("gelu --input junk.npy", "junk.npy has no tensors that can be read without a pickle"),
        ("gelu --input junk.pt", "junk.pt has no tensors that can be read"),
        ("gelu --input junk.safetensors", "junk.safetensors has no tensors that can be read"),
        ("gelu --input empty.npy", "empty.npy has no tensors that can be read"),
        ("gelu --input empty.pt", "empty.pt has no tensors that can be read"),
        ("gelu --input empty.safetensors", "empty.safetensors has no tensors that can be read"),
        ("gelu --input pickle.npy", "pickle.npy has no tensors that can be read without a pickle"),
        (
            "gelu --input objects.npy",
            "objects.npy has no tensors that can be read without a pickle",
        ),
        ("gelu --input pickle.pt", "pickle.pt has no tensors that can be read without a pickle"),
        ("gelu --input module.pt", "module.pt has no tensors that can be read without a pickle"),
        ("gelu --input none.pt", "takes 1 tensors (input), and none.pt has 0"),
        ("gelu --input text.npy", "text.npy has no tensors that can be read without a pickle"),
        ("gelu --input complex.npy", "ops take real numbers, and complex.npy has dtype"),
        ("gelu --input complex.npy --dtype fp16", "ops take real numbers, and complex.npy has"),
        ("add --input complex.npy", "add takes 2 tensors (input, other), and complex.npy has 1"),
        ("gelu --input sparse.pt", "--input: ops take dense tensors of plain numbers"),
        ("gelu --input meta.pt", "plain numbers, and meta.pt is without data"),
        ("gelu --input header.npy", "header.npy has no tensors that can be read"),
        ("gelu --input overflow.npy", "overflow.npy has no tensors that can be read"),
        ("gelu --input huge.npy", "--input: out of memory: Unable to allocate 3.55 PiB"),
        ("gelu --input none.safetensors", "takes 1 tensors (input), and none.safetensors has 0"),
        ("gelu --input integers.npy", "takes floating-point data, and integers.npy has dtype"),
        ("gelu --input three.safetensors --tensor q", "has no tensor 'q'; it has x, y, z"),
        ("gelu --input a.npy --tensor q", "has no tensor 'q'; it has one without a name"),
        ("gelu --input three.safetensors --tensor x --tensor y", "1 time for gelu (input), not 2"),
        ("add --input three.safetensors --tensor x", "2 times for add (input, other), not 1"),
        ("add --input one.pt", "add takes 2 tensors (input, other), and one.pt has 1"),
    ],
)
def test_mistakes_are_one_line(arguments, message, files, monkeypatch):
    monkeypatch.chdir(files)
    assert message in fails("compare", *arguments.split())


def test_a_file_that_cannot_be_read(files, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setitem(inputs.READERS, ".npy", refuse)
    message = fails("compare", "gelu", "--input", files / "a.npy")
    assert "--input: " in message and "a.npy cannot be read: Permission denied" in message
    monkeypatch.setattr(Path, "exists", refuse)  # of a folder that may not be entered
    assert "cannot be read: Permission denied" in fails("compare", "gelu", "--input", "x/a.npy")


def test_no_pickle_is_run(files):
    attacks.clear()
    for name in ("pickle.pt", "pickle.npy", "objects.npy", "module.pt"):
        fails("compare", "gelu", "--input", files / name)
    assert not attacks
    pickle.load(io.BytesIO((files / "pickle.pt").read_bytes()))
    assert attacks  # the pickle would have done something
