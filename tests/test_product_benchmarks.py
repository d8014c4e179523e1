"""The benchmarks of products: what they judge, by made-up times, and that all of their ways are
right.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from benchmarks import FP32, instruments, times, toy

from diglot.backends.registry import is_interpreted
from diglot.bench import bar_tables, harness, linear, mlp, moe, running, summary, tables
from diglot.bench.harness import OURS, Bar, Case, OtherCall, share_of_copy
from diglot.bench.models import ratios
from diglot.bench.reports import make_report
from diglot.bench.selection import load
from diglot.tools.report.roofline import rooflines

LIBRARIES = "speed over the faster of cuBLAS and QuACK"
LAYERS = f"{LIBRARIES}, layers of published models"
# The bars: op, name, cases, and the bounds of CUDA and Triton, of a mean too.
ASKED = [
    ("matmul", "speed over cuBLAS, large", 20, (0.97, 0.95), (1.03, 1.00)),
    ("matmul", "speed of batch_invariant over the default, 512 rows or more", 4, (0.85, 0.85)),
    ("matmul", "speed over cuBLAS, few rows", 1, (1.20, 1.10)),
    ("matmul", "speed over cuBLAS, few rows", 1, (1.10, 1.00)),
    ("matmul", "speed over cuBLAS, few rows", 1, (1.05, 0.97)),
    ("matmul", "speed over cuBLAS, K or a leading dimension odd", 6, (0.85, 0.80)),
    ("matmul", "speed over own aligned operands, K or a leading dimension odd", 6, (0.70, 0.65)),
    ("matmul", "speed over own K-major operands, TF32", 6, (0.85, 0.80)),
    ("matmul", "speed over cuBLAS, TF32", 2, (0.97, 0.92)),
    ("matmul", "speed over cuBLAS, float32 (IEEE)", 2, (0.85, 0.75)),
    ("matmul", "speed over cuBLAS, float64", 1, (0.5, 0.4)),
    ("matmul", f"{LIBRARIES}, large", 20, (0.97, 0.95), (1.00, 1.00)),
    ("linear", LAYERS, 60, (0.90, 0.85), (1.00, 0.97)),
    ("linear", "speed over own plain product, with bias and GELU", 3, (0.97, 0.95)),
    ("linear", "speed over PyTorch's two kernels, with bias and GELU", 1, (1.25, 1.20)),
    ("linear", "speed over PyTorch's two kernels, with bias and GELU", 1, (1.12, 1.08)),
    ("linear", "speed over PyTorch's two kernels, with bias and GELU", 1, (1.04, 1.02)),
    ("mlp", "speed over PyTorch, forward and backward", 1, (1.15, 1.10)),
    ("mlp", "speed over PyTorch, forward and backward", 1, (1.10, 1.06)),
    ("mlp", "speed over PyTorch, forward and backward", 1, (1.04, 1.01)),
    ("mlp", "speed over PyTorch, forward and backward", 1, (1.00, 0.97)),
    ("mlp", "speed over torch.compile (max-autotune), forward and backward", 4, (1.00, 0.97)),
    ("scaled_mm", "speed over cuBLASLt, one scale", 3, (0.97, 0.92)),
    ("scaled_mm", "speed of scales of rows over one scale", 3, (0.97, 0.95)),
    ("scaled_mm", "speed of exact over fast sums, one scale", 3, (0.85, 0.80)),
    ("scaled_mm", "speed over own K-major operands, one scale", 6, (0.85, 0.80)),
    ("grouped_mm", "speed over PyTorch's", 14, (1.05, 1.00)),
    *((op, "host µs over torch", 1, (6, 20)) for op in tables.PRODUCT_OPS if op != "moe"),
]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(harness, "DEVICE", "cpu")


def judged(op, us=lambda name, case: 10.0):
    """The rows of an op's own cases with made-up times, judged; None leaves a provider out."""
    benchmark, made = load(op).benchmark, []
    for case in benchmark.cases:
        rows = {}
        for name in benchmark.providers:
            time = us(name, case)
            row = {"op": op, "provider": name, **running.row_of(case), "bars": []}
            if time is not None:
                row |= {"time_us": time, "speed_over_torch": us("torch", case) / time}
            rows[name] = row
        running.judge(benchmark.bars, rows)
        made += rows.values()
    return made


def test_what_is_asked_is_judged_and_no_more():
    found = []
    for op in tables.PRODUCT_OPS:
        lines = bar_tables.lines(judged(op))
        keys = itertools.groupby(lines, key=lambda line: (line.bar, line.language))
        of = {key: list(group) for key, group in keys}
        for bar in dict.fromkeys(bar for bar, _ in of):
            for cuda, triton in zip(of[bar, "cuda"], of[bar, "triton"], strict=True):
                assert cuda.cases == triton.cases
                means = (cuda.mean.bound, triton.mean.bound)
                bounds = (cuda.worst.bound, triton.worst.bound)
                more = [means] if means != (None, None) else []
                found.append((op, bar, cuda.cases, bounds, *more))
    assert sorted(map(repr, found)) == sorted(map(repr, ASKED))


@pytest.mark.parametrize(
    ("op", "bar", "way"),
    [
        ("matmul", "speed over own aligned operands, K or a leading dimension odd", "aligned"),
        ("matmul", "speed over own K-major operands, TF32", "K-major"),
        ("linear", "speed over own plain product, with bias and GELU", "plain product"),
        ("scaled_mm", "speed of scales of rows over one scale", "one scale"),
        ("scaled_mm", "speed of exact over fast sums, one scale", "fast sums"),
        ("scaled_mm", "speed over own K-major operands, one scale", "K-major"),
        ("matmul", "speed of batch_invariant over the default, 512 rows or more",
         "batch invariant"),
    ],
)  # fmt: skip
def test_ours_are_compared_with_the_way_of_their_language(op, bar, way):
    us = {"cuda": 10.0, f"cuda, {way}": 8.0, "triton": 10.0, f"triton, {way}": 9.0}
    rows = judged(op, lambda name, case: us.get(name, 100.0))
    values = {line.language: line.worst.value for line in bar_tables.lines(rows) if line.bar == bar}
    inverse = way == "batch invariant"
    right = {"cuda": 10 / 8 if inverse else 8 / 10, "triton": 10 / 9 if inverse else 9 / 10}
    assert values == pytest.approx(right)


def test_a_mean_is_missed_though_every_case_is_met():
    """And in the verdict; and by one case that has no time."""

    def line(us):
        rows = judged("linear", us)
        (found,) = (
            of for of in bar_tables.lines(rows) if (of.bar, of.language) == (LAYERS, "cuda")
        )
        return found, rows

    slow, rows = line(lambda name, case: 10.5 if name == "cuda" else 10.0)
    assert slow.mean.value == pytest.approx(1 / 1.05) and slow.mean.is_missed
    assert not slow.worst.is_missed and slow.is_missed
    assert slow.cells[4:6] == ["0.952 (≥ 1) ✗", "0.952 (≥ 0.9)"]
    fast, more = line(lambda name, case: 9.0 if name == "cuda" else 10.0)
    assert not fast.is_missed and fast.cells[4] == "1.111 (≥ 1)"
    met = [int(summary.verdict(of, "a GPU")[0].split(", ")[-1].split()[0]) for of in (rows, more)]
    assert met[1] > met[0]
    first = load("linear").benchmark.cases[0]
    lacking, _ = line(lambda name, case: None if (name, case) == ("cuda", first) else 10.0)
    assert (
        lacking.mean.is_missed
        and lacking.worst.is_missed
        and lacking.row["shape"] == list(first.shape)
    )
    assert lacking.cells[5] == "no time (≥ 0.9) ✗"


def test_the_page_has_bars_and_layers():
    rows = [row | {"how": None} for op in ("matmul", "linear") for row in judged(op)]
    made = tables.PRODUCTS([make_report("matmul", rows, gpu="NVIDIA Toy 1")])
    assert made.startswith("### NVIDIA Toy 1\n")
    assert "| matmul | speed over cuBLAS, large | cuda | 20 | 1.000 (≥ 1.03) ✗ | 1.000 (≥" in made
    layers = [line for line in made.splitlines() if line.startswith("| linear | forward |")]
    assert len(layers) == 20 and all("| torch | 1.00 |" in line for line in layers)


def test_layers_are_those_of_published_models():
    drawn = linear.layers()
    assert len(set(drawn)) == 60 and drawn == linear.layers() != linear.layers(seed=27)
    assert min(m for m, _, _ in drawn) < 8 and max(m for m, _, _ in drawn) > 8192
    with_bias = [case for case in load("linear").benchmark.cases if case.timer == "device"]
    assert sum(case.options == {"with": "bias"} for case in with_bias) == 15


def small(op, case):
    """A case with small sizes, odd where they were."""
    if op == "grouped_mm":
        return replace(case, shape=(2, 8, 8, 16))
    return replace(case, shape=tuple(16 - n % 2 for n in case.shape))


@pytest.mark.skipif(torch.cuda.is_available(), reason="diglot bench verifies them on a GPU")
@pytest.mark.parametrize("op", ["matmul", "linear", "scaled_mm", "grouped_mm"])
def test_every_way_is_right(op):
    """Of each kind of case a small one: PyTorch's ways, and CUDA's, if they are interpreted."""
    benchmark, kinds = load(op).benchmark, {}
    ours = ["cuda"] * is_interpreted("cuda", torch.device("cpu"))
    only = [name for name in benchmark.providers if name.partition(",")[0] in ("torch", *ours)]
    for case in benchmark.cases:
        kinds.setdefault(repr((small(op, case), case.options)), small(op, case))
    assert len(kinds) > 2
    for rows in running.run(benchmark, list(kinds.values()), only=only, instruments=instruments()):
        assert rows or not ours
        for row in rows:
            assert row["verified"], row


def test_a_step_is_judged_by_all_gradients():
    benchmark = load("mlp").benchmark
    case = Case(mlp.STEP, FP32, (8, 32, 8))
    tensors = benchmark.inputs(case)
    results = benchmark.providers["torch"](case, tensors)()
    assert [t.shape for t in results] == [t.shape for t in tensors[1:]]
    for place in range(len(results)):
        wrong = [t * (1 + 1e-2 * (i == place)) for i, t in enumerate(results)]
        spoiled = replace(benchmark, providers={}, code={}, how={})
        spoiled.way("cuda", {mlp.STEP: lambda *_, wrong=wrong: tuple(wrong)})
        ((row,),) = running.run(spoiled, [case], instruments=instruments())
        assert not row["verified"] and row["reason"].startswith("wrong result")
    (rows,) = running.run(benchmark, [case], only=["torch", "formula"], instruments=instruments())
    assert [row["verified"] for row in rows] == [True, True]


def test_experts_that_no_token_chose_are_not_read():
    case = Case("forward", torch.bfloat16, (8, 2, 1, 4, 16))
    one = moe.benchmark.inputs(case)
    all_of_it = 2 * (8 * 16 * 4 * 3 + 2 * 16) + 2 * 12
    assert moe.benchmark.bytes_moved(replace(case, shape=(2, 2, 1, 4, 16)), one) < all_of_it
    weights = 2 * 2 * (2 * 4 * 16 + 16 * 4)  # of two experts, in bytes
    assert moe.benchmark.bytes_moved(case, one) == weights + 2 * 2 * 16 + 2 * 4 + 2 * 8


def test_what_is_right_is_computed_once_for_a_case():
    counts = []
    benchmark = toy()
    expected = benchmark.expected
    benchmark.expected = lambda case, tensors: counts.append(case) or expected(case, tensors)
    list(running.run(benchmark, instruments=instruments()))
    assert counts == benchmark.cases


def test_another_call_is_judged_by_its_own_results():
    benchmark = toy()
    for name, factor in (("cuda, half", 1.0), ("cuda, wrong", 1.01)):
        benchmark.provider(name)(
            lambda case, tensors, factor=factor: OtherCall(
                lambda: factor * tensors[0],
                lambda: replace(toy().expected(case, tensors), function=lambda x: x.double()),
            )
        )
    rows = {row["provider"]: row for row in next(running.run(benchmark, instruments=instruments()))}
    assert rows["cuda, half"]["verified"] and not rows["cuda, wrong"]["verified"]
    # They are no peers.
    (cuda, triton) = ratios([row for row in rows.values() if row["verified"]])
    assert {cuda.peer["provider"], triton.peer["provider"]} == {"torch"}


def test_what_is_on_demand_is_measured_where_it_is_asked_for():
    benchmark = toy(on_demand=("torch",))
    with_all, asked = (
        [
            row["provider"]
            for row in next(running.run(benchmark, only=of, instruments=instruments()))
        ]
        for of in ((), ("torch",))
    )
    assert with_all == [*OURS] and asked == ["torch"]


def test_the_setting_holds_while_a_case_is_measured():
    benchmark = load("matmul").benchmark
    seen = []
    (case, *_) = (case for case in benchmark.cases if case.options.get("precision") == "TF32")

    def look(a, b):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return a @ b

    probing = replace(benchmark, providers={}, code={}, how={})
    probing.way("torch", {"forward": look})
    before = torch.backends.cuda.matmul.fp32_precision
    list(running.run(probing, [replace(case, shape=(8, 8, 8))], instruments=instruments()))
    assert set(seen) == {"tf32"} and torch.backends.cuda.matmul.fp32_precision == before


def test_a_bar_without_a_mean_says_none():
    bar = Bar("it", lambda row: True, share_of_copy, lambda row: 0.9, mean=lambda row: 1.5)
    (with_mean,) = {
        row["bars"][0]["mean"]
        for row in next(running.run(toy(bars=[bar]), instruments=instruments(times())))
        if row["bars"]
    }
    assert with_mean == 1.5
    rows = next(running.run(toy(), instruments=instruments()))
    assert all("mean" not in bar for row in rows for bar in row["bars"])
    assert math.isfinite(bar_tables.lines(rows)[0].mean.value)


def test_products_are_on_the_roofline():
    """By the operations that their benchmarks count."""
    row = {"op": "bmm", "provider": "cuda", "direction": "forward", "dtype": "bfloat16", "bars": []}
    row |= {"shape": [8, 8, 8], "options": {"batch": 4}, "timer": "device", "time_us": 1.0}
    ((picture,), tables_) = rooflines([row | {"flops": 4096, "bytes": 1024}], "a GPU", None)
    (table,) = tables_.values()
    assert "bfloat16" in picture.title and table.rows[0][1:3] == ["4", "0.0041"]
