"""What the benchmarks call right and what they compare with: nothing passes by a little."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from benchmarks import FP32, instruments, toy

import diglot
from diglot.bench import (
    bar_tables,
    harness,
    marks,
    norms,
    ranking,
    rows,
    running,
    stream_tables,
    summary,
    tables,
)
from diglot.bench import dropout as dropout_bench
from diglot.bench.harness import AUTOTUNED, MODES, OURS, Bar, Case
from diglot.bench.selection import OPS, Selection, cases_of, load
from diglot.bench.workloads import Provider, Workload, faster_than, measured
from diglot.bench.workloads import bar as workload_bar
from diglot.tools.measure import Timing

LARGE = [Case("forward", FP32, (64, 64))]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(harness, "DEVICE", "cpu")


def rows_of(benchmark, **how):
    """By provider, the rows of its first case."""
    how.setdefault("instruments", instruments())
    return {row["provider"]: row for row in next(running.run(benchmark, **how))}


def spoiled(result, elements=1):
    """A result that is a little wrong in its last elements."""
    made = result.detach().clone()
    made.view(-1)[-elements:] += 1e-2
    return made


@pytest.mark.parametrize("elements", [1, 41])
def test_a_hundredth_of_wrong_elements_is_a_wrong_result(elements):
    """So is one element of 4096."""
    benchmark = toy(cases=LARGE)
    benchmark.way("cuda", {"forward": lambda x: spoiled(2 * x, elements)})
    row = rows_of(benchmark)["cuda"]
    assert row["failing"] == elements / 4096 and row["worst_share"] < running.PEER_ERROR
    assert not row["verified"] and "time_us" not in row and row["reason"].startswith("wrong result")
    assert [bar["met"] for bar in row["bars"]] == [False]


@pytest.mark.parametrize(
    ("value", "at_least", "is_met"),
    [
        (1.0, True, True),
        (0.9999, True, False),
        (0.95, True, False),
        (1.0, False, True),
        (1.0001, False, False),
        (1.05, False, False),
    ],
)
@pytest.mark.parametrize("bound", [0.97, 18.0])
def test_a_bar_is_met_at_its_bound_and_no_sooner(value, at_least, is_met, bound):
    bar = Bar("it", lambda row: True, lambda *_: value * bound, lambda row: bound, at_least)
    row = rows_of(toy(bars=[bar]))["cuda"]
    judged = {"name": "it", "value": value * bound, "bound": bound, "at_least": at_least}
    assert row["bars"] == [{**judged, "met": is_met}]


def norm_case(op, direction):
    benchmark = load(op).benchmark
    case = Case(direction, FP32, (64, 128))
    tensors = benchmark.inputs(case)
    (of,) = benchmark.operands(case, tensors)
    norm = norms._Norm("layer" in op, op.startswith("add"))
    function = norm.ours if direction == "forward" else norm.our_gradient
    return benchmark, case, tensors, function(of, "torch")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
def test_every_result_of_a_norm_is_judged(op, direction):
    """The sum and the parameters' gradients as the first one; and all of them must be there."""
    benchmark, case, tensors, results = norm_case(op, direction)
    expected = 1 + op.startswith("add") if direction == "forward" else 2 + ("layer" in op)
    results = tuple(results)
    assert len(results) == expected
    assert benchmark.error(case, tensors, lambda: results).failing == 0
    for place in range(expected):
        wrong = (*results[:place], spoiled(results[place]), *results[place + 1 :])
        error = benchmark.error(case, tensors, lambda wrong=wrong: wrong)
        assert error.failing == 1 / results[place].numel(), place
        fewer = results[:place]
        with pytest.raises(ValueError, match=f"{place} of {expected} results"):
            benchmark.error(case, tensors, lambda fewer=fewer: fewer)


def test_every_gradient_that_is_clipped_is_judged():
    """And the norm that is returned."""
    clip = load("clip_grad_norm_").benchmark
    case = Case("fits L2", FP32, (2, 4096))

    def judge(wrong_in=None, factor=1.0):
        grads = harness.normal([1024, 3072], FP32)

        def call():
            total = clip.providers["formula"](case, grads)()
            if wrong_in is not None:
                grads[wrong_in][-1] += 1e-2
            return total * factor

        return clip.error(case, grads, call).failing

    assert judge() == 0
    assert [judge(0), judge(1), judge(factor=1.01)] == [1 / 4096] * 3


DROPOUT = Case("forward", FP32, (64, 128), {"p": 0.1})


@pytest.mark.parametrize("timer", ["device", "warm", "graph", "host"])
def test_dropout_is_called_as_by_a_user(timer, monkeypatch):
    """Without a seed: each call draws one, as its peers do."""
    given = []
    original = dropout_bench.diglot.dropout

    def dropout(*arguments, **keywords):
        given.append(keywords)
        return original(*arguments, **{**keywords, "backend": "torch"})

    monkeypatch.setattr(dropout_bench.diglot, "dropout", dropout)
    benchmark = dropout_bench.benchmark
    case = Case("forward", FP32, (64, 128), {"p": 0.1}, timer=timer)
    for backend in OURS:
        call = benchmark.providers[backend](case, benchmark.inputs(case))
        assert not torch.equal(call() != 0, call() != 0)
        assert given == [{"backend": backend}] * 2
        given.clear()


def test_what_dropout_draws_is_checked_element_by_element():
    """Against the mask of the seed that it draws, which is drawn again."""
    tensors = dropout_bench.benchmark.inputs(DROPOUT)
    call = dropout_bench._ours("torch", DROPOUT, tensors)
    for _ in range(3):
        assert dropout_bench._error(DROPOUT, tensors, call).failing == 0
    (x,) = tensors

    def judge(function):
        return dropout_bench._error(DROPOUT, tensors, dropout_bench.Ours(function)).failing

    assert judge(lambda: spoiled(call())) == 1 / x.numel()
    assert judge(lambda: dropout_bench.diglot.dropout(x, 0.1, seed=0, backend="torch")) > 0.1
    assert judge(lambda: F.dropout(x, 0.1)) > 0.1
    assert judge(lambda: call() * 1.001) > 0.8


def test_a_peers_dropout_is_judged_by_its_own_mask():
    tensors = dropout_bench.benchmark.inputs(DROPOUT)
    (x,) = tensors
    assert dropout_bench._error(DROPOUT, tensors, lambda: F.dropout(x, 0.1)).failing == 0
    assert dropout_bench._error(DROPOUT, tensors, lambda: F.dropout(x, 0.3)).failing == 1
    assert dropout_bench._error(DROPOUT, tensors, lambda: x.clone()).failing == 1
    wrong = dropout_bench._error(DROPOUT, tensors, lambda: F.dropout(x, 0.1) * 0.9)
    assert wrong.failing > 0.8


@pytest.fixture
def compiled(monkeypatch):
    """The modes that `torch.compile` is called with, in place of compiling."""
    modes = []

    def compile(function, *, dynamic, mode):
        assert not dynamic
        modes.append(mode)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(torch.compiler, "reset", lambda: modes.append("reset"))
    return modes


def test_modes_are_told(compiled):
    """Each case is compiled by itself, once for all modes; only a case that asks is autotuned."""
    cases = [Case("forward", FP32, (8, 4)), Case("forward", FP32, (8, 4), autotuned=True)]
    benchmark = toy(cases=cases)
    benchmark.compiled({"forward": lambda x: 2 * x})
    plain, autotuned = running.run(benchmark, instruments=instruments())
    assert compiled == ["reset", "default", "reset", "default", "max-autotune-no-cudagraphs"]
    hows = {row["provider"]: row["how"] for row in autotuned}
    assert hows["torch.compile"] == "mode default" and hows["cuda"] is None
    assert hows[AUTOTUNED] == "mode max-autotune-no-cudagraphs"
    assert AUTOTUNED not in {row["provider"] for row in plain}
    (asked,) = cases_of(benchmark, Selection(providers=[AUTOTUNED]))
    assert asked == cases[1]
    notes = marks.notes(autotuned)
    assert "torch.compile: mode default." in notes
    assert "max-autotune: mode max-autotune-no-cudagraphs." in notes


def test_sixteen_cases_are_autotuned():
    """Twelve of rows, and four steps of an mlp."""
    benchmarks = [load(op).benchmark for op in OPS]
    own = [(b, case) for b in benchmarks for case in b.cases if case.autotuned]
    assert len(own) == 16 and all(AUTOTUNED in b.providers for b, _ in own)
    for benchmark in {b.op: b for b, _ in own}.values():
        swept = cases_of(benchmark, Selection(sizes=[512], dtypes=[FP32]))
        assert not any(case.autotuned for case in swept)
        assert len(swept) == len({(case.direction, str(case.options)) for case in swept})


@pytest.mark.parametrize("peer", MODES)
@pytest.mark.parametrize("ours", OURS)
def test_the_best_peer_may_be_the_compiler(ours, peer):
    """For CUDA's kernels as for Triton's; a bar of rows that are compared goes by it."""
    of = {"torch": 12.0, "quack": 11.0, "liger": 13.0, peer: 8.0, ours: 10.0}
    made = {name: {"provider": name, "time_us": us} for name, us in of.items()}
    assert rows.over_best_peer(made[ours], made) == pytest.approx(0.8)
    del made[peer]
    assert rows.over_best_peer(made[ours], made) == pytest.approx(1.3 if ours == "triton" else 1.1)


def row(provider, us=10.0, **more):
    case = {"op": "toy", "direction": "forward", "dtype": "float32", "shape": [4], "options": {}}
    time = {"time_us": us, "p20_us": us, "p80_us": us, "tb_per_s": 1.0, "share_of_copy": 0.5}
    how = {"timer": "device", "provider": provider, "bars": [], "verified": True, "samples": 20}
    return {**case, **how, **time, **more}


def report_of(rows):
    facts = {"gpu": "a GPU", "versions": {}, "date": "2026-01-02", "commit": "fed"}
    return {**facts, "op": rows[0]["op"], "rows": rows}


def test_documents_count_missed_bars():
    def bar(name, bound, met):
        return {"name": name, "value": 1.0, "bound": bound, "met": met}

    copy, peer = bar("share of the copy ceiling", 0.95, True), bar("speed over torch", 2, False)
    report = report_of([row("cuda", bars=[copy, peer]), row("triton", bars=[copy]), row("torch")])
    made = tables.overview([report])
    assert "| toy | 2 | 1 ✗ | 1 | 0 |" in made
    assert "| toy | 1 | 1.00 (1.00) | – | 1.00 (1.00) | – |" in made
    lines = bar_tables.table(report["rows"])
    missed = ["speed over torch", "cuda", "1", "1.000", "1.000 (≥ 2) ✗", "forward, 4, float32"]
    assert missed in [cells[1:] for cells in lines]
    late = row("cuda", bars=[bar("time over torch", 0.9, False) | {"at_least": False}])
    ((_, *cells),) = bar_tables.table([late])
    assert cells[:5] == ["time over torch", "cuda", "1", "–", "1.000 (≤ 0.9) ✗"]


def test_a_strawman_is_called_one():
    assert load("standardize").benchmark.how["torch"] == marks.STRAWMAN
    ours, torch_, other = (row(name, op="standardize") for name in ("cuda", "torch", "formula"))
    of_gelu = [row(name, op="gelu") for name in ("cuda", "torch")]
    told = torch_ | {"how": marks.STRAWMAN}
    made = ranking.markdown([report_of([ours, told, other]), report_of(of_gelu)])
    assert '"strawman" (standardize by torch): PyTorch has no such op' in made
    assert " 10, strawman |" in made
    assert "torch (strawman)" in summary.cells(told)
    assert marks.words(row("torch", op="global_softmax")) == ""


def test_host_time_that_shows_is_told():
    def timer(calls, prepare):
        exposed = {"torch": 20, "cuda": 2}
        return {name: Timing(10.0, 10.0, 10.0, 20, exposed.get(name, 0)) for name in calls}

    made = rows_of(toy(), instruments=instruments(timer))
    assert (made["torch"]["exposed"], made["cuda"]["exposed"]) == (20, 2)
    assert summary.cells(made["torch"])[1] == "torch (with host time)"
    assert summary.cells(made["cuda"])[1] == "cuda"
    (note,) = marks.notes(list(made.values()))
    assert note.startswith('"with host time": the device waited for the host')


def test_a_workload_is_done_in_turns_and_judged():
    calls = []

    def way(name, is_right=True):
        return Provider(lambda: calls.append(name), None, lambda: is_right)

    x = torch.ones(8, 4)
    stream = Provider(lambda: diglot.stream_map(diglot.gelu, x, backend="torch"))
    providers = {"copies": way("copies"), "wrong": way("wrong", False), "cuda": stream}
    bars = [workload_bar("met", lambda row, rows: 1.0, 1.0)]
    bars += [workload_bar(other, faster_than(other), 0.0) for other in ("copies", "wrong")]
    rows = measured(Workload("toy", x.nbytes, 2, providers, bars), {})
    of = {row["provider"]: row for row in rows}
    # Once to be checked, twice to be timed, and once to be checked again.
    assert calls == ["copies", "wrong", "copies", "copies", "copies"]
    assert of["copies"]["samples"] == 2 and not of["wrong"]["verified"]
    assert "time_us" not in of["wrong"] and of["copies"]["bars"] == []
    assert [bar["met"] for bar in of["cuda"]["bars"]] == [True, True, False]
    assert of["cuda"]["bars"][2]["value"] is None and of["cuda"]["run"]["chunks"] >= 1


def test_an_ideal_stands_beside_its_time(capsys):
    def over_ideal(row, _):
        row["ideal_us"] = 2000.0
        return row["time_us"] / 2000.0

    x = torch.ones(8, 4)
    stream = Provider(lambda: diglot.stream_map(diglot.gelu, x, backend="torch"))
    bars = [workload_bar("time over the ideal", over_ideal, 1e9, at_least=False)]
    (row,) = measured(Workload("toy", x.nbytes, 2, {"cuda": stream}, bars), {})
    assert ", ideal 2.00 ms  time over the ideal" in capsys.readouterr().out
    assert stream_tables.cell(row).endswith("; ideal 2 ms")
