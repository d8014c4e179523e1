"""Plans within `use_plans("invariant")`: the same for any number of rows, and on every GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from backends import KERNELS
from row_ops import OPS, softmax

import diglot
from diglot.backends import store
from diglot.backends.compiled_order import TAG
from diglot.backends.plans import Device, plan_runs
from diglot.backends.store import Entry, Timing
from diglot.backends.tunables import forget_plans

H200 = Device(90, 132, 228 << 10, True, name="h200")
OTHERS = (
    Device(90, 132, 228 << 10, True, name="h100-80gb-hbm3"),
    Device(90, 78, 228 << 10, True, name="no one knows it"),
)


def planned(op, shape, backend, device, has_sums=False):
    """The runs of a call that was planned; `has_sums`: weight and bias require grad, too."""
    x = torch.empty(shape).requires_grad_()
    with plan_runs(device) as runs:
        outputs = op(x, backend, has_sums)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return runs


def plans(*call, **options):
    return {run.launcher: order_of_rows(run) for run in planned(*call, **options)}


# What a kernel of rows goes by when it sums one.
OF_A_ROW = {
    "n", "VECTOR", "ALIGNED", "SIDE", "BLOCK", "PIECES", "SPLITS", "THREADS",
    "side", "blocks", "part", "tiles", "share", "team",
}  # fmt: skip


def order_of_rows(run):
    """How the first launch sums a row: without the grid and, where a block has teams for several
    rows, without their number."""
    order = run.plan.launches[0].order
    has_teams = run.backend == "cuda" and run.launcher.endswith("norm_backward")
    numbers = [pair for pair in order.numbers if pair[0] in OF_A_ROW]
    return order.kernel, order.cluster, None if has_teams else order.threads, numbers


def all_sums(run):
    """How all launches sum. How many blocks walk through rows is left out where no sum is over
    rows."""
    has_sums = run.launcher.endswith("norm_backward")
    return run.plan.order if has_sums else [order_of_rows(run)]


@pytest.mark.parametrize("n", [768, 1001, 12288, 50257])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_plans_are_the_same(backend, op, n):
    """For any number of rows, and on every GPU of the architecture."""
    with diglot.use_plans("invariant"):
        known = plans(op, (3, n), backend, H200)
        assert known == plans(op, (4000 if n < 50000 else 100, n), backend, H200)
        for device in OTHERS:
            assert known == plans(op, (3, n), backend, device)


@pytest.mark.parametrize("n", [77, 768, 8192, 20480, 50257, 131072])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_frozen_parameters_change_no_row(backend, op, n):
    """A backward pass sums rows alike, with sums for weight and bias and without; and a forward
    pass, recorded or not."""
    with diglot.use_plans("invariant"):
        for rows in (3, 300 if n < 10000 else 20):
            call = op, (rows, n), backend, H200
            known = plans(*call, has_sums=True)
            assert known == plans(*call, has_sums=False)
            with torch.no_grad(), plan_runs(H200) as runs:
                op(torch.empty(rows, n), backend)
            assert order_of_rows(runs[0]) == known[runs[0].launcher]


@pytest.mark.parametrize("shape", [(300, 77), (3, 20480), (100, 20480), (40, 50257), (3, 131072)])
@pytest.mark.parametrize("op", [op for op in OPS if "norm" in op.__name__])
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_of_parameters_have_one_order(backend, op, shape):
    """It depends on the number of rows and their length, on no GPU and no measured plan."""
    with diglot.use_plans("invariant"):
        known = [*map(all_sums, planned(op, shape, backend, H200, has_sums=True))]
        for device in OTHERS:
            found = planned(op, shape, backend, device, has_sums=True)
            assert known == [*map(all_sums, found)], device.name


@pytest.mark.parametrize("op", [diglot.standardize, diglot.global_softmax])
@pytest.mark.parametrize("backend", KERNELS)
def test_whole_arrays_have_one_order(backend, op):
    """In every mode: chunks follow from the number of elements and the dtype alone."""

    def orders(device, mode):
        with diglot.use_plans(mode), plan_runs(device) as runs:
            op(torch.empty(10_000_000), backend=backend)
        numbers = [dict(order.numbers) for run in runs for order in run.plan.order]
        cut = ("chunks", "tiles", "chunk_tiles", "BLOCK", "FOLD")
        return [
            (run.plan.order[0].kernel, [n.get(name) for name in cut])
            for run, n in zip(runs, numbers, strict=True)
        ]

    known = orders(H200, "invariant")
    for device in (H200, *OTHERS):
        assert known == orders(device, "invariant") == orders(device, "model")


def test_the_model_follows_the_number_of_rows():
    """So the test above can fail."""
    with diglot.use_plans("model"):
        few, many = (plans(softmax, (rows, 4096), "triton", H200) for rows in (3, 4000))
    assert few != many


def test_measured_plans_are_left_out(monkeypatch):
    monkeypatch.setattr(
        store.Store, "find", lambda _, problem: ("exact", Entry(problem, {"": Timing(1.0, 0)}))
    )
    forget_plans()
    x = torch.empty(8192, 4096, dtype=torch.bfloat16)
    with plan_runs(H200) as runs:
        diglot.softmax(x, -1, backend="triton")
        with diglot.use_plans("invariant"):
            diglot.softmax(x, -1, backend="triton")
            text = diglot.explain(diglot.softmax, torch.empty(3, 5), -1)
    assert [run.plan.choices[0].source for run in runs[:2]] == ["exact", "invariant"]
    assert "the same for rows of this length everywhere" in str(text)
    forget_plans()


# In a process of its own: the variable is read once.
SCRIPT = """
import torch, diglot
from diglot.backends.plans import plan_runs
with plan_runs() as runs:
    diglot.softmax(torch.empty(3, 5), -1, backend="triton")
with diglot.use_plans("model"), plan_runs() as others:
    diglot.softmax(torch.empty(3, 5), -1, backend="triton")
print(*(run.plan.choices[0].source for run in (*runs, *others)))
print(dict(runs[0].plan.tunables)["rows.both.planned_rows"], torch.compiler.config.cache_key_tag)
"""


@pytest.mark.parametrize("value", ["invariant", pytest.param("invarient", marks=pytest.mark.slow)])
def test_the_variable(value):
    """It selects the mode from the start; an unknown value is told by name."""
    environment = {**os.environ, "DIGLOT_PLANS": value, "DIGLOT_INTERPRET": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if value == "invariant":
        assert done.stdout.splitlines() == ["invariant model", f"65536 {TAG}"], done.stderr
    else:
        assert "DIGLOT_PLANS must be one of 'measured', 'model', 'invariant'" in done.stderr
        assert "did you mean 'invariant'?" in done.stderr
