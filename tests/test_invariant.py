"""Rows whose results depend on their length and dtype alone: `use_plans("invariant")`."""

from __future__ import annotations

import functools
import itertools
import threading

import pytest
import torch
import torch._dynamo.testing
from backends import DEVICE, KERNELS
from row_ops import OPS, parameters, softmax

import diglot
from diglot.backends.aligned_rows import lies_in_rows, place, works_on_rows
from diglot.backends.compiled_order import TAG
from diglot.backends.plans import plan_runs
from diglot.backends.registry import INTERPRET, cuda_module

LENGTHS = (1, 77, 96, 1001, 2305)
# Triton's interpreter adds up as NumPy does, whatever the plan, and is slow.
SHORT = LENGTHS[:3]


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


# What to make of nine rows, and what their results must equal.
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


def nine_rows(n, dtype):
    return torch.randn(9, n, generator=torch.Generator().manual_seed(n)).to(DEVICE, dtype)


@functools.cache
def whole_results(op, n, dtype, backend):
    """Those of the rows as they are, once for all ways."""
    with diglot.use_plans("invariant"):
        return results(op, nine_rows(n, dtype), backend)


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
        with diglot.use_plans("invariant"):
            parts = results(op, made(nine_rows(n, dtype)), backend)
        for whole, part in zip(whole_results(op, n, dtype, backend), parts, strict=True):
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


@pytest.mark.parametrize("op", [op for op in OPS if "norm" in op.__name__])
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_of_parameters_have_the_same_bits(backend, op):
    """However the rows lie, and whatever was tuned."""
    x = torch.randn(9, 77, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def gradients(x):
        x = x.detach().requires_grad_()
        w, b = (p.requires_grad_() for p in parameters(x.detach()))
        outputs = op(x, backend, (w, b))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.backward(outputs, [torch.sin(3 * x.detach())] * len(outputs))
        return [p.grad for p in (w, b) if p.grad is not None]

    with diglot.use_plans("invariant"):
        known = gradients(x)
        for made in (shifted(x), padded(x), padded(x).view(3, 3, -1), apart(x)):
            assert all(map(torch.equal, known, gradients(made)))


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


def test_a_graph_of_another_mode_is_not_taken():
    """torch.compile compiles again within it, keeps both graphs, and keeps its caches apart."""
    x = torch.randn(6, 77, device=DEVICE)
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: diglot.softmax(x, -1, backend="torch"), backend=counter)
    for expected in (1, 2):
        compiled(x)
        assert counter.frame_count == expected
        with diglot.use_plans("invariant"):
            compiled(x)
        assert counter.frame_count == 2
    torch._dynamo.reset()


def test_caches_of_compilers_know_the_mode():
    config = torch.compiler.config
    with config.patch(cache_key_tag="mine"):
        with diglot.use_plans("invariant"):
            assert config.cache_key_tag == f"mine; {TAG}"
            with diglot.use_plans("model"):
                assert config.cache_key_tag == "mine"
            assert config.cache_key_tag == f"mine; {TAG}"
        assert config.cache_key_tag == "mine"


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_a_captured_graph_keeps_the_order(backend):
    """It was captured within it, and is replayed outside. Rows of 77 are copied in the graph."""
    x = torch.randn(6, 77, device=DEVICE)
    with diglot.use_plans("invariant"):
        expected = softmax(x, backend)[1:4]
        softmax(x[1:4], backend)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = softmax(x[1:4], backend)
    graph.replay()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", KERNELS)
def test_threads_that_launch_while_it_begins(backend):
    """Their results are right, and no plan of before is kept: then all have the same bits."""
    x = torch.randn(8, 77, device=DEVICE)
    right, wrong, stop = x.softmax(-1), [], threading.Event()

    def launch():
        while not stop.is_set():
            found = diglot.softmax(x[:4], -1, backend=backend)
            if not torch.allclose(found, right[:4], rtol=1e-5, atol=1e-6):
                wrong.append(found)

    threads = [threading.Thread(target=launch) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with diglot.use_plans("invariant"):
                diglot.softmax(x, -1, backend=backend)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    with diglot.use_plans("invariant"):
        assert torch.equal(softmax(x, backend)[:4], softmax(x[:4], backend))


def test_modes_may_be_nested():
    x = torch.randn(5, 77, device=DEVICE)
    with diglot.use_plans("invariant"):
        inside = diglot.softmax(x, -1, backend="triton")
        with diglot.use_plans("model"), plan_runs() as runs:
            diglot.softmax(x, -1, backend="triton")
        assert runs[0].plan.choices[0].source == "model"
        assert torch.equal(diglot.softmax(x[2:3], -1, backend="triton"), inside[2:3])
