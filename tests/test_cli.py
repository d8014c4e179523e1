"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import DEVICE, needs_cuda
from commands import fails, run

import diglot_cli as cli

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

EXAMPLE = Path(__file__).parents[1] / "examples/activations.safetensors"


@pytest.fixture(autouse=True)
def no_resources(monkeypatch):
    """Looking at compiled kernels takes seconds; tests/test_recording.py does it."""
    from diglot.tools import compare

    monkeypatch.setattr(compare, "kernels_of_calls", lambda calls, arch, languages: [{}])


def test_table_and_report(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))
    save = tmp_path / "report.json"
    result = run(
        *("compare", "gelu", "--input", tmp_path / "a.npy", "--approximate", "tanh"),
        *("--device", "cpu", "--save", save),
    )
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert "gelu(float32[3, 4], approximate='tanh'), forward, on CPU" in out
    assert "aten" in out and "…" not in out
    report = json.loads(save.read_text())
    assert [row["backend"] for row in report["rows"]] == ["cuda", "triton", "torch"]
    assert report["options"] == {"approximate": "tanh"}


def test_options_reach_the_op(tmp_path, monkeypatch):
    from diglot.tools import compare

    given = {}
    real = compare.compare
    monkeypatch.setattr(
        compare, "compare", lambda *a, **options: given.update(options) or real(*a, **options)
    )
    tensors = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    safetensors.save_file(tensors, tmp_path / "two.safetensors")
    result = run(
        *("compare", "add", "--input", tmp_path / "two.safetensors", "--alpha", "0.5"),
        *("--backward", "--dtype", "fp16", "--seed", "3", "--arch", "sm_80", "--no-timing"),
        *("--device", "cpu", "--save", tmp_path / "report.json"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["direction"] == "backward"
    assert report["options"] == {"alpha": 0.5}
    assert report["architecture"] == "sm_80"
    assert [i["dtype"] for i in report["inputs"]] == ["float16"] * 2
    assert (given["seed"], given["timed"]) == (3, False)


def test_random_shape():
    result = run("compare", "gelu", "--shape", "7x3x2", "--dtype", "bf16")
    assert result.exit_code == 0
    assert "gelu(bfloat16[7, 3, 2])" in result.stdout


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    arguments = ("compare", "gelu", "--shape", "100", "--plot", picture)
    assert run(*arguments).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "is not overwritten without force (--force)" in fails(*arguments)
    assert run(*arguments, "--force").exit_code == 0


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    from diglot.tools import compare

    target = tmp_path / "report.json"
    target.write_text("mine")
    with monkeypatch.context() as nothing_computes:  # it is refused before
        nothing_computes.setattr(compare, "compare", None)
        assert "is not overwritten" in fails("compare", "gelu", "--shape", "3", "--save", target)
    assert target.read_text() == "mine"
    assert run("compare", "gelu", "--shape", "3", "--save", target, "--force").exit_code == 0
    assert json.loads(target.read_text())["op"] == "gelu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gelu", "--input FILE and --shape SIZES must be given, such as --shape 64x1024"),
        ("gelu --input a.npy --shape 3", "exactly one of --input FILE and --shape SIZES"),
        ("gelu --shape 3x", "--shape must be sizes joined by x, such as 8192x8192, not '3x'"),
        ("gelu --shape ٣", "--shape must be sizes joined by x"),
        ("gelu --shape 99999999x999999 --limit inf", "--shape: out of memory: "),
        ("gelu --shape 9999999999x9999999999", "--shape must have fewer than 2^60 elements"),
        ("gelu --shape 0x99999999999999999999", "--shape must have fewer than 2^60 elements"),
        (f"gelu --shape {'9' * 5000}", "--shape must have fewer than 2^60 elements"),
        ("gelu --shape 3 --tensor x", "--tensor names tensors of --input"),
        ("gelu --shape 3 --dtype fp8", "--dtype must be one of float32, fp32"),
        ("gelu --shape 3 --dtype int8", "--dtype must be floating-point for gelu"),
        ("gelu --shape 3 --approximate erf", "approximate must be 'none' or 'tanh', not 'erf'"),
        ("gelu --shape 3 --alpha 2", "gelu has no option 'alpha'; its options: approximate"),
        ("add --shape 3 --alpha two", "'--alpha': it must be a number of 64 bits, not 'two'"),
        ("add --shape 3 --alpha 1e400", "'--alpha': it must be a number of 64 bits, not '1e400'"),
        (f"add --shape 3 --alpha {'9' * 5000}", "'--alpha': it must be a number of 64 bits"),
        ("add --shape 3 --dtype int32 --alpha 0.5", "alpha must be an integer"),
        ("add --shape 3 --dtype int32 --backward", "backward needs a floating-point input"),
        ("dropout --shape 3 --p x", "'--p': it must be a number of 64 bits, not 'x'"),
        ("dropout --shape 3 --p 1.5", "p must be from 0 to 1, not 1.5"),
        ("gelu --shape 3 --device tpu", "--device must be cpu, cuda or cuda:N, not 'tpu'"),
        ("gelu --shape 3 --device cuda:99", "--device: there is no cuda:99 here"),
        pytest.param(
            "gelu --shape 30000x30000",
            "900,000,000 elements, about ",
            marks=pytest.mark.skipif(DEVICE == "cuda", reason="a GPU compares them"),
        ),
        ("gelu --shape 3 --limit -1", "Invalid value for '--limit'"),
        ("softmax --shape 3x3 --dim 4", "softmax: dim must be from -2 to 1"),
        ("gelu --shape 3 --arch sm_10", "arch must be one of sm_80, "),
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
        (
            "nothing --shape 3",
            "op must be one of add, add_layer_norm, add_rms_norm, addmm, baddbmm, bmm, dropout, "
            "gaussian_pdf, gelu, global_softmax, layer_norm, linear, log_softmax, matmul, mlp, "
            "rms_norm, softmax, standardize, not",
        ),
        ("", "Missing argument 'OP'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, monkeypatch):
    """Wrong input files: tests/test_inputs.py."""
    np.save(tmp_path / "a.npy", np.ones(3, np.float32))
    (tmp_path / "folder.pt").mkdir()
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("compare gelx --shape 3", "gelu"),
        ("compare gelu --shape 3 --dtype bfloat", "bfloat16"),
        ("compare gelu --shape 3 --approximate tahn", "tanh"),
        ("compare gelu --shape 3 --aproximate tanh", "--approximate"),
        ("inspect softmx", "softmax"),
        ("inspect gelu --backend cdua", "cuda"),
        ("inspect gelu --stage pxt", "ptx"),
        ("bench gelx", "gelu"),
        ("bench gelu --provider tritn", "triton"),
        ("bench gelu --option aproximate=tanh", "approximate"),
        ("comprae gelu", "compare"),
    ],
)
def test_what_was_meant_is_asked(arguments, meant):
    message = fails(*arguments.split()).lower()
    assert f"did you mean '{meant}'?" in message


def test_what_is_far_from_every_name_is_no_question():
    assert "did you mean" not in fails("compare", "frobnicate", "--shape", "3")


def test_kernels_are_left_out(monkeypatch):
    from diglot.tools import compare

    monkeypatch.setattr(compare, "kernels_of_calls", None)
    result = run("compare", "gelu", "--shape", "3", "--no-kernels")
    assert result.exit_code == 0, result.output
    assert "compiled kernel" not in result.stdout


def start(*arguments) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "diglot_cli", *map(str, arguments)],
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
    results = Path(__file__).parents[1] / "bench/results/h200/global_softmax.json"
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["diglot", "bench", "--load", str(results)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    sys.stdout.flush()
    assert end.value.code == 0 and b"H200" in written.getvalue() and b"?" in written.getvalue()


@pytest.mark.slow
def test_interrupt():
    """Ctrl-C ends a command in one line. Python ends by the signal itself, instead of with 1, if
    it came while code ran that a library had as a string."""
    process = start("compare", "gelu", "--shape", "3000x1000", "--device", "cpu", "--limit", "inf")
    assert "interpreted" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert (out, error.split()) == ("", ["Aborted!"])
    assert process.returncode in (1, -signal.SIGINT)


def test_unknown_command():
    assert "No such command 'nothing'" in fails("nothing")


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("matplotlib", "--shape 3 --plot picture.png"), ("safetensors", f"--input {EXAMPLE}")],
)
def test_missing_packages_are_named(package, arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    message = fails("compare", "gelu", *arguments.split())
    assert package in message and 'pip install "diglot[tools]"' in message


def test_missing_click_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "click", None)
    again = importlib.util.spec_from_file_location("cli_without_click", cli.__file__)
    with pytest.raises(SystemExit) as end:
        again.loader.exec_module(importlib.util.module_from_spec(again))
    expected = 'error: the command line needs click: pip install "diglot[tools]"\n'
    assert (end.value.code, *capsys.readouterr()) == (2, "", expected)


def test_info():
    result = run("info")
    assert result.exit_code == 0, result.output
    for text in ("diglot", torch.__version__, "driver", "backends on cpu"):
        assert text in result.stdout
    assert re.search(r"^  torch +can run$", result.stdout, re.MULTILINE)
    for backend in ("cuda", "triton"):
        assert f"  {backend} " in result.stdout


@pytest.mark.slow
@needs_cuda
def test_no_variable_is_needed(tmp_path):
    """Where there is no GPU, the command interprets by itself, and says so."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    command = [sys.executable, "-m", "diglot_cli", "compare", "add", "--shape", "40x30"]
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
