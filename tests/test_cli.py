"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from diglot import cli
from diglot.tools import inputs
from diglot.tools.specs import find_spec

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

EXAMPLE = Path(__file__).parents[1] / "examples/activations.safetensors"


@pytest.fixture(autouse=True)
def no_resources(monkeypatch):
    """Looking at compiled kernels takes seconds; tests/test_resources.py does it."""
    from diglot.tools import compare

    monkeypatch.setattr(compare, "kernels_of_calls", lambda calls, arch, languages: [{}])


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def fails(*arguments):
    """Runs a command that must fail as a user's mistake should; returns the message."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def npy_header(elements: int) -> bytes:
    """A .npy file of so many elements, without them."""
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


def test_table_and_report(files):
    save = files / "report.json"
    result = run(
        *("compare", "gelu", "--input", files / "a.npy", "--approximate", "tanh"),
        *("--device", "cpu", "--save", save),
    )
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert "gelu(float32[3, 4], approximate='tanh'), forward, on CPU" in out
    assert "aten" in out and "…" not in out
    report = json.loads(save.read_text())
    assert [row["backend"] for row in report["rows"]] == ["cuda", "triton", "torch"]
    assert report["options"] == {"approximate": "tanh"}


def test_options_reach_the_op(files):
    result = run(
        *("compare", "add", "--input", files / "named.safetensors", "--alpha", "0.5", "--backward"),
        *("--dtype", "fp16", "--seed", "3", "--arch", "sm_80", "--no-timing", "--device", "cpu"),
        *("--save", files / "report.json"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((files / "report.json").read_text())
    assert report["direction"] == "backward"
    assert report["options"] == {"alpha": 0.5}
    assert report["architecture"] == "sm_80"
    assert [i["dtype"] for i in report["inputs"]] == ["float16"] * 2


def test_random_shape():
    result = run("compare", "gelu", "--shape", "7x3x2", "--dtype", "bf16")
    assert result.exit_code == 0
    assert "gelu(bfloat16[7, 3, 2])" in result.stdout


def test_picture(files):
    pytest.importorskip("matplotlib")
    picture = files / "picture.png"
    arguments = ("compare", "gelu", "--shape", "100", "--plot", picture)
    assert run(*arguments).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "is not overwritten without force (--force)" in fails(*arguments)
    assert run(*arguments, "--force").exit_code == 0


def test_nothing_is_overwritten(files, monkeypatch):
    from diglot.tools import compare

    target = files / "report.json"
    target.write_text("mine")
    # It is refused before anything is computed.
    monkeypatch.setattr(compare, "compare", None)
    assert "is not overwritten" in fails("compare", "gelu", "--shape", "3", "--save", target)
    assert target.read_text() == "mine"
    monkeypatch.undo()
    assert run("compare", "gelu", "--shape", "3", "--save", target, "--force").exit_code == 0
    assert json.loads(target.read_text())["op"] == "gelu"


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
        ("gelu --input missing.npy", "--input: there is no file missing.npy"),
        ("gelu --input folder.pt", "folder.pt is not a file"),
        ("gelu --input a.txt", "must end in one of .npy, .safetensors, .pt"),
        ("gelu --input junk.npy", "junk.npy is"),
        ("gelu --input junk.pt", "junk.pt is not a file that torch.save made of tensors"),
        ("gelu --input junk.safetensors", "junk.safetensors is not a safetensors file"),
        ("gelu --input empty.npy", "empty.npy is not a .npy file"),
        ("gelu --input empty.pt", "empty.pt is not a file that torch.save made of tensors"),
        ("gelu --input empty.safetensors", "empty.safetensors is not a safetensors file"),
        ("gelu --input pickle.npy", "pickle.npy is or holds a pickle, which is not loaded"),
        ("gelu --input objects.npy", "objects.npy is or holds a pickle, which is not loaded"),
        ("gelu --input pickle.pt", "holds other objects than tensors, which are not loaded"),
        ("gelu --input module.pt", "holds other objects than tensors, which are not loaded"),
        ("gelu --input none.pt", "must hold a tensor or a dict of tensors, not dict"),
        ("gelu --input text.npy", "dtype <U1, which no tensor has"),
        ("gelu --input complex.npy", "ops take real numbers, and complex.npy has dtype"),
        ("gelu --input complex.npy --dtype fp16", "ops take real numbers, and complex.npy has"),
        ("add --input complex.npy", "add takes 2 tensors (input, other), and complex.npy has 1"),
        ("gelu --input sparse.pt", "--input: ops take dense tensors of plain numbers"),
        ("gelu --input meta.pt", "plain numbers, and meta.pt is without data"),
        ("gelu --input header.npy", "header.npy is not a .npy file"),
        ("gelu --input overflow.npy", "overflow.npy is not a .npy file"),
        ("gelu --input huge.npy", "--input: out of memory: Unable to allocate 3.55 PiB"),
        ("gelu --input none.safetensors", "takes 1 tensors (input), and none.safetensors has 0"),
        ("gelu --input integers.npy", "takes floating-point data, and integers.npy has dtype"),
        ("gelu --input three.safetensors --tensor q", "has no tensor 'q'; it has x, y, z"),
        ("gelu --input a.npy --tensor q", "has no tensor 'q'; it has one without a name"),
        ("gelu --input three.safetensors --tensor x --tensor y", "1 time for gelu (input), not 2"),
        ("add --input three.safetensors --tensor x", "2 times for add (input, other), not 1"),
        ("add --input one.pt", "add takes 2 tensors (input, other), and one.pt has 1"),
        ("gelu", "exactly one of --input FILE and --shape SIZES must be given"),
        ("gelu --input a.npy --shape 3", "exactly one of --input FILE and --shape SIZES"),
        ("gelu --shape 3x", "--shape must be sizes joined by x, such as 8192x8192, not '3x'"),
        ("gelu --shape ٣", "--shape must be sizes joined by x"),
        ("gelu --shape 99999999x999999", "--shape: out of memory: "),
        ("gelu --shape 9999999999x9999999999", "--shape must have fewer than 2^60 elements"),
        ("gelu --shape 0x99999999999999999999", "--shape must have fewer than 2^60 elements"),
        (f"gelu --shape {'9' * 5000}", "--shape must have fewer than 2^60 elements"),
        ("gelu --shape 3 --tensor x", "--tensor names tensors of --input"),
        ("gelu --shape 3 --dtype fp8", "--dtype must be one of float32, fp32"),
        ("gelu --shape 3 --dtype int8", "--dtype must be floating-point for gelu"),
        ("gelu --shape 3 --approximate erf", "approximate must be 'none' or 'tanh', not 'erf'"),
        ("gelu --shape 3 --alpha 2", "gelu has no option 'alpha'; its options: approximate"),
        ("add --shape 3 --alpha two", "--alpha must be a number, not 'two'"),
        (f"add --shape 3 --alpha {10**26}", "--alpha must fit 64 bits if it is an integer"),
        ("add --shape 3 --alpha 1e400", "--alpha must fit a float64, unlike 1e400"),
        (f"add --shape 3 --alpha {'9' * 5000}", "--alpha must fit a float64"),
        ("add --shape 3 --dtype int32 --alpha 0.5", "alpha must be an integer"),
        ("add --shape 3 --dtype int32 --backward", "backward needs a floating-point input"),
        ("gelu --shape 3 --device tpu", "--device must be cpu, cuda or cuda:N, not 'tpu'"),
        ("gelu --shape 3 --device cuda:99", "--device: there is no cuda:99 here"),
        ("gelu --shape 3 --arch hopper", "arch must be like 'sm_90', not 'hopper'"),
        ("gelu --shape 3 --seed x", "Invalid value for '--seed'"),
        (
            "gelu --shape 3 --seed -1",
            "Invalid value for '--seed': -1 is not in the range 0<=x<=184",
        ),
        (f"gelu --shape 3 --seed {2**64}", "Invalid value for '--seed'"),
        ("gelu --shape 3 --nonsense", "No such option"),
        ("gelu --shape 3 --plot picture.txt", "must end in one of .png, .svg, .pdf"),
        ("gelu --shape 3 --save no/report.json", "--save: no/report.json cannot be written: there"),
        ("gelu --shape 3 --save folder.pt --force", "--save: folder.pt is a folder, not a file"),
        ("gelu --shape 3 --save a.npy/report.json", "there is no folder"),
        ("gelu --shape 3 --save x.png --plot ./x.png", "--plot must name another file than --save"),
        ("gelu --shape 3 --save x.png --plot x.png --force", "--plot must name another file than"),
        ("gelu --input a.npy --save a.npy --force", "--save must name another file than --input"),
        ("nothing --shape 3", "op must be one of add, gelu, not 'nothing'"),
        ("", "Missing argument 'OP'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, files, monkeypatch):
    monkeypatch.chdir(files)
    assert message in fails("compare", *arguments.split())


@pytest.mark.parametrize("name", ["zero", "nan", "infinite"])
@pytest.mark.parametrize("backward", [(), ("--backward",)])
def test_data_of_little_use(name, backward, tmp_path):
    """No elements, or none that is a number: a report and a picture all the same."""
    pytest.importorskip("matplotlib")
    data = {"zero": np.zeros((0, 4)), "nan": np.full(6, np.nan), "infinite": np.full(6, np.inf)}
    np.save(tmp_path / "data.npy", data[name].astype(np.float32))
    targets = [tmp_path / "report.json", tmp_path / "picture.png"]
    result = run(
        *("compare", "gelu", "--input", tmp_path / "data.npy", *backward),
        *("--save", targets[0], "--plot", targets[1]),
    )
    assert result.exit_code == 0, result.output
    assert all(target.stat().st_size for target in targets)


def test_a_file_that_cannot_be_read(files, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(inputs, "_read_npy", refuse)
    message = fails("compare", "gelu", "--input", files / "a.npy")
    assert "--input: " in message and "a.npy cannot be read: Permission denied" in message
    monkeypatch.setattr(Path, "exists", refuse)  # of a folder that may not be entered
    assert "cannot be read: Permission denied" in fails("compare", "gelu", "--input", "x/a.npy")


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """It is refused before anything is computed; what fails later is one line too."""
    from diglot.tools import compare

    arguments = ("compare", "gelu", "--shape", "3", "--device", "cpu")
    assert (
        "/dev/full cannot be written: No space left"
        in run(*arguments, "--save", "/dev/full", "--force").stderr
    )
    monkeypatch.setattr(compare, "compare", None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for option in ("--save", "--plot"):
        message = fails(*arguments, option, tmp_path / "report.png")
        assert f"{option}: " in message and "cannot be written: Permission denied" in message


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_memory_that_runs_out(kind, monkeypatch):
    from diglot.tools import compare

    def fail(*arguments, **options):
        raise kind("tried to allocate\n1 TiB")

    monkeypatch.setattr(compare, "compare", fail)
    message = fails("compare", "gelu", "--shape", "3", "--device", "cpu")
    assert message == "error: out of memory: tried to allocate 1 TiB"


def test_other_errors_are_not_hidden(monkeypatch):
    from diglot.tools import compare

    def fail(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(compare, "compare", fail)
    result = run("compare", "gelu", "--shape", "3", "--device", "cpu")
    assert isinstance(result.exception, RuntimeError)


def start(*arguments) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "diglot.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DIGLOT_INTERPRET": "1"},
    )


@pytest.mark.slow
def test_output_that_nobody_reads():
    process = start("info")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_output_without_unicode(monkeypatch):
    """Where the encoding of standard output has no µ or –, something stands in their place."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["diglot", "compare", "gelu", "--shape", "3"])
    monkeypatch.setenv("DIGLOT_INTERPRET", "1")
    with pytest.raises(SystemExit) as end:
        cli.main()
    sys.stdout.flush()
    assert end.value.code == 0 and b"aten" in written.getvalue() and b"?" in written.getvalue()


@pytest.mark.slow
def test_interrupt():
    """Ctrl-C ends a command in one line."""
    process = start("compare", "gelu", "--shape", "3000x1000", "--device", "cpu")
    assert "interpreted" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert (out, error.split(), process.returncode) == ("", ["Aborted!"], 1)


def test_unknown_command():
    assert "No such command 'nothing'" in fails("nothing")


def test_no_pickle_is_run(files):
    attacks.clear()
    for name in ("pickle.pt", "pickle.npy", "objects.npy", "module.pt"):
        fails("compare", "gelu", "--input", files / name)
    assert not attacks
    pickle.load(io.BytesIO((files / "pickle.pt").read_bytes()))
    assert attacks  # the pickle would have done something


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("matplotlib", "--shape 3 --plot picture.png"), ("safetensors", f"--input {EXAMPLE}")],
)
def test_missing_packages_are_named(package, arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    message = fails("compare", "gelu", *arguments.split())
    assert package in message and 'pip install "diglot[tools]"' in message


def test_missing_click_is_one_line():
    code = "import sys; sys.modules['click'] = None; import diglot.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    expected = 'error: the command line needs click: pip install "diglot[tools]"\n'
    assert (done.stdout, done.stderr) == ("", expected)


def test_info():
    result = run("info")
    assert result.exit_code == 0, result.output
    for text in ("diglot", torch.__version__, "driver", "backends on cpu", "torch   can run"):
        assert text in result.stdout
    for backend in ("cuda", "triton"):
        assert f"  {backend:7} " in result.stdout


@pytest.mark.slow
def test_no_variable_is_needed(tmp_path):
    """Where there is no GPU, the command interprets by itself, and says so."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    command = [sys.executable, "-m", "diglot.cli", "compare", "add", "--shape", "40x30"]
    done = subprocess.run(
        [*command, "--save", tmp_path / "report.json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no GPU found: cuda and triton interpreted on the CPU, 1,200 elements" in done.stderr
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    for row in rows:
        assert row["interpreted"] == (row["backend"] != "torch") and row["error"]["failing"] == 0
    assert "…" not in done.stdout
