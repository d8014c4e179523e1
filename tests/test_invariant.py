"""Rows whose results depend on their length and dtype alone: `use_plans("invariant")`."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from backends import DEVICE, KERNELS

import diglot
from diglot.backends import store
from diglot.backends.aligned_rows import lies_in_rows, place, works_on_rows
from diglot.backends.plans import Device, plan_runs
from diglot.backends.registry import INTERPRET, cuda_module
from diglot.backends.store import Entry, Timing
from diglot.backends.tunables import forget_plans

H200 = Device(90, 132, 228 << 10, True, name="h200")
OTHERS = (
    Device(90, 132, 228 << 10, True, name="h100-80gb-hbm3"),
    Device(90, 78, 228 << 10, True, name="no one knows it"),
)
LENGTHS = (1, 77, 96, 1001, 2305)
# Triton's interpreter adds up as NumPy does, whatever the plan, and is slow.
SHORT = LENGTHS[:3]


def parameters(x):
    """Weight and bias of rows."""
    generator = torch.Generator().manual_seed(x.shape[-1])
    return [torch.randn(x.shape[-1], generator=generator).to(x) for _ in range(2)]


def softmax(x, backend):
    return diglot.softmax(x, -1, backend=backend)


def log_softmax(x, backend):
    return diglot.log_softmax(x, -1, backend=backend)


def layer_norm(x, backend):
    w, b = parameters(x)
    return diglot.layer_norm(x, x.shape[-1:], w, b, backend=backend)


def rms_norm(x, backend):
    return diglot.rms_norm(x, x.shape[-1:], parameters(x)[0], backend=backend)


def add_layer_norm(x, backend):
    w, b = parameters(x)
    return diglot.add_layer_norm(x, 2 * x, x.shape[-1:], w, b, backend=backend)


def add_rms_norm(x, backend):
    w, _ = parameters(x)
    return diglot.add_rms_norm(x, 2 * x, x.shape[-1:], w, backend=backend)


OPS = (softmax, log_softmax, layer_norm, rms_norm, add_layer_norm, add_rms_norm)


def results(op, x, backend):
    """Outputs and the gradient of the input, for a gradient that follows from each row."""
    x = x.detach().requires_grad_()
    outputs = op(x, backend)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.sin(3 * x.detach()) for _ in outputs]
    return [o.detach() for o in outputs] + list(torch.autograd.grad(outputs, x, gradients))


def shifted(x, by=3):
    """The same values, away from a multiple of 16 bytes."""
    flat = x.new_empty(x.numel() + by)
    view = flat[by:].view(x.shape)
    return view.copy_(x)


def padded(x):
    """The same values, in rows that begin at multiples of 16 elements."""
    rows, n = x.shape
    return x.new_empty(rows, -(-n // 16) * 16 + 16)[:, :n].copy_(x)


def apart(x):
    """The same values, whose neighbours in a row are not neighbours in memory."""
    return x.t().contiguous().t()


# What is made of nine rows, and what is to come of their results.
WAYS = {
    "some": (lambda x: x[2:5], lambda y: y[2:5]),
    "one": (lambda x: x[7:8], lambda y: y[7:8]),
    "many": (lambda x: x.repeat(3, 1), lambda y: y.repeat(3, 1)),
    "shifted": (shifted, lambda y: y),
    "apart": (apart, lambda y: y),
    "padded": (lambda x: padded(x).view(3, 3, -1)[:, :2], lambda y: y.view(3, 3, -1)[:, :2]),
    "every other": (lambda x: x.repeat_interleave(2, 0)[1::2], lambda y: y),
    "a batch": (lambda x: x.view(3, 1, 3, -1), lambda y: y.view(3, 1, 3, -1)),
}


SLOW = {"one", "many", "apart", "every other", "a batch"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] if way in SLOW else []) for way in WAYS]
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_have_the_same_bits(backend, op, way):
    """However many there are, and however they lie."""
    made, expected = WAYS[way]
    lengths = SHORT if backend == "triton" and INTERPRET else LENGTHS
    for n, dtype in itertools.product(lengths, (torch.float32, torch.bfloat16)):
        x = torch.randn(9, n, generator=torch.Generator().manual_seed(n)).to(DEVICE, dtype)
        with diglot.use_plans("invariant"):
            for whole, part in zip(
                results(op, x, backend), results(op, made(x), backend), strict=True
            ):
                assert torch.equal(expected(whole), part), (n, dtype)


@pytest.mark.parametrize("n", [12, 77, 1004])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_gradient_for_all_rows(backend, op, n):
    """It is one row that is expanded, or a row for each: the bits are the same."""
    x, g = torch.randn(3, n, device=DEVICE), torch.randn(n, device=DEVICE)
    with diglot.use_plans("invariant"):
        found = []
        for gradient in (g.expand(3, n), g.repeat(3, 1)):
            leaf = x.clone().requires_grad_()
            output = op(leaf, backend)
            output = output[0] if isinstance(output, tuple) else output
            found.append(torch.autograd.grad(output, leaf, gradient)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_results_are_right(backend, op):
    """Where arrays were copied, too: results are where the caller has them."""
    for n in (5, 77):
        x = torch.randn(9, n, dtype=torch.float64, device=DEVICE)
        with diglot.use_plans("invariant"):
            for way in (shifted, apart):
                for right, found in zip(
                    results(op, x, "torch"), results(op, way(x), backend), strict=True
                ):
                    torch.testing.assert_close(found, right)


def plans(op, shape, backend, device):
    with plan_runs(device) as runs:
        results(op, torch.randn(shape), backend)
    return {run.launcher: order_of_rows(run) for run in runs}


def order_of_rows(run):
    """What decides how the first launch sums a row: without the grid and, where a block has teams
    for several rows, without their number."""
    kernel, _, *others = run.plan.launches[0].order
    has_teams = run.backend == "cuda" and run.launcher.endswith("norm_backward")
    return kernel, others[1:] if has_teams else others


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


def test_what_lies_in_rows():
    x = torch.empty(4, 6, 32)
    assert lies_in_rows(x, -1) and lies_in_rows(x[1:], 2) and lies_in_rows(x[:, :1], -1)
    assert lies_in_rows(x[..., 4:8], -1) and not lies_in_rows(x[..., 1:9], -1)
    assert not lies_in_rows(x, 0) and not lies_in_rows(torch.empty(4, 6, 31), -1)
    assert lies_in_rows(torch.empty(1, 31), -1) and lies_in_rows(torch.empty(()), -1)
    assert lies_in_rows(x.expand(7, 4, 6, 32), -1)
    far = torch.empty(2, 2, 4, 2, 64)[..., ::2, :, :32]
    assert not lies_in_rows(far, -1) and lies_in_rows(far.contiguous(), -1)


def test_only_what_lies_otherwise_is_copied():
    x, w, out = torch.randn(4, 33), torch.randn(33), torch.empty(4, 33)
    even = torch.randn(4, 32)
    assert place("softmax", "softmax_forward", (even, -1, even)).arguments[0] is even
    placed = place("rms_norm", "rms_norm_forward", (x, w, 1e-5, None, out))
    copy, weight, eps, statistics, result = placed.arguments
    assert weight is w and eps == 1e-5 and statistics is None
    assert lies_in_rows(copy, -1) and copy.shape == x.shape and copy.stride() == (48, 1)
    assert [pair[1] is x for pair in placed.read] == [True]
    assert [pair[1] is out for pair in placed.written] == [True]
    moved = place("rms_norm", "rms_norm_forward", (even, torch.randn(33)[1:], 1e-5, None, even))
    assert moved.arguments[1].data_ptr() % 16 == 0 and moved.arguments[0] is even
    assert result.shape == out.shape


def test_every_launcher_is_known():
    """A launcher of rows is one that has a plan for rows."""
    module, _ = cuda_module()
    names = {"softmax", "log_softmax", "layer_norm", "rms_norm"}
    for name in module.schemas:
        base = name.removeprefix("add_").removesuffix("_forward").removesuffix("_backward")
        assert works_on_rows(name) == (base in names and not name.startswith("global"))


@pytest.mark.parametrize("backend", KERNELS)
def test_compiled_graphs(backend):
    """A graph of torch.compile that was compiled within it holds the order too."""
    x = torch.randn(6, 77, device=DEVICE)

    with diglot.use_plans("invariant"):
        eager = softmax(x, backend)
        torch._dynamo.reset()
        compiled = torch.compile(functools.partial(softmax, backend=backend), backend="aot_eager")
        assert torch.equal(compiled(x[1:4]), eager[1:4])
    torch._dynamo.reset()


def test_modes_may_be_nested():
    x = torch.randn(5, 77, device=DEVICE)
    with diglot.use_plans("invariant"):
        inside = diglot.softmax(x, -1, backend="triton")
        with diglot.use_plans("model"), plan_runs(H200) as runs:
            diglot.softmax(x, -1, backend="triton")
        assert runs[0].plan.choices[0].source == "model"
        assert torch.equal(diglot.softmax(x[2:3], -1, backend="triton"), inside[2:3])
