"""`diglot bench`: what it takes, prints and keeps. Its times are those of toy instruments."""

from __future__ import annotations

import csv
import json
import signal
from types import SimpleNamespace

import pytest
import torch
from benchmarks import instruments, times, toy
from commands import fails, run

from diglot.bench import evidence, harness, reports, result_files, session
from diglot.tools import measure

RESULTS = evidence.RESULTS / "h200"


@pytest.fixture
def fake_gpu(monkeypatch):
    """A machine on which `toy` is the only op, and its CPU passes for a GPU; sets the timer."""
    benchmark = toy()
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    monkeypatch.setattr(measure, "why_not", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Toy 1")
    monkeypatch.setattr(session, "OPS", ("toy",))
    monkeypatch.setattr(session, "APART", ())
    monkeypatch.setattr(session, "load", lambda name: SimpleNamespace(benchmark=benchmark))

    def set_timer(timer):
        monkeypatch.setattr(session, "GPU", instruments(timer))
        return benchmark

    set_timer(times())
    return set_timer


def interrupted_after(cases, by=signal.SIGINT):
    """A timer in which Ctrl-C is pressed, or another signal sent, after a number of cases."""
    left = iter(range(cases))

    def timer(calls, prepare):
        if next(left, None) is None:
            signal.raise_signal(by)
        return times()(calls, prepare)

    return timer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("jelu", "OP must be one of add, "),
        ("gelu --sizes 2^3..x", "--sizes must be numbers of elements"),
        ("gelu --shape 4x", "--shape must be sizes joined by x"),
        ("gelu --dtype int3", "--dtype must be one of"),
        ("gelu --option tanh", "--option must be NAME=VALUE"),
        (
            "gelu --option approximate=cubic",
            "gelu has cases of approximate tanh and none",
        ),
        ("gelu --option form=tanh", "gelu has no cases of an option 'form'"),
        ("gelu --provider cublas", "--provider must be one of cuda, triton, torch"),
        ("gelu --direction sideways", "--direction"),
        ("gelu --warm --graph", "exclude each other"),
        ("softmax --shape 5", "softmax takes shapes of 2 dimensions, unlike 5"),
        ("clip_grad_norm_ --sizes 4096", "has cases of its own alone"),
        ("patched", "give --results alone"),
        ("--load nowhere.json", "nowhere.json does not exist"),
        ("--load {here}/README.md", "holds no results: it is not JSON"),
        ("--load {results}/tests.json", "results of another kind"),
        ("--load {results}/graphs.json", "results of another kind"),
        ("--load {tmp}/other.json", "results of schema 7, and this diglot reads 1"),
        ("--load {tmp}/bare.json", "holds no results: it does not say the op"),
        ("--load {results} jelu", "OP must be one of"),
        ("--load {results} --sizes 64", "--load shows saved results"),
        ("--load {tmp}", "bare.json holds no results"),
        ("gelu --json {tmp}/other.json", "exists and is not overwritten without force"),
        ("gelu --json {tmp}/none/a.json", "there is no folder"),
        ("gelu --plot {tmp}", "has files, which are not overwritten without force"),
        ("gelu --plot {tmp}/other.json", "is a file, not a folder"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path):
    (tmp_path / "other.json").write_text('{"schema": 7, "rows": []}')
    (tmp_path / "bare.json").write_text('{"schema": 1, "rows": []}')
    places = {"here": evidence.ROOT, "results": RESULTS, "tmp": tmp_path}
    assert message in fails("bench", *arguments.format(**places).split())


@pytest.mark.parametrize("arguments", ["gelu", "--ranking", "gelu --results somewhere"])
def test_no_gpu_is_one_line(arguments, monkeypatch):
    monkeypatch.setattr(measure, "why_not", lambda: "there is no GPU today")
    assert fails("bench", *arguments.split()).endswith("nothing is measured: there is no GPU today")


def test_committed_results_are_shown():
    result = run("bench", "--load", RESULTS.parent, "global_softmax")
    assert result.exit_code == 0, result.output
    assert "global_softmax forward, 67108864, float32 [cold]" in result.stdout
    assert "torch.compile" in result.stdout and "✓ speed over" in result.stdout
    ranked = run("bench", "--load", RESULTS, "standardize", "--ranking")
    assert "manual formula" in ranked.stdout and "1. " in ranked.stdout


def test_measured_printed_and_written(fake_gpu, tmp_path):
    outputs = ("--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    result = run("bench", "toy", "--sizes", "2^4..2^6", *outputs, "--results", tmp_path / "all")
    assert result.exit_code == 0, result.output
    assert "toy 1/6: forward float32 4x4 [device]" in result.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["gpu"] == "NVIDIA Toy 1" and report["op"] == "toy"
    assert [row["shape"] for row in report["rows"][::9]] == [[4, 4], [4, 4]]
    assert len(report["rows"]) == 2 * 3 * 3 and "incomplete" not in report
    with (tmp_path / "a.csv").open() as file:
        assert [float(row["time_us"]) for row in csv.DictReader(file)] == [10.0] * 18
    assert json.loads((tmp_path / "all/toy-1/toy.json").read_text())["rows"] == report["rows"]
    again = ("bench", "toy", "--results", tmp_path / "all")
    assert "exists and is not overwritten" in fails(*again)
    assert run(*again, "--force").exit_code == 0


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(fake_gpu, tmp_path, by):
    before = signal.getsignal(signal.SIGTERM)
    fake_gpu(interrupted_after(2, by))
    outputs = ("--json", tmp_path / "a.json", "--results", tmp_path)
    result = run("bench", "toy", "--sizes", "16,32,64", *outputs)
    assert result.exit_code == 130
    assert "interrupted: 2 of 6 cases were measured" in result.stderr
    assert "toy forward, 8×4, float32" in result.stdout
    for name in ("a.json", "toy-1/toy.json"):
        report = json.loads((tmp_path / name).read_text())
        assert len(report["rows"]) == 2 * 3 and report["incomplete"] == "2 of 6 cases"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_peer_that_is_not_installed_is_told(fake_gpu):
    benchmark = fake_gpu(times())
    benchmark.peer("theirs", "no_such_package")(dict)
    message = fails("bench", "toy", "--provider", "theirs")
    assert message == "error: --provider theirs: its package, no_such_package, is not installed"


def test_what_was_measured_is_kept_where_nobody_reads_it(fake_gpu, tmp_path, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr("diglot_cli.bench.print_verdict", closed)
    result = run("bench", "toy", "--json", tmp_path / "a.json")
    assert result.exit_code == 1 and result.stdout == ""
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 6


def test_a_failure_of_ours_keeps_what_was_measured(fake_gpu, tmp_path):
    benchmark = fake_gpu(times())
    inputs = benchmark.inputs

    def broken(case):
        if case.direction == "backward":
            raise RuntimeError("an illegal memory access was encountered")
        return inputs(case)

    benchmark.inputs = broken
    result = run("bench", "toy", "--json", tmp_path / "a.json")
    assert isinstance(result.exception, RuntimeError)
    assert "ended by an error: 1 of 2 cases were measured" in result.stderr
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 3


def test_ranking(fake_gpu, tmp_path):
    benchmark = fake_gpu(times(formula=40.0, cuda=8.0))
    benchmark.way("formula", {"forward": lambda x: x + x})
    benchmark.way("liger", {"forward": lambda x: x + x})
    result = run("bench", "--ranking", "--sizes", "64", "--results", tmp_path)
    assert result.exit_code == 0, result.output
    assert "4. 40 (39.6–40.4)" in result.stdout and "1. 8 (7.92–8.08)" in result.stdout
    report = json.loads((tmp_path / "toy-1/ranking/toy.json").read_text())
    assert {row["provider"] for row in report["rows"]} == {"formula", "torch", "triton", "cuda"}
    assert all(row["launches"] == 1 for row in report["rows"])
    assert report["lines"]["toy"]["torch"]["own"] > 0


def test_compilers_have_no_workers(monkeypatch):
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor, "compile_threads", 7)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    session.compile_in_this_process()
    assert inductor.compile_threads == 7
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    session.compile_in_this_process()
    assert inductor.compile_threads == 1


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    figures = {"bytes": 0, "verified": True, "bars": []}
    rows = [
        {
            "op": "gelu",
            "provider": provider,
            "direction": "forward",
            "dtype": "float32",
            "shape": [2**n],
            "options": {"approximate": form},
            "timer": "device",
            **figures,
            "bytes": 2 ** (n + 3),
            "time_us": us,
            "p20_us": us - 0.1,
            "p80_us": us + 0.1,
            "copy_tb_per_s": 4.0,
            "tb_per_s": 3.0,
            "share_of_copy": 0.75,
        }
        for form, sizes in (("tanh", (12, 14, 16)), ("none", (12, 14)))
        for n in sizes
        for provider, us in (("cuda", 2.0), ("liger", 4.0))
    ]
    reports.save(reports.make_report("gelu", rows, gpu="a GPU"), tmp_path / "a.json")
    result = run("bench", "--load", tmp_path / "a.json", "--plot", tmp_path / "plots")
    assert result.exit_code == 0, result.output
    found = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert found == [f"gelu_forward_approximate_{form}_device.png" for form in ("none", "tanh")]
    assert "has files" in fails(
        "bench", "--load", tmp_path / "a.json", "--plot", tmp_path / "plots"
    )


def test_what_is_drawn():
    """A line joins cases of one growing size alone; a copy's speed is drawn with either."""
    pytest.importorskip("matplotlib")
    from diglot.bench import plots
    from diglot.tools.drawing import CEILING, drawn

    rows = next(iter(result_files.read_reports(RESULTS / "softmax.json")))["rows"]
    rows = [row for row in rows if row["timer"] == "device"]
    picture = plots.pictures(rows, "a GPU")["softmax_forward_device"]
    with drawn(picture) as figure:
        (axes,) = figure.axes
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert "a GPU" in figure.get_suptitle() and "logarithmic" not in axes.get_xlabel()
    assert {CEILING, "cuda", "triton", "torch"} <= set(labels)
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    sizes = {"bytes": 8, "time_us": 1.0, "p20_us": 1.0, "p80_us": 1.0}
    grown = [{**rows[0], **sizes, "shape": [n, 4], "bytes": 8 * n} for n in (1, 2, 3)]
    for shapes, is_line in (([[1, 4], [2, 4], [3, 4]], True), ([[1, 4], [2, 5], [3, 4]], False)):
        found = [{**row, "shape": shape} for row, shape in zip(grown, shapes, strict=True)]
        (picture,) = plots.pictures(found).values()
        with drawn(picture) as figure:
            (axes,) = figure.axes
        assert ("-" in {line.get_linestyle() for line in axes.lines}) == is_line
        if is_line:
            assert axes.get_xscale() == "log" and "logarithmic" in axes.get_xlabel()
    far = [grown[0], {**grown[1], "time_us": 99.0, "p20_us": 99.0, "p80_us": 99.0}]
    with drawn(*plots.pictures(far).values()) as figure:
        assert figure.axes[0].get_xscale() == "log"
        assert "logarithmic" in figure.axes[0].get_xlabel()
