"""`diglot bench --plans`: our kernels under other plans, beside their usual ones."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref

import pytest
import torch
from benchmarks import instruments, times
from commands import fails, run

from diglot.backends.choosing import mode
from diglot.backends.registry import INTERPRET
from diglot.bench import harness, plan_costs, session, tables
from diglot.bench.selection import Selection, load
from diglot.tools import measure

CASE = {"op": "softmax", "direction": "forward", "dtype": "float32", "options": {}}
needs_interpreter = pytest.mark.skipif(not INTERPRET, reason="a CPU passes for a GPU")


def row(provider: str, us: float, shape=(8, 8)):
    return {**CASE, "shape": list(shape), "timer": "device", "provider": provider, "time_us": us}


@pytest.fixture
def captured_in(monkeypatch):
    """A machine whose CPU passes for a GPU; the modes in which graphs were captured."""
    modes = []

    def captured(function):
        modes.append(mode())
        function()
        return lambda: None

    us = {"cuda": 10.0, "cuda, invariant": 15.0, "triton": 10.0, "triton, invariant": 11.0}
    monkeypatch.setattr(measure, "captured", captured)
    monkeypatch.setattr(measure, "why_not", lambda: None)
    monkeypatch.setattr(session, "GPU", instruments(times(**us)))
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Toy 1")
    return modes


@needs_interpreter
def test_both_are_timed_in_one_run(captured_in, tmp_path):
    """A graph of each; the results of both are checked, and the ratio is printed."""
    command = "bench softmax --shape 3x64 --direction forward --dtype fp32 --plans invariant"
    result = run(*command.split(), "--results", tmp_path)
    assert result.exit_code == 0, result.output
    assert captured_in == ["measured", "invariant"] * 2 * (len(captured_in) // 4)
    assert "1.500" in result.stdout and "1.100" in result.stdout
    report = json.loads((tmp_path / "toy-1" / "invariant" / "softmax.json").read_text())
    providers = ["cuda", "cuda, invariant", "triton", "triton, invariant"]
    assert [r["provider"] for r in report["rows"][:4]] == providers
    assert all(r["verified"] and r["failing"] == 0 for r in report["rows"])
    assert "| softmax | forward | cuda | invariant |" in tables.COSTS([report])


def test_a_graphs_operands_live_as_long_as_its_call(captured_in):
    """The graph reads them, and the providers of a backward pass make some of their own."""

    class Operands:
        pass

    def provider(case, tensors):
        operands = Operands()
        alive.append(weakref.ref(operands))
        return lambda: operands and None

    alive = []
    benchmark = dataclasses.replace(
        load("softmax").benchmark, providers={"cuda": provider, "triton": provider}
    )
    calls = [
        make(benchmark.cases[0], ())
        for make in plan_costs.beside(benchmark, "invariant").providers.values()
    ]
    gc.collect()
    assert len(calls) == len(alive) == 4 and all(of() is not None for of in alive)


@needs_interpreter
def test_a_wrong_result_under_other_plans_has_no_time(captured_in, monkeypatch):
    """It is held to the tolerance of our kernels, not to that of peers."""
    benchmark = load("softmax").benchmark
    real = benchmark.providers["cuda"]

    def spoiled(case, tensors):
        call = real(case, tensors)
        return lambda: call() * (1.001 if mode() == "invariant" else 1)

    monkeypatch.setitem(benchmark.providers, "cuda", spoiled)
    command = "bench softmax --shape 3x64 --direction forward --dtype fp32 --plans invariant"
    result = run(*command.split(), "--provider", "cuda")
    assert result.exit_code == 0, result.output
    assert "1.500" not in result.stdout


def test_ratios_are_of_the_same_case_and_language():
    rows = [
        row("cuda", 10), row("cuda, invariant", 20), row("triton", 5), row("triton, invariant", 5),
        row("cuda", 10, (3, 77)), row("cuda, invariant", 80, (3, 77)),
        row("triton, invariant", 5, (9, 9)),
    ]  # fmt: skip
    assert plan_costs.table(rows) == [
        ["softmax", "forward", "cuda", "invariant", "2", "4.000", "8.00", "float32 3×77"],
        ["softmax", "forward", "triton", "invariant", "1", "1.000", "1.00", "float32 8×8"],
    ]


@pytest.mark.parametrize("models", [None, 1])
def test_cases_are_on_cold_caches(models):
    """No call is captured twice: each is a graph, whatever the case's own timer."""
    chosen = Selection(models=models, plans="invariant")
    ((_, cases),) = session.plan(["softmax"], chosen).benchmarks
    assert {case.timer for case in cases} == {"device"} and len(cases) > 10
    assert all(case not in cases[:place] for place, case in enumerate(cases))


def test_mistakes_are_one_line():
    assert "gelu is none of softmax" in fails("bench", "gelu", "--plans", "invariant")
    assert "cold caches" in fails("bench", "softmax", "--plans", "invariant", "--warm")
    message = fails("bench", "softmax", "--plans", "invariant", "--provider", "torch")
    assert "--plans takes a --provider of cuda and triton" in message
