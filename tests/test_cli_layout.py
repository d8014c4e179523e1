"""What commands print at 80, 120 and 200 columns: nothing cut, nothing empty, the verdict first."""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from backends import needs_interpreters
from commands import run

import diglot
from diglot.reference.specs import find_spec
from diglot.tools import interpreted
from diglot.tools.inspect import InspectedKernel, Inspection
from diglot.tools.numbers import duration
from diglot.tools.occupancy import occupancy
from diglot.tools.resources import KernelResources, PlanOfRun
from diglot.tools.table import Column, Table
from diglot_cli import common
from diglot_cli import inspect as inspecting

RESULTS = Path(__file__).parents[1] / "bench/results/h200"
widths = pytest.mark.parametrize("width", [80, 120, 200])


@pytest.fixture
def columns(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    return width


def lines_of(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@widths
@needs_interpreters
def test_compare(columns):
    lines = lines_of("compare", "layer_norm", "--shape", "8x64", "--backward", "--no-kernels")
    verdict = r"cuda: within tolerance \(worst error 0\.\d+ of the allowed, in grad_\w+\)"
    assert re.fullmatch(verdict, lines[0])
    assert max(map(len, lines)) <= columns
    # Whole, in one line, and beside what it is of.
    assert sum(bool(re.search(r"grad_weight +[\d.]+ +\[\d+\]", line)) for line in lines) == 3
    text = "\n".join(lines)
    assert "GB/s" not in text and "spills" not in text  # nothing is known of these here


@widths
def test_bench(columns):
    lines = lines_of("bench", "--load", RESULTS / "gaussian_pdf.json")
    assert lines[0] == "8 cases on NVIDIA H200, 16 results of ours are right, 6 of 6 bars are met"
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "22,567–22,574" in text and "compute 90 %" in text and "overhead 100 %" in text


@widths
def test_ranking(columns):
    lines = lines_of("bench", "--load", RESULTS / "ranking", "gelu", "--ranking")
    assert max(map(len, lines)) <= columns
    assert sum("5. 21.02 (20.58–21.66)" in line for line in lines) == 1


@widths
def test_specs(columns):
    tables, _, _ = "\n".join(lines_of("specs")).partition("\n 1 ")  # sources are not wrapped
    assert max(map(len, tables.splitlines())) <= columns
    for whole in ("A100 80 GB SXM", "126.5*", "228/227", "1, 2, 3, 4, 5, 6"):
        assert whole in tables


@widths
@pytest.mark.parametrize("spilled", [0, 16])
def test_inspect(columns, spilled, capsys):
    name = "scale<" + ", ".join(f"(Shape){n}" for n in range(20)) + ">"
    counted = tuple((f"LDG.{bits}", bits) for bits in range(100, 140))
    takes = KernelResources(
        name, "sm_90", 40, spilled, 0, 128, 16, 8, threads=256, instructions=counted
    )
    kernel = InspectedKernel("cuda", ("forward",), takes, occupancy("sm_90", 256, 40, 128), {})
    tunables = tuple((f"rows.cuda.number_{n}", n) for n in range(12))
    plan = PlanOfRun("scale_forward", "a variant", (4096, 4096, "call"), tunables)
    found = Inspection("gelu", "sm_90", (kernel, kernel), {}, {"cuda": (plan,)})
    inspecting._print_resources(common.make_console(), found)
    lines = capsys.readouterr().out.splitlines()
    told = "registers are spilled by 1, 2" if spilled else "no register is spilled"
    assert lines[0] == f"gelu: kernels for sm_90, 2 of cuda; {told}"
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "128+0" in text and "registers" in text
    # Whole, each pair in one line.
    assert all(f"{n} LDG.{n}" in text for n in range(100, 140))
    assert all(f"rows.cuda.number_{n} {n}" in text for n in range(12))
    assert [line for line in lines if line.startswith("1  cuda scale<(Shape)0, ")]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, ["case of ns", "one case cuda 12", "one case 3"]),
        (16, ["one case", "of ns", "cuda 12", "3"]),
        (9, ["one case", "• of cuda", "ns 12", "• ns 3"]),
    ],
)
def test_forms_of_a_table(width, expected, monkeypatch, capsys):
    """A table; tables below what their first cells say; rows of pairs. An empty column goes."""
    monkeypatch.setenv("COLUMNS", str(width))
    head = ["case", "of", Column("gone"), Column("ns")]
    common.print_table(head, [["one case", "cuda", "–", "12"], ["one case", "", "", "3"]])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.strip(" ─")] == expected


def test_no_rows_are_no_table(capsys):
    common.print_table(["case", Column("ns")], [])
    assert capsys.readouterr().out == ""


def test_a_table_says_that_it_needs_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    with pytest.raises(ImportError, match=r"need rich, which is not installed: pip install "):
        str(Table(["case"], [["one"]]))


def test_a_program_that_reads_has_nothing_wrapped(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert common.make_console().width == common.PIPED_WIDTH


def test_progress_has_a_percentage():
    from rich.console import Console

    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, highlight=False)
    with common.show_progress(console, "2 elements") as tell:
        tell("interpreting triton")
        tell.done(1, 4)
        tell.bars.refresh()
    text = shown.getvalue()
    assert "2 elements" in text and "interpreting triton" in text and "25%" in text


@needs_interpreters
def test_programs_are_followed():
    told = []
    with interpreted.follow_programs(lambda *of: told.append(of)):
        diglot.gelu(torch.randn(1000), backend="triton")
    (programs,) = {total for _, total in told}
    assert [number for number, _ in told] == list(range(programs)) and programs > 1
    diglot.gelu(torch.randn(1000), backend="triton")
    assert len(told) == programs


def test_an_estimate_grows_with_the_elements(monkeypatch):
    tried, clock = [], iter(range(100))
    monkeypatch.setattr(interpreted, "compare", lambda op, *data, **_: tried.append(data))
    monkeypatch.setattr(interpreted.time, "perf_counter", lambda: float(next(clock)))
    for shape, size in (((512, 8, 4096), (1, 1, 4096)), ((1 << 14, 64), (64, 64))):
        seconds = interpreted.estimate_seconds(
            find_spec("gelu"), shape, None, torch.device("cpu"), False, {}
        )
        assert tuple(tried[-1][0].shape) == size
        assert seconds == torch.Size(shape).numel() / torch.Size(size).numel()
    assert [duration(s) for s in (40, 600, 1e4, 2e-6)] == ["40 s", "10 min", "3 h", "2 µs"]


@needs_interpreters
def test_masked_lanes_are_silent():
    """Triton's interpreter computes them too: log(0) and 0/0, and NumPy warns of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diglot.log_softmax(torch.randn(7, 33), -1, backend="triton")
