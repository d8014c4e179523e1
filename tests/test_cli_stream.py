"""`diglot stream`: what it writes, what it says, how it fails, and what it then leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import CUDA
from commands import fails, run

import diglot
from diglot.pipeline.report import PipelineReport
from diglot.tools import streaming

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

# Where kernels are interpreted "auto" chooses PyTorch's, as it does where there is nothing else.
BACKENDS = [None, "torch", CUDA, "triton"]
SHAPE = (300, 33)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """In the current folder: in.npy, other.npy, and both in two.safetensors."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(SHAPE, generator=generator) for name in ("in", "other")}
    for name, tensor in tensors.items():
        np.save(f"{name}.npy", tensor.numpy())
    safetensors.save_file(tensors, "two.safetensors", {"about": "a test"})
    return tensors


def stream(*arguments):
    result = run("stream", *arguments)
    assert result.exit_code == 0, result.output
    return result


def left_behind():
    found = {path.name for path in Path.cwd().iterdir()}
    return sorted(found - {"in.npy", "other.npy", "two.safetensors"})


def expected(data, backend, function=diglot.gelu, **options):
    """What the op makes of the whole array."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = data["in"].to(device)
    return function(whole, backend=backend, **options).cpu().numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_result_is_the_ops(backend, data):
    chosen = () if backend is None else ("--backend", backend)
    result = stream(
        "gelu", "--input", "in.npy", "--output", "out.npy", "--chunk-bytes", "4k", *chosen
    )
    found = np.load("out.npy")
    assert found.dtype == np.float32 and np.array_equal(found, expected(data, backend))
    assert "gelu of 300 rows, 39.6 kB in and 39.6 kB out, on " in result.stdout
    assert "10 chunks of 31 rows, 3 slots" in result.stdout
    assert result.stderr == "wrote out.npy\n"
    assert left_behind() == ["out.npy"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_that_there_is_no_gpu_is_said(data):
    result = stream("gelu", "--input", "in.npy", "--output", "out.npy", "--backend", "torch")
    assert "on cpu (backend torch" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "function", "options"),
    [
        (("gelu", "--approximate", "tanh"), diglot.gelu, {"approximate": "tanh"}),
        (("softmax",), diglot.softmax, {}),
        (("log_softmax", "--dim", "1"), diglot.log_softmax, {"dim": 1}),
        (("rms_norm", "--eps", "0.1"), diglot.rms_norm, {"normalized_shape": [33], "eps": 0.1}),
        (("layer_norm",), diglot.layer_norm, {"normalized_shape": [33]}),
    ],
)
def test_options_reach_the_op(arguments, function, options, data):
    stream(*arguments, "--input", "in.npy", "--output", "out.npy", "--backend", "torch")
    assert np.array_equal(np.load("out.npy"), expected(data, "torch", function, **options))


def test_a_dimension_that_is_not_there(data):
    arguments = ("softmax", "--dim", "7", "--input", "in.npy", "--output", "out.npy")
    assert "softmax: dim must be from -2 to 1" in fails("stream", *arguments)
    assert "out.npy" not in left_behind()


@pytest.mark.parametrize(
    "files",
    [
        ("--input", "in.npy", "--input", "other.npy"),
        ("--input", "two.safetensors", "--tensor", "in", "--tensor", "other"),
        ("--input", "in.npy", "--input", "two.safetensors", "--tensor", "other"),
    ],
)
def test_two_inputs(files, data):
    stream("add", "--alpha", "3", *files, "--output", "out.npy", "--backend", "torch")
    assert np.array_equal(np.load("out.npy"), torch.add(*data.values(), alpha=3).numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_dtypes(dtype, suffix, data):
    given = (data["in"] * 3).to(dtype)
    if suffix == ".npy":
        np.save("typed.npy", given.numpy())
    else:
        safetensors.save_file({"x": given}, "typed.safetensors")
    inputs = ["--input", f"typed{suffix}"] * 2 + ["--tensor", "x"] * 2 * (suffix != ".npy")
    stream("add", *inputs, "--output", "out.npy", "--backend", "torch")
    found = torch.from_numpy(np.load("out.npy"))
    assert found.dtype == dtype and torch.equal(found, torch.add(given, given))


def test_safetensors_are_mapped_as_they_are(data):
    bits = data["in"].bfloat16()
    safetensors.save_file({"pad": torch.ones(3, dtype=torch.int8), "x": bits}, "bits.safetensors")
    (found,) = streaming.open_inputs(("input",), ["bits.safetensors"], ["x"])
    assert found.dtype == torch.bfloat16 and torch.equal(found, bits)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1,), (7,)])
def test_few_elements(shape, data):
    np.save("small.npy", np.ones(shape, np.float32))
    stream("gelu", "--input", "small.npy", "--output", "out.npy", "--backend", "torch")
    assert np.load("out.npy").shape == shape


def test_report_and_picture(data):
    pytest.importorskip("matplotlib")
    arguments = ("gelu", "--input", "in.npy", "--output", "out.npy", "--backend", "torch")
    written = ("--report", "report.json", "--plot", "overlap.png")
    result = stream(*arguments, *written, "--chunk-bytes", "8KiB", "--num-slots", "2")
    report = PipelineReport.from_json(Path("report.json").read_text())
    assert (report.op, report.backend, report.rows, report.num_slots) == ("gelu", "torch", 300, 2)
    assert (report.bytes_in, report.bytes_out, report.chunk_rows) == (39600, 39600, 62)
    assert sum(map(len, report.timelines)) == report.chunks == 5
    assert Path("overlap.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote report.json" in result.stderr and "wrote overlap.png" in result.stderr


def test_nothing_is_overwritten(data, monkeypatch):
    arguments = ("stream", "gelu", "--input", "in.npy", "--output", "out.npy", "--backend", "torch")
    np.save("out.npy", np.zeros(3))
    with monkeypatch.context() as nothing_computes:
        nothing_computes.setattr(diglot, "stream_map", None)
        assert "is not overwritten without force (--force)" in fails(*arguments)
    assert np.array_equal(np.load("out.npy"), np.zeros(3))
    assert run(*arguments, "--force").exit_code == 0
    assert np.load("out.npy").shape == SHAPE


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize(
    "error", [diglot.StreamError("chunk 3: no", 3, [(0, 9)]), KeyboardInterrupt(), KeyError("bug")]
)
def test_a_failure_leaves_nothing_that_looks_complete(error, earlier, data, monkeypatch):
    def fail(function, *inputs, out, **options):
        out[:9] = 1
        assert Path("out.npy").exists() == earlier and len(left_behind()) == 1 + earlier
        raise error

    if earlier:
        np.save("out.npy", np.zeros(3))
    monkeypatch.setattr(diglot, "stream_map", fail)
    arguments = ("--input", "in.npy", "--output", "out.npy", "--force")
    if isinstance(error, diglot.StreamError):
        message = fails("stream", "gelu", *arguments)
        assert message == "error: chunk 3: no; out.npy was not written"
    else:
        assert run("stream", "gelu", *arguments).exit_code == 1
    assert left_behind() == ["out.npy"] * earlier
    if earlier:
        assert np.array_equal(np.load("out.npy"), np.zeros(3))


def test_a_full_disk_is_known_before(data, monkeypatch):
    class Full:
        f_bavail, f_frsize = 2, 4096

    monkeypatch.setattr(os, "statvfs", lambda folder: Full)
    monkeypatch.setattr(diglot, "stream_map", None)
    message = fails("stream", "gelu", "--input", "in.npy", "--output", "out.npy")
    assert "--output: out.npy would have 39,600 bytes" in message and "room for 8,192" in message
    assert left_behind() == []


ENTRY = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}


@pytest.mark.parametrize(
    "header",
    [
        {"x": ENTRY | {"shape": [100, 4], "data_offsets": [0, 0]}},
        {"x": ENTRY | {"data_offsets": [0, 8]}},
        {"x": ENTRY | {"shape": [2, 1], "data_offsets": [-8, 0]}},
        {"x": ENTRY | {"shape": [200, 4], "data_offsets": [0, 3200]}},
        {"x": ENTRY | {"shape": ["a"]}},
        {"x": ENTRY | {"shape": [-1, 4]}},
        {"x": ENTRY | {"shape": [10**30]}},
        {"x": ENTRY | {"shape": [0, 10**30], "data_offsets": [0, 0]}},
        {"x": ENTRY | {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}},
        {"x": ENTRY | {"shape": [1] * 70, "data_offsets": [0, 4]}},
        {"x": ENTRY | {"data_offsets": [0.5, 32]}},
        {"x": ENTRY | {"data_offsets": [32]}},
        {"x": ENTRY | {"dtype": ["F32"]}},
        {"x": 3},
        [1, 2],
        "[" * 100_000,
    ],
    ids=lambda header: str(header)[:40],
)
def test_safetensors_that_are_damaged(header, data):
    text = header if isinstance(header, str) else json.dumps(header)
    size = len(text).to_bytes(8, "little")
    Path("damaged.safetensors").write_bytes(size + text.encode() + bytes(32))
    message = fails("stream", "gelu", "--input", "damaged.safetensors", "--output", "out.npy")
    assert "--input: damaged.safetensors " in message
    assert not Path("out.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gelu --output o.npy", "Missing option '--input'"),
        ("gelu --input in.npy", "Missing option '--output'"),
        ("gelu --input no.npy --output o.npy", "--input: no.npy is not there"),
        ("gelu --input . --output o.npy", "--input: . is not a file"),
        ("gelu --input in.txt --output o.npy", "in.txt must end in one of .npy, .safetensors"),
        ("gelu --input broken.npy --output o.npy", "broken.npy is not a .npy file"),
        (
            "gelu --input objects.npy --output o.npy",
            "objects.npy is or holds a pickle, which is not loaded",
        ),
        ("gelu --input scalar.npy --output o.npy", "an array of no dimensions has no rows"),
        ("gelu --input swapped.npy --output o.npy", "has NumPy's dtype >f4"),
        ("gelu --input ints.npy --output o.npy", "gelu: input must have one of the dtypes"),
        ("gelu --input broken.safetensors --output o.npy", "is not a safetensors file"),
        ("gelu --input two.safetensors --output o.npy", "--tensor must name a tensor of two."),
        ("gelu --input two.safetensors --tensor x --output o.npy", "has no tensor 'x'; it has in"),
        ("gelu --input in.npy --tensor x --output o.npy", "no .safetensors file is left for 'x'"),
        ("gelu --input bits.safetensors --output o.npy", "a .npy file cannot hold bfloat16"),
        ("gelu --input in.npy --input in.npy --output o.npy", "--input must be given 1 time"),
        (
            "add --input in.npy --output o.npy",
            "--input must be given 2 times (input, other), not 1",
        ),
        ("add --input in.npy --input ints.npy --output o.npy", "must have as many rows, and have"),
        ("gelu --input in.npy --output o.txt", "--output: o.txt must end in .npy"),
        ("gelu --input in.npy --output no/o.npy", "--output: no/o.npy cannot be written: there is"),
        ("gelu --input in.npy --output in.npy --force", "--output must name another file than"),
        ("gelu --input in.npy --output o.npy --report o.npy", "--report must name another file"),
        ("gelu --input in.npy --output o.npy --plot o.txt", "must end in one of .png"),
        (
            "gelu --input in.npy --output o.npy --chunk-bytes 3x",
            "--chunk-bytes must be a size such",
        ),
        ("gelu --input in.npy --output o.npy --chunk-bytes 0", "must be at least one byte"),
        ("gelu --input in.npy --output o.npy --chunk-bytes 8", "a row has 132 bytes"),
        ("gelu --input in.npy --output o.npy --num-slots 0", "Invalid value for '--num-slots'"),
        ("gelu --input in.npy --output o.npy --devices a", "--devices must be numbers of GPUs"),
        ("gelu --input in.npy --output o.npy --devices 99", "--devices: there is no GPU 99 here"),
        ("gelu --input in.npy --output o.npy --backend x", "backend must be one of 'cuda'"),
        (
            "gelu --input in.npy --output o.npy --alpha 2",
            "gelu has no option 'alpha'; its options:",
        ),
        ("gelu --input in.npy --output o.npy --approximate x", "approximate must be 'none' or"),
        ("softmax --input in.npy --output o.npy --dim 0", "--dim 0 is the dimension that is cut"),
        ("softmax --input in.npy --output o.npy --dim -2", "--dim -2 is the dimension that is cut"),
        ("softmax --input in.npy --output o.npy --dim x", "'--dim': it must be a number, not 'x'"),
        ("softmax --input line.npy --output o.npy", "--dim -1 is the dimension that is cut"),
        ("rms_norm --input line.npy --output o.npy", "must have two dimensions or more"),
        ("standardize --input in.npy --output o.npy", "and standardize is none: a row of its"),
        ("nothing --input in.npy --output o.npy", "op must be one whose rows can be computed in"),
    ],
)
def test_mistakes_are_one_line(arguments, message, data):
    for name, array in {
        "objects": np.array([{}], object),
        "scalar": np.float32(1),
        "swapped": np.ones(3, ">f4"),
        "ints": np.ones(4, np.int64),
        "line": np.ones(9, np.float32),
    }.items():
        np.save(name, array)
    for name in ("in.txt", "broken.npy", "broken.safetensors"):
        Path(name).write_bytes(b"\x93NUMPY nonsense, but longer than a header's length")
    safetensors.save_file({"x": torch.ones(3, 4, dtype=torch.bfloat16)}, "bits.safetensors")
    before = left_behind()
    assert message in fails("stream", *arguments.split())
    assert left_behind() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are fewer than two GPUs")
@pytest.mark.gpu
def test_two_devices(data):
    arguments = ("gelu", "--input", "in.npy", "--output", "out.npy", "--chunk-bytes", "4k")
    result = stream(*arguments, "--devices", "0,1")
    assert "on cuda:0, cuda:1 (" in result.stdout
    assert np.array_equal(np.load("out.npy"), expected(data, None))
    assert "names a GPU twice" in fails("stream", *arguments, "--force", "--devices", "0,0")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("16MiB", 16 << 20),
        ("16 mib", 16 << 20),
        ("16M", 16 << 20),
        ("64k", 64 << 10),
        ("1.5GB", 1_500_000_000),
        ("2TiB", 2 << 40),
        ("10B", 10),
        ("3kb", 3000),
    ],
)
def test_sizes(text, size):
    assert streaming.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1e3", "-1", "1,5", "1.", "1XB", "٣", "0.1", "9" * 99])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="--chunk-bytes must be"):
        streaming.parse_bytes(text)


@pytest.mark.slow
def test_interrupt(data):
    """Ctrl-C ends the command in a line, and the file that was begun is gone."""
    np.save("large.npy", np.ones((400_000, 300), np.float32))
    command = [sys.executable, "-m", "diglot_cli", "stream", "gelu", "--input", "large.npy"]
    process = subprocess.Popen(
        [*command, "--output", "out.npy", "--backend", "torch", "--chunk-bytes", "64k"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(Path.cwd().glob(".out.npy.*.part")):
        pass
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert (out, error.split(), process.returncode) == ("", ["Aborted!"], 1)
    assert left_behind() == ["large.npy"]
