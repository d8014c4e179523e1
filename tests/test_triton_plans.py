"""Plans of Triton's launchers: values, kept by layout, of a device that may only be named."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import torch
from backends import DEVICE, KERNELS

if "triton" not in KERNELS:
    pytest.skip("there is no Triton", allow_module_level=True)

from diglot.backends.plans import Scratch
from diglot.triton_ops import (
    add,
    clip_grad_norm_,
    dropout,
    gelu,
    global_softmax,
    grid_barrier_check,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)
from diglot.triton_ops.launch import launch
from diglot.triton_ops.launch.plan import Device, Launch, Operand, Part, Plan, Unseen

H200 = (90, 132, 228 << 10, True)
MIB = 1 << 20
HANDLE = SimpleNamespace(metadata=SimpleNamespace(shared=0))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def planned(launcher, *arguments, device=H200):
    return launch.plan(launcher, device, *arguments)


@pytest.fixture
def counted():
    """A launcher of a planner that counts its calls."""
    calls = []

    @launch.launcher
    def counted_gelu(input: Operand, approximate: str, alpha: Unseen, out: Operand) -> Plan:
        calls.append((input, approximate, alpha, out))
        return gelu.gelu_forward.planner(input, approximate, out)

    return counted_gelu, calls


def test_a_launcher_has_its_planners_parameters_and_scratch():
    parameters = list(inspect.signature(layer_norm.layer_norm_forward).parameters)
    assert parameters == ["input", "weight", "bias", "eps", "statistics", "out", "scratch"]
    x, out = torch.randn(2, 5, device=DEVICE)
    given = {"input": x, "approximate": "none", "out": out, "scratch": None}
    assert gelu.gelu_forward(**given) == "flat, blocks of 256"
    torch.testing.assert_close(out, torch.nn.functional.gelu(x))


def test_a_layout_is_planned_once(counted):
    launcher, calls = counted
    x, y = torch.randn(2, 64, 32, device=DEVICE)
    out = torch.empty_like(x)
    for alpha, input in ((1.0, x), (2.0, y), (float("nan"), x)):
        assert launcher(input, "none", alpha, out, None) == "flat, blocks of 256"
        torch.testing.assert_close(out, torch.nn.functional.gelu(input))
    assert len(calls) == 1 and len(launcher.__globals__["plans"]) == 1
    # What a planner sees of an argument that no plan depends on is nothing.
    assert isinstance(calls[0][2], Unseen)


@pytest.mark.parametrize("change", ["parameter", "shape", "strides", "dtype", "alignment", "out"])
def test_what_a_plan_depends_on_is_its_key(counted, change):
    launcher, calls = counted
    x, out, approximate = torch.randn(8, 12, device=DEVICE), torch.empty(8, 12, device=DEVICE), ""
    launcher(x, "none", 1.0, out, None)
    if change == "parameter":
        approximate = "tanh"
    elif change == "shape":
        x, out = x[:4], out[:4]
    elif change == "strides":
        x = torch.randn(12, 8, device=DEVICE).t()
    elif change == "dtype":
        x, out = x.double(), out.double()
    elif change == "alignment":
        x = torch.randn(97, device=DEVICE)[1:].view(8, 12)
    else:
        out = torch.empty(12, 8, device=DEVICE).t()
    launcher(x, approximate or "none", 1.0, out, None)
    torch.testing.assert_close(out, torch.nn.functional.gelu(x, approximate=approximate or "none"))
    assert len(calls) == 2


def test_plans_are_bounded(counted, monkeypatch):
    launcher, calls = counted
    monkeypatch.setattr(launch, "MOST_PLANS", 3)
    for n in (1, 2, 3, 4, 5, 5, 1):
        launcher(torch.randn(n, device=DEVICE), "none", 1, torch.empty(n, device=DEVICE), None)
        assert len(launcher.__globals__["plans"]) <= 3
    assert len(calls) == 6  # that of 1 element was forgotten, that of 5 was not


def test_numbers_are_given_at_the_launch():
    x, out = torch.randn(6, device=DEVICE), torch.empty(6, device=DEVICE)
    add.add_forward(x, x, 1, out, None)
    plans = len(add.add_forward.__globals__["plans"])
    for alpha in (0.5, -0.0, 3, 1e30):
        add.add_forward(x, x, alpha, out, None)
        torch.testing.assert_close(out, torch.add(x, x, alpha=alpha))
    assert len(add.add_forward.__globals__["plans"]) == plans


def test_an_absent_tensor_is_part_of_the_key():
    x, out, weight = torch.randn(3, 8), torch.empty(3, 8), torch.randn(8)
    x, out, weight = (t.to(DEVICE) for t in (x, out, weight))
    for given in (None, weight, None):
        layer_norm.layer_norm_forward(x, given, None, 1e-5, None, out, None)
        torch.testing.assert_close(out, torch.nn.functional.layer_norm(x, (8,), given))


def test_plans_of_one_layout_are_equal():
    a, b = (planned(softmax.softmax_forward, meta(8, 64), 1, meta(8, 64)) for _ in range(2))
    assert a == b and a is not b
    assert a != planned(softmax.softmax_forward, meta(8, 65), 1, meta(8, 65))


def test_a_named_device_decides():
    """No multiprocessors, no shared rows; few, and no row is shared by more programs than they
    hold.
    """
    call = (softmax.softmax_forward, meta(4, MIB), 1, meta(4, MIB))
    shared = planned(*call)
    assert shared.variant.startswith("a row shared by programs")
    (only,) = shared.launches
    assert only.cooperative and only.per_multiprocessor == 4 and only.grid == (4 * 128,)
    assert shared.scratch == Scratch(4 * 128 * 3 * 4, 4 * 128 * 3 * 4, "call")
    fewer = planned(*call, device=(90, 40, 228 << 10, True))
    assert fewer.launches[0].grid == (128,)  # whole groups
    for multiprocessors in (0, 31):
        alone = planned(*call, device=(90, multiprocessors, 228 << 10, True))
        assert alone.variant.startswith("a row read twice") and alone.scratch is None


@pytest.mark.parametrize("occupancy", [4, 3, 2, 0])
def test_a_grid_that_does_not_fit_is_planned_again(monkeypatch, occupancy):
    """Fewer programs on a multiprocessor than was planned: as if there were fewer of those."""
    facts, started = Device(*H200), []
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "_facts_of", lambda index: facts)
    monkeypatch.setattr(launch, "find_handle", lambda *_: HANDLE)
    monkeypatch.setattr(launch, "occupancy", lambda *_: occupancy)
    monkeypatch.setattr(launch, "runner_of", lambda made, *_: started.append(made))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())

    def planner(device):
        x = Operand(0, torch.float32, (999, MIB), (MIB, 1), 0, device)
        return softmax.softmax_forward.planner(x, 1, x)

    if occupancy == 0:
        with pytest.raises(ValueError, match="512 of them were asked for"):
            launch._prepare(planner, facts, 0)
        return
    launch._prepare(planner, facts, 0)
    (made,) = started
    # Whole groups of 128 programs, of those that fit.
    assert made.launches[0].count == 132 * occupancy // 4 * 4 // 128 * 128


def test_groups_of_a_backward_pass_follow_from_its_programs():
    n, rows = 1 << 17, 1000
    x, weight, statistics = meta(rows, n), meta(n), meta(2, rows)
    call = (x, None, x, statistics, weight, weight, weight, x)
    shares = n // 4096
    walk, sum_up = planned(layer_norm.layer_norm_backward, *call).launches
    assert walk.grid == (4 * shares,) and sum_up.scalars[1] == 4
    # The sums of one group are the gradients of weight and bias.
    alone = planned(layer_norm.layer_norm_backward, *call, device=(90, 40, 0, True))
    (walk,) = alone.launches
    assert walk.grid == (shares,)
    assert [operand.position for operand in walk.pointers[-3:-1]] == [5, 6]
    assert alone.scratch.bytes == alone.scratch.zeroed


def test_scratch_of_a_backward_pass_has_two_parts():
    n, rows = 16384, 40
    x, weight, statistics = meta(rows, n), meta(n), meta(2, rows)
    call = (x, None, x, statistics, weight, weight, weight, x)
    plan = planned(layer_norm.layer_norm_backward, *call)
    words, sums = (
        next(p for p in plan.launches[0].pointers if isinstance(p, Part) and p.dtype == dtype)
        for dtype in (torch.int32, torch.float32)
    )
    assert (words.offset, words.count) == (0, rows * 8 * 2)
    assert sums.offset % 256 == 0 and sums.offset >= words.end
    assert sums.count == 2 * rows * n  # fewer rows than groups
    assert plan.scratch == Scratch(sums.end, words.end, "call")


@pytest.mark.parametrize("height", [8192, 8193, 20000])
def test_tall_columns_take_two_launches(height):
    x = meta(height, 64)
    plan = planned(softmax.softmax_forward, x, 0, x)
    is_tall = height > 8192
    assert len(plan.launches) == 1 + is_tall
    assert plan.launches[0].cooperative != is_tall
    if is_tall:
        assert plan.scratch.zeroed == 0 and plan.scratch.lifetime == "call"
        (words,) = {p for w in plan.launches for p in w.pointers if isinstance(p, Part)}
        chunks = words.count // (64 * 2)
        assert words.count == chunks * 64 * 2 and 2 <= chunks <= height // 256
    backward = planned(log_softmax.log_softmax_backward, meta(5000, 64), meta(5000, 64), 0, x)
    assert len(backward.launches) == 2  # that one reduces its first input alone


def test_a_streams_scratch_begins_with_the_barrier():
    x, total = meta(MIB), meta()
    global_plan = planned(global_softmax.global_softmax_forward, x, 0, x)
    table = meta(7, 4, dtype=torch.int64)
    clip = planned(clip_grad_norm_.clip_grad_norm, [], table, 1.0, 2.0, False, 0, total)
    check = (meta(2, 3, 8, dtype=torch.int32), "diglot", "check", meta(4, dtype=torch.int32))
    barrier = planned(grid_barrier_check.grid_barrier_check, *check)
    for plan in (global_plan, clip, barrier):
        assert plan.scratch.lifetime == "stream" and plan.scratch.zeroed == 16
        word = next(p for p in plan.launches[0].pointers if isinstance(p, Part) and not p.offset)
        assert word == Part(torch.int32, 1)
    assert clip.scratch.bytes == 16 + 7 * 4 and barrier.scratch.bytes == 16
    assert global_plan.scratch.bytes == 16 + 3 * 4 * global_plan.launches[0].scalars[1]


def test_alignment_of_a_named_device_is_that_of_the_storage():
    """As if storages were aligned: a plan does not depend on where this process has them."""
    for offset in range(4):
        x = torch.empty(MIB + 4)[offset : MIB + offset]
        out = torch.empty(MIB)
        plan = planned(gelu.gelu_forward, x, "none", out)
        assert ("16-byte" in plan.variant) == (offset == 0)
        both = planned(gelu.gelu_forward, x, "none", torch.empty(MIB + 4)[offset : MIB + offset])
        assert "16-byte" in both.variant and both.launches[0].scalars[1] == -offset % 4


def test_a_plan_has_no_scratch_that_it_does_not_need():
    x, weight, statistics = meta(64, 1024), meta(1024), meta(1, 64)
    for plan in (
        planned(softmax.softmax_forward, x, 1, x),
        planned(rms_norm.rms_norm_forward, x, weight, 1e-6, None, x),
        planned(dropout.dropout_forward, x, meta(1, dtype=torch.int64), 0, 1, 2.0, x),
        planned(rms_norm.rms_norm_backward, x, None, x, statistics, None, None, x),
    ):
        assert plan.scratch is None and len(plan.launches) == 1


def test_empty_tensors_need_nothing():
    x = meta(0, 5)
    for plan in (
        planned(softmax.softmax_forward, x, 1, x),
        planned(layer_norm.layer_norm_forward, x, None, None, 1e-5, meta(2, 0), x),
        planned(global_softmax.global_softmax_forward, x, 0, x),
        planned(dropout.philox_words, meta(0, 6), meta(0, 4)),
    ):
        assert plan == ("nothing to do", (), None, (), ())


def test_scratch_is_asked_for_and_checked():
    x = torch.randn(2, 40000, device=DEVICE)
    out = torch.full_like(x, -1)
    need = softmax.softmax_forward(x, 1, out, None)
    assert need == Scratch(need.bytes, need.bytes, "call") and (out == -1).all()
    scratch = torch.zeros(need.bytes + 1, dtype=torch.uint8, device=DEVICE)
    for wrong in (scratch[: need.bytes - 1], scratch[1:]):
        with pytest.raises(ValueError, match="are needed, from a multiple of"):
            softmax.softmax_forward(x, 1, out, wrong)
    assert (out == -1).all()
    assert softmax.softmax_forward(x, 1, out, scratch).startswith("a row shared")
    torch.testing.assert_close(out, x.softmax(1))


def test_statistics_that_nobody_asks_for_are_not_written():
    x = meta(4, 64)
    (asked,) = planned(layer_norm.layer_norm_forward, x, None, None, 1, meta(2, 4), x).launches
    (plain,) = planned(layer_norm.layer_norm_forward, x, None, None, 1, None, x).launches
    integers = [sum(s == "i64" for s in p.specialization.scalars) for p in (asked, plain)]
    # Where they start, a stride of one dimension, and from the means to the others.
    assert integers[0] - integers[1] == 3
    assert asked.specialization.dtypes[4] == torch.float32 and plain.pointers[4] is None


def test_options_of_a_launch():
    kernel = softmax.softmax_forward_rows
    made = Launch(
        kernel, (2, 3), (None, None, None), (1, 2.0, None), (), 4,
        max_registers=64, num_stages=2, num_ctas=2,
    )  # fmt: skip
    assert made.axes == (2, 3, 1) and made.count == 6
    specialization = made.specialization
    assert specialization.scalars[:3] == ("i64", "fp32", None)
    options = {"num_warps": 4, "maxnreg": 64, "num_stages": 2, "num_ctas": 2}
    assert specialization.options() == options
    assert dataclasses.replace(specialization, cooperative=True).options() == {
        **options,
        "launch_cooperative_grid": True,
    }
