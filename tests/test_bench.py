"""The harness: what it measures, what it refuses, and that nothing measured is lost."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace

import pytest
import torch
from benchmarks import FP32, double, failing_after, instruments, times, toy

from diglot.backends.registry import is_interpreted
from diglot.bench import (
    evidence,
    harness,
    ranking,
    reports,
    result_files,
    running,
    standing,
    tables,
)
from diglot.bench.harness import Case
from diglot.bench.instruments import GPU
from diglot.bench.lines import code_lines, function_lines, lines_of
from diglot.bench.selection import OPS, Selection, cases_of, load, parse_sizes
from diglot.reference.specs import Expected
from diglot.tools import measure
from diglot.tools.measure import Timing


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(harness, "DEVICE", "cpu")


def rows_of(benchmark, *, of=0, **how):
    """By provider, the rows of one of its cases."""
    how.setdefault("instruments", instruments())
    found = list(running.run(benchmark, **how))
    return {row["provider"]: row for row in found[of]}


def test_figures_of_a_call():
    rows = rows_of(toy(), launches=True, instruments=instruments(times(copy=8.0, torch=20.0)))
    row = rows["cuda"]
    assert row["verified"] and row["failing"] == 0 and "reason" not in row
    assert (row["time_us"], row["p20_us"], row["p80_us"], row["samples"]) == (10, 9.9, 10.1, 20)
    assert row["bytes"] == 2 * 8 * 4 * 4
    assert row["tb_per_s"] == pytest.approx(256 / 10 / 1e6)
    assert row["copy_tb_per_s"] == pytest.approx(256 / 8 / 1e6)
    assert (row["share_of_copy"], row["speed_over_torch"]) == (0.8, 2.0)
    assert (row["host_us"], row["peak_bytes"], row["launches"]) == (5.0, 64, 1)
    assert row["first_call_ms"] > 0
    (bar,) = row["bars"]
    assert bar["value"] == 0.8 and bar["bound"] == 0.9 and not bar["met"]
    assert rows["torch"]["bars"] == []


@pytest.mark.parametrize(("device_us", "calls"), [(5, 20), (2_500, 20), (12_500, 4), (3e5, 1)])
def test_of_long_calls_the_host_has_few_to_wait_for(device_us, calls, monkeypatch):
    taken = []

    def host(functions, rounds, calls):
        taken.append(calls)
        return {"": Timing(7.0, 6.0, 8.0, rounds)}

    monkeypatch.setattr(measure, "host", host)
    timed = instruments(times(cuda=device_us), host_us=GPU.host_us)
    assert {row["host_us"] for row in rows_of(toy(), instruments=timed).values()} == {7.0}
    assert taken[0] == calls


def test_operations_are_shared_by_a_matrix_product():
    benchmark = toy(flops=lambda case, tensors: 4 * 10**6)
    row = rows_of(benchmark, instruments=instruments(times(product=1000.0)))["cuda"]
    # 4 MFLOP in 10 us are 0.4 TFLOP/s; 1 TFLOP in 1000 us are 1000.
    assert row["tflop_per_s"] == pytest.approx(0.4)
    assert row["product_tflop_per_s"] == pytest.approx(1000)
    assert row["share_of_product"] == pytest.approx(0.0004)


def test_a_wrong_result_has_no_speed():
    benchmark = toy()
    benchmark.way("triton", {"forward": lambda x: 2 * x + 1e-3})
    benchmark.way("torch", {"forward": lambda x: 2 * x + 1e-3})  # a peer: inaccurate, not wrong
    benchmark.way("formula", {"forward": lambda x: 2 * x + 3})
    rows = rows_of(benchmark)
    for name in ("triton", "formula"):
        assert not rows[name]["verified"] and rows[name]["reason"].startswith("wrong result: 100 %")
        assert not {"time_us", "tb_per_s", "host_us"} & rows[name].keys()
        assert reports.no_time(rows[name]) == "wrong result"
    assert [bar["met"] for bar in rows["triton"]["bars"]] == [False]
    assert rows["torch"]["verified"] and rows["torch"]["time_us"] == 10
    assert rows["torch"]["failing"] == 1


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_peer_is_judged_by_the_size_of_what_is_right(size):
    """Nothing but zeros is wrong also where all of them are off by little."""
    benchmark = toy(
        expected=lambda case, tensors: Expected(
            lambda x: size * x.double(), tensors, {}, case.dtype
        )
    )
    benchmark.way("torch", {"forward": lambda x: size * 1.01 * x})
    benchmark.way("formula", {"forward": torch.zeros_like})
    benchmark.way("torch.compile", {"forward": lambda x: torch.full_like(x, math.nan)})
    rows = rows_of(benchmark)
    assert rows["torch"]["verified"]
    assert rows["torch"]["worst_share"] == pytest.approx(0.01, rel=1e-3)
    assert rows["formula"]["worst_share"] == 1 and not rows["formula"]["verified"]
    assert not rows["torch.compile"]["verified"]


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_constant_inputs_are_refused(value):
    benchmark = toy(inputs=lambda case: (torch.full(case.shape, value),))
    with pytest.raises(ValueError, match=f"toy, forward .*: input 0 is {value:g} everywhere"):
        rows_of(benchmark)


def test_interpreted_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(measure, "INTERPRET", True)
    with pytest.raises(RuntimeError, match="not timed: kernels are interpreted"):
        next(running.run(toy()))


def unsynchronised(calls, prepare):
    """The naive way: the clock is read before the device is done, which here takes 20 ms a call."""
    found = {}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        us = (time.perf_counter() - begin) * 1e6
        found[name] = Timing(2e4 if name == "copy" else us, us, us, 1)
    return found


def test_unsynchronised_timing_is_refused():
    rows = rows_of(toy(), instruments=instruments(unsynchronised))
    for row in rows.values():
        assert re.match("refused: .* times as fast as a copy of as many bytes", row["reason"])
        assert "time_us" not in row and reports.no_time(row) == "refused"
    # Warm caches may be that fast.
    warm = [Case("forward", FP32, (8, 4), timer="warm")]
    rows = rows_of(toy(cases=warm), instruments=instruments(unsynchronised))
    assert all("time_us" in row for row in rows.values())


def test_work_in_another_stream_is_refused():
    rows = rows_of(toy(), instruments=instruments(ends_in_stream=lambda call: False))
    assert all("stream that is not waited for" in row["reason"] for row in rows.values())
    assert {reports.no_time(row) for row in rows.values()} == {"not timed"}
    assert not any("time_us" in row for row in rows.values())


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_peer_that_fails_is_told_and_the_rest_goes_on(calls):
    """At its first call, while it is checked, or in the middle of being timed."""
    benchmark = toy()
    benchmark.way("liger", {"forward": failing_after(calls)})
    found = list(running.run(benchmark, instruments=instruments()))
    rows = {row["provider"]: row for row in found[0]}
    assert rows["liger"]["reason"] == "OSError: the peer is gone"
    assert not rows["liger"]["verified"] and "time_us" not in rows["liger"]
    assert all("time_us" in rows[name] for name in ("cuda", "triton", "torch"))
    assert [row["provider"] for row in found[1]] == ["cuda", "triton", "torch"]


def test_a_timer_that_fails_by_itself_is_told_in_all_rows():
    def timer(calls, prepare):
        raise RuntimeError("no such event")

    rows = rows_of(toy(), instruments=instruments(timer))
    assert [row["reason"] for row in rows.values()] == ["RuntimeError: no such event"] * 3


def test_inputs_that_do_not_fit():
    def inputs(case):
        raise torch.OutOfMemoryError("tried to allocate 9 EiB")

    rows = rows_of(toy(inputs=inputs))
    assert [r["reason"] for r in rows.values()] == ["out of memory: tried to allocate 9 EiB"] * 3


def test_a_package_that_cannot_be_imported_is_told():
    def find(module):
        raise ImportError("it needs another Triton")

    benchmark = toy()
    benchmark.peer("broken", "json")(find)
    benchmark.peer("missing", "no_such_package_is_there")(find)
    rows = rows_of(benchmark)
    assert rows["broken"]["reason"] == "ImportError: it needs another Triton"
    assert "missing" not in rows


def test_a_peer_gets_its_module():
    benchmark, found = toy(), []

    @benchmark.peer("theirs", "json.decoder", takes=lambda case: case.dtype == FP32)
    def find(module):
        found.append(module.__name__)
        return {"forward": max}

    case = Case("forward", FP32, (4, 4))
    call = benchmark.providers["theirs"](case, (1, 2))
    assert call.func is max and call.args == (1, 2) and found == ["json.decoder"]
    assert benchmark.providers["theirs"](replace(case, direction="backward"), (1, 2)) is None
    assert benchmark.providers["theirs"](replace(case, dtype=torch.float16), (1, 2)) is None


def test_bars_are_of_own_cases_with_all_providers():
    own = toy()
    assert rows_of(own)["cuda"]["bars"]
    assert not rows_of(own, cases=[Case("forward", FP32, (4, 4))])["cuda"]["bars"]
    assert not rows_of(own, only=["cuda"])["cuda"]["bars"]
    assert rows_of(own, only=["cuda"]).keys() == {"cuda"}


@pytest.mark.parametrize("op", sorted({*OPS} - {"clip_grad_norm_", "grid_barrier_check"}))
def test_every_formula_is_right(op):
    """So are PyTorch's ops, where the CPU has them, and CUDA's kernels, if they are interpreted."""
    benchmark = load(op).benchmark
    cases = cases_of(benchmark, Selection(sizes=[8192], dtypes=[FP32]))
    chosen = ["formula", "torch", *["cuda"] * is_interpreted("cuda", torch.device("cpu"))]
    assert cases
    for of_case in running.run(benchmark, cases, only=chosen, instruments=instruments()):
        rows = {row["provider"]: row for row in of_case}
        assert rows["formula"]["verified"] and rows["formula"]["worst_absolute"] < 1e-3
        for row in rows.values():
            # Of scaled_mm, PyTorch 2.11 has one scale on a CPU, and asks to report a bug of others.
            lacks = ("NotImplemented", "RuntimeError: (scale_a.numel() == 1")
            assert row["verified"] or row["reason"].startswith(lacks)


def test_selected_cases():
    benchmark = toy()
    assert cases_of(benchmark, Selection()) == benchmark.cases
    assert cases_of(benchmark, Selection(direction="backward")) == benchmark.cases[1:]
    warm = cases_of(benchmark, Selection(timer="warm"))
    assert [case.timer for case in warm] == ["warm", "warm"]
    swept = cases_of(benchmark, Selection(sizes=[64, 128], direction="forward"))
    assert [case.shape for case in swept] == [(16, 4), (32, 4)]
    both = cases_of(benchmark, Selection(shapes=[(2, 2)], dtypes=[FP32, torch.float16]))
    assert [case.dtype for case in both] == [FP32, torch.float16] * 2
    with pytest.raises(ValueError, match="toy takes shapes of 2 dimensions, unlike 7"):
        cases_of(benchmark, Selection(shapes=[(7,)]))
    with pytest.raises(ValueError, match="no sizes"):
        cases_of(toy(shape=None), Selection(sizes=[64]))
    assert cases_of(benchmark, Selection(ranking=True)) == []
    benchmark.way("formula", {"forward": double})
    ranked = cases_of(benchmark, Selection(ranking=True))
    assert len(ranked) == 2 * 3 * 2 and {case.timer for case in ranked} == {"device"}
    options = cases_of(load("gelu").benchmark, Selection(options={"approximate": "tanh"}))
    assert options and all(case.options == {"approximate": "tanh"} for case in options)


def test_sizes():
    assert parse_sizes("2^3..2^6") == [8, 16, 32, 64]
    assert parse_sizes("1000, 2^4,10..50") == [1000, 16, 10, 20, 40]
    for text in ("", "2^", "3^4", "8..4", "1..2..3", "0", "-1", "2^41", "2^999"):
        with pytest.raises(ValueError, match="--sizes must be"):
            parse_sizes(text)


def row(us, provider="cuda", spread=0.001, **more):
    case = {"op": "toy", "direction": "forward", "dtype": "float32", "shape": [4], "options": {}}
    band = {"p20_us": us * (1 - spread), "p80_us": us * (1 + spread)}
    how = {"timer": "device", "provider": provider, "bars": [], "verified": True}
    return {**case, **how, "time_us": us, **band, **more}


@pytest.mark.parametrize(
    ("other", "is_noise"),
    [
        (row(101.9), True),  # 2 % is noise
        (row(103), False),
        (row(103, spread=0.04), True),  # bands overlap
        (row(97), False),
    ],
)
def test_noise(other, is_noise):
    assert ranking.is_noise(other, row(100)) == ranking.is_noise(row(100), other) == is_noise


def test_a_case_of_its_own_that_the_ranking_has_too():
    """In a table the op's own count."""
    own, ranked = row(100), row(120, launches=1)
    for both in ([own, ranked], [ranked, own]):
        assert reports.by_case(both) == [{"cuda": own}]


def test_ranks():
    rows = [row(10, "cuda"), row(10.1, "triton"), row(12, "torch"), row(13, "torch.compile")]
    rows += [row(12.5, "formula", spread=0.06), row(1, "liger")]
    places = ranking.ranks({of["provider"]: of for of in rows})
    # The formula's band reaches PyTorch's; a peer has no place.
    assert places == {"cuda": 1, "triton": 1, "torch": 3, "formula": 3, "torch.compile": 5}


def test_ranking_tells_what_is_saved():
    rows = [row(30, "formula", launches=8, host_us=40.0), row(10, launches=1, host_us=6.0)]
    rows.append(row(11, "triton", launches=1, host_us=9.5))
    (cells,) = ranking.table(rows)
    assert cells[1].startswith("3. 30 (") and cells[2] == "–"
    assert cells[-2:] == ["8 → 1", "40 → 9.5 / 6"]


def test_lines_of_code():
    text = [
        '"""Text."""',
        "# no",
        "",
        "def f(x):",
        '    """More."""',
        "    y = [",
        "        x,  # one",
    ]
    assert code_lines("\n".join([*text, "    ]", '    return "#"', ""]), "python") == 5
    assert code_lines('/* a\n b */ int x; // c\n\n// d\nauto s = "// e"; /*\n*/\n', "cpp") == 2
    assert function_lines([torch.softmax, lambda x: x]) == 2
    lines = lines_of(load("gelu").benchmark)
    assert lines["torch"]["own"] == 1
    assert lines["torch.compile"]["own"] == lines["formula"]["own"] + 1
    for name in ("triton", "cuda"):
        assert lines["formula"]["own"] < lines[name]["own"]


def test_lines_are_those_of_the_op():
    lines = {op: lines_of(load(op).benchmark) for op in OPS}
    for op, of in lines.items():
        # Neither language's file is a mere door to another's kernel.
        assert 1 / 3 < of["triton"]["own"] / of["cuda"]["own"] < 3, op
        if "formula" not in of:
            continue
        assert of["formula"]["calls"] == 0 and of.get("torch", {"own": 1})["own"] <= 2, op
        compiled = of.get("torch.compile")
        if compiled and not compiled["calls"]:
            assert compiled["own"] == of["formula"]["own"] + 1, op
    norms = [lines[op]["formula"]["own"] for op in ("rms_norm", "layer_norm", "add_layer_norm")]
    assert norms == sorted(set(norms))
    assert "†" in ranking.lines_cells("softmax", lines["softmax"])[3]
    assert "†" not in "".join(ranking.lines_cells("gelu", lines["gelu"]))


def test_results_come_back(tmp_path):
    rows = [row(10, worst_ulp=math.inf, bytes=4), row(11, "triton", bytes=4)]
    reports.save(reports.make_report("toy", rows, gpu="a GPU"), tmp_path / "h200/toy.json")
    (report,) = result_files.read_reports(tmp_path)
    assert report["gpu"] == "a GPU" and report["rows"][1] == rows[1]
    assert report["rows"][0]["worst_ulp"] == "inf"  # JSON has none
    json.loads((tmp_path / "h200/toy.json").read_text(), parse_constant=pytest.fail)
    reports.write_csv(rows, tmp_path / "rows.csv")
    header, first, _ = (tmp_path / "rows.csv").read_text().splitlines()
    assert header.startswith("op,provider,") and first.startswith("toy,cuda,forward,float32,4,")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p20_us": None}, "row 1: p20_us is no positive number"),
        ({"time_us": "fast"}, "row 1: time_us is no positive number"),
        ({"time_us": 0}, "row 1: time_us is no positive number"),
        ({"bars": None}, "row 1: bars is no list"),
        ({"bars": [3]}, "row 1: bars is no list of bars"),
        ({"options": None}, "row 1: options is no dict"),
        ({"shape": "4x4"}, "row 1: shape is no list"),
        ({"provider": 3}, "row 1: provider is no str"),
        ({"shape": [-4]}, "row 1: shape is no list of sizes"),
        ({"shape": []}, "row 1: shape is no list of sizes"),
        ({"time_us": math.inf}, "row 1: time_us is no positive number"),
        ({"verified": False}, "row 1: it has a time, and was not verified"),
        ({"launches": 1.5}, "row 1: launches is no count"),
        ({"host_us": "none"}, "row 1: host_us is no positive number"),
        ({"share_of_copy": None}, "row 1: share_of_copy is no positive number"),
        ({"tb_per_s": "x"}, "row 1: tb_per_s is no positive number"),
        ({"tflop_per_s": "x"}, "row 1: tflop_per_s is no positive number"),
        ({"bytes": "x"}, "row 1: bytes is no number from 0 on"),
        ({"peak_bytes": "x"}, "row 1: peak_bytes is no number from 0 on"),
        ({"first_call_ms": [1]}, "row 1: first_call_ms is no number from 0 on"),
        ({"worst_ulp": -1}, "row 1: worst_ulp is no error"),
        ({"failing": "many"}, "row 1: failing is no error"),
        ({"time_us": 1e-3}, "row 1: the median is not between the percentiles"),
        ({"bars": [{"name": "a", "bound": "x", "met": True}]}, "row 1: bars is no list of bars"),
        ({"bars": [{"name": "a", "bound": 1, "met": 1}]}, "row 1: bars is no list of bars"),
    ],
)
def test_damaged_results_are_told(changes, message, tmp_path):
    good = row(10)
    path = tmp_path / "toy.json"
    reports.save(reports.make_report("toy", [good, good | changes], gpu="a GPU"), path)
    with pytest.raises(ValueError, match=message):
        result_files.read_reports(path)


def test_a_bar_that_is_more_than_reached_is_no_damage(tmp_path):
    """Of microseconds beyond another's there may be less than none."""
    bar = {"name": "host time over torch's", "value": -2.5, "bound": 1.0, "met": True}
    fast = row(10, bars=[bar])
    reports.save(reports.make_report("toy", [fast], gpu="a GPU"), tmp_path / "toy.json")
    assert result_files.read_reports(tmp_path)[0]["rows"] == [fast]


def test_times_that_are_alike_are_no_damage(tmp_path):
    alike = row(62.9352904800649) | dict.fromkeys(("p20_us", "p80_us"), 62.93529048006489)
    reports.save(reports.make_report("toy", [alike], gpu="a GPU"), tmp_path / "toy.json")
    assert result_files.read_reports(tmp_path)[0]["rows"] == [alike]


def test_a_time_without_its_band_is_told(tmp_path):
    bare = row(10)
    del bare["p80_us"]
    reports.save(reports.make_report("toy", [bare], gpu="a GPU"), tmp_path / "toy.json")
    with pytest.raises(ValueError, match="row 0: it has not all of time_us"):
        result_files.read_reports(tmp_path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"commit": None}, "is damaged: commit is no str"),
        ({"versions": []}, "is damaged: versions is no dict"),
        ({"incomplete": True}, "is damaged: incomplete is no str"),
        ({"lines": {"toy": 3}}, "is damaged: lines of toy are no counts"),
        ({"lines": {"toy": {"cuda": {"calls": 1}}}}, "is damaged: lines of toy are no counts"),
        ({"lines": {"toy": {"cuda": 3}}}, "is damaged: lines of toy are no counts"),
    ],
)
def test_damaged_facts_are_told(facts, message, tmp_path):
    path = tmp_path / "toy.json"
    reports.save(reports.make_report("toy", [row(10)], **{"gpu": "a GPU", **facts}), path)
    with pytest.raises(ValueError, match=message):
        result_files.read_reports(path)


def test_one_row_without_a_key_is_told(tmp_path):
    bare = row(10)
    del bare["timer"]
    reports.save(reports.make_report("toy", [row(10), bare], gpu="a GPU"), tmp_path / "toy.json")
    with pytest.raises(ValueError, match="row 1: timer is no str"):
        result_files.read_reports(tmp_path)


def test_committed_results_are_read():
    folder = evidence.RESULTS / "h200"
    read = {report["op"] for report in result_files.read_reports(folder)}
    assert {"gelu", "softmax", "clip_grad_norm_"} <= read and "graphs" not in read


def test_what_was_measured_on_tells_all():
    facts = {"gpu": "a GPU", "versions": {"driver": "580", "torch": "2.11", "triton": "3.6"}}
    first = {**facts, "date": "2026-01-03", "commit": "0123456789abcdef"}
    other = {**facts, "date": "2026-01-02", "commit": "fed"}
    told = "a GPU, driver 580, torch 2.11, Triton 3.6, 2026-01-02 to 2026-01-03, commit "
    assert reports.measured_on([first, other]) == f"{told}0123456789ab, fed"
    assert reports.measured_on([other]).endswith("Triton 3.6, 2026-01-02, commit fed")


def test_documents_tell_what_is_incomplete():
    facts = {"gpu": "a GPU", "versions": {}, "date": "2026-01-02", "commit": "fed"}
    whole = {**facts, "op": "toy", "rows": []}
    part = {**whole, "op": "game", "incomplete": "2 of 6 cases"}
    for made in (standing.markdown, ranking.markdown):
        assert "commit fed. Incomplete: game (2 of 6 cases)." in made([whole, part])
        assert "incomplete" not in made([whole])


def test_documents_hold_what_the_results_say():
    stale = [path.name for path, made in tables.render().items() if made != path.read_text()]
    assert stale == []


def test_sources_without_a_tree(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "__file__", str(tmp_path / "diglot/bench/evidence.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIGLOT_COMMIT", raising=False)
    assert evidence.find_tree() is None
    assert evidence.source_hash(None) == evidence.commit(None) == "unknown"
