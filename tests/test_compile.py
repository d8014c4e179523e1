"""torch.compile: whole graphs, every way of switching, both kinds of backend."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, HAS_CUDA, KERNELS
from functorch.compile import aot_module_simplified, make_boxed_func

import diglot
from diglot.backends import runs, selection
from diglot.define import operator

# Inductor calls Triton's compiler on what a Triton backend launches, which needs a GPU; the rest of
# the path (Dynamo, AOTAutograd, functionalisation) does not. Where kernels are interpreted, the
# graph has the operators instead.
COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)]
NAMES = ["torch", "triton", *(["cuda"] if HAS_CUDA else [])]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def block(x, y, backend=None):
    return diglot.add(diglot.gelu(x * 2, "tanh", backend=backend), y, alpha=2, backend=backend)


def expected(x, y):
    return F.gelu(x * 2, approximate="tanh") + 2 * y


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_forward_and_backward(backend, compiler, dynamic):
    compiled = torch.compile(block, fullgraph=True, backend=compiler, dynamic=dynamic)
    for rows in (16, 24):
        x = torch.randn(rows, 32, device=DEVICE, requires_grad=True)
        y = torch.randn(32, device=DEVICE, requires_grad=True)
        own = compiled(x, y, backend)
        torch.testing.assert_close(own, expected(x, y))
        grads = torch.autograd.grad(own.square().sum(), (x, y))
        wanted = torch.autograd.grad(expected(x, y).square().sum(), (x, y))
        torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_way_of_switching_recompiles(compiler, monkeypatch):
    counter = torch._dynamo.testing.CompileCounterWithBackend(compiler)
    x = torch.randn(64, device=DEVICE)

    @torch.compile(fullgraph=True, backend=counter)
    def default(x):
        return diglot.gelu(x)

    @torch.compile(fullgraph=True, backend=counter)
    def by_argument(x, backend):
        return diglot.gelu(x, backend=backend)

    def backend_in_last_graph():
        """The chosen backend, as the operator in Dynamo's graph has it."""
        (call,) = (n for n in counter.graphs[-1].graph.nodes if "diglot.gelu" in str(n.target))
        return call.args[-1]

    def by_scope(name):
        with diglot.use_backend(name):
            return default(x)

    def by_variable(name):
        monkeypatch.setattr(selection, "_environment", name)
        return default(x)

    compiled = 0
    for call in (by_scope, by_variable, lambda name: by_argument(x, name)):
        for name in NAMES:
            torch.testing.assert_close(call(name), F.gelu(x))
            compiled += 1
            assert counter.frame_count == compiled, (call, name)
            assert backend_in_last_graph() == name
        for name in NAMES:  # what has been compiled is found again
            torch.testing.assert_close(call(name), F.gelu(x))
        assert counter.frame_count == compiled

    @torch.compile(fullgraph=True, backend=compiler)
    def scope_inside(x):
        with diglot.use_backend("torch"):
            return diglot.gelu(x)

    torch.testing.assert_close(scope_inside(x), F.gelu(x))
    assert selection._scope.backend is None


def graph_of(function, *arguments, dynamic=None):
    """The operators of the compiled forward graph."""
    seen = []

    def collect(module, inputs):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module.forward)

    def compiler(module, inputs):
        return aot_module_simplified(module, inputs, fw_compiler=collect)

    # Recorded for differentiation: an inference graph may take another way.
    arguments = [argument.detach().requires_grad_() for argument in arguments]
    torch.compile(function, fullgraph=True, backend=compiler, dynamic=dynamic)(*arguments)
    return seen


def test_torch_is_traced_inline():
    x = torch.randn(8, device=DEVICE)
    with diglot.use_backend("torch"):
        seen = graph_of(lambda t: diglot.gelu(t), x)
    assert any("aten.gelu" in target for target in seen), seen
    assert not any("diglot" in target for target in seen), seen


@pytest.mark.gpu
def test_kernels_are_seen_by_the_compiler():
    x = torch.randn(8, device=DEVICE)
    with diglot.use_backend("cuda"):
        seen = graph_of(lambda t: diglot.gelu(t), x)
    assert any("auto_functionalized" in target for target in seen), seen
    with diglot.use_backend("triton"):
        seen = graph_of(lambda t: diglot.gelu(t), x)
    assert any("triton_kernel_wrapper" in target for target in seen), seen


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_and_mixed_types(backend, compiler):
    function = torch.compile(
        lambda a, b, alpha: diglot.add(
            diglot.add(a, 2.5, backend=backend), b, alpha=alpha, backend=backend
        ),
        fullgraph=True,
        backend=compiler,
    )
    x = torch.randn(8, 16, device=DEVICE)
    y = torch.randn(16, device=DEVICE, dtype=torch.float16)
    for alpha in (1.5, 2.5, -0.5):
        torch.testing.assert_close(function(x, y, alpha), x + 2.5 + alpha * y.float())


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_and_many_dimensions(backend, compiler, dynamic):
    """Layouts whose launches depend on more than the number of elements."""
    function = torch.compile(
        lambda a, b: diglot.add(a, b, alpha=2, backend=backend),
        fullgraph=True,
        backend=compiler,
        dynamic=dynamic,
    )
    many = torch.randn((2, 3) * 5, device=DEVICE)
    wide = torch.randn(40, 96, device=DEVICE)
    order = (8, 3, 0, 5, 2, 7, 4, 9, 6, 1)
    permuted = many.permute(order).contiguous().permute([order.index(d) for d in range(10)])
    cases = [
        (many, permuted),
        (wide[:, :64], wide[:1, :64]),
        (wide[:, :63], wide[:, :1]),
    ]
    for x, y in cases:
        y = y.detach().requires_grad_()
        own = function(x, y)
        torch.testing.assert_close(own, x + 2 * y)
        (grad,) = torch.autograd.grad(own.square().sum(), y)
        (wanted,) = torch.autograd.grad((x + 2 * y).square().sum(), y)
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-4)


def test_module_compiles():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), diglot.nn.GELU(backend="torch")).to(DEVICE)
    x = torch.randn(3, 8, device=DEVICE)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))


def test_export():
    class Model(torch.nn.Module):
        def forward(self, x):
            return diglot.gelu(x, backend="torch")

    x = torch.randn(4, device=DEVICE)
    program = torch.export.export(Model(), (x,))
    torch.testing.assert_close(program.module()(x), F.gelu(x))


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, not interpreted")
@pytest.mark.parametrize("backend", KERNELS)
def test_interpreted_kernels_stay_operators(backend):
    """No compiler sees into the interpreter: the graph calls the operator."""
    x, y = torch.randn(4, 8), torch.randn(8)
    with diglot.use_backend(backend):
        seen = graph_of(block, x, y)
        assert {"diglot.gelu.default", "diglot.add.default"} <= set(seen), seen
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        with diglot.record_runs() as recorded:
            out = compiled(x.requires_grad_(), y.requires_grad_())
            out.sum().backward()
    assert [run.launcher for run in recorded[:2]] == ["gelu_forward", "add_forward"]
    assert sorted(run.launcher for run in recorded[2:]) == ["add_backward", "gelu_backward"]
    assert {run.backend for run in recorded} == {backend}


def every_op(x, y, backend):
    """Ops whose launches depend on sizes in different ways."""
    z = diglot.add(diglot.gelu(x, backend=backend), y, backend=backend)
    z = diglot.layer_norm(z, y.shape, y, y, backend=backend)
    return diglot.softmax(diglot.rms_norm(z, y.shape, y, backend=backend), backend=backend)


def launches_of(function, *arguments):
    """A call, and the launchers and variants that ran, forward and backward."""
    arguments = [a.detach().requires_grad_() for a in arguments]
    with diglot.record_runs() as recorded:
        out = function(*arguments)
        grads = torch.autograd.grad(out.square().sum(), arguments)
    return (out, *grads), sorted((run.launcher, run.variant) for run in recorded)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_sizes_are_compiled_once(backend, compiler):
    """Many of them: one graph, whose operators plan their launches when it runs, as in eager mode.

    The backend "torch" is traced into the graph, and has no launches there.
    """
    compiled = torch.compile(
        lambda x, y: every_op(x, y, backend), fullgraph=True, backend=compiler, dynamic=True
    )
    sizes = [*range(2, 50), 300, 2000] if DEVICE == "cuda" else [2, 3, 17, 70]
    y = torch.randn(64, device=DEVICE)
    for rows in sizes:
        x = torch.randn(rows, 64, device=DEVICE)
        with torch._dynamo.config.patch(error_on_recompile=rows != sizes[0]):
            own, launched = launches_of(compiled, x, y)
        eager, wanted = launches_of(lambda x, y: every_op(x, y, backend), x, y)
        torch.testing.assert_close(own, eager)
        assert launched == ([] if backend == "torch" else wanted), rows


def test_symbolic_sizes_keep_the_operator(monkeypatch):
    """Where a compiler would see into a kernel's launch, it does so with fixed sizes alone."""
    monkeypatch.setattr(operator, "is_interpreted", lambda backend, device: False)
    traced = []
    monkeypatch.setattr(runs, "_run_traced", lambda *call: traced.append(call[:3]))
    x = torch.randn(8, 16, device=DEVICE)
    with diglot.use_backend("triton"):
        fixed = graph_of(lambda t: diglot.gelu(t), x, dynamic=False)
        assert ("triton", "gelu", "gelu_forward") in traced
        before = len(traced)
        assert not any("diglot" in target for target in fixed), fixed
        symbolic = graph_of(lambda t: diglot.gelu(t), x, dynamic=True)
    assert len(traced) == before and "diglot.gelu.default" in symbolic, symbolic


def test_unavailable_backend_while_compiling(refused_cuda):
    compiled = torch.compile(
        lambda x: diglot.gelu(x, backend="cuda"), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match="backend 'cuda' cannot run"):
        compiled(torch.randn(3))


ROWS = (40, 4096)
EVERY_OP = {
    "add": lambda x, w, backend: diglot.add(x, w, alpha=2, backend=backend),
    "add_layer_norm": lambda x, w, backend: sum(
        diglot.add_layer_norm(x, x, ROWS[1:], w, backend=backend)
    ),
    "add_rms_norm": lambda x, w, backend: sum(
        diglot.add_rms_norm(x, x, ROWS[1:], w, backend=backend)
    ),
    "gaussian_pdf": lambda x, w, backend: diglot.gaussian_pdf(
        x, 0.5, 2.0, terms=5, backend=backend
    ),
    "gelu": lambda x, w, backend: diglot.gelu(x, backend=backend),
    "global_softmax": lambda x, w, backend: diglot.global_softmax(x, backend=backend),
    "layer_norm": lambda x, w, backend: diglot.layer_norm(x, ROWS[1:], w, w, backend=backend),
    "log_softmax": lambda x, w, backend: diglot.log_softmax(x, 0, backend=backend),
    "rms_norm": lambda x, w, backend: diglot.rms_norm(x, ROWS[1:], w, backend=backend),
    "softmax": lambda x, w, backend: diglot.softmax(x, -1, backend=backend),
    "standardize": lambda x, w, backend: diglot.standardize(x, backend=backend),
    "tall columns": lambda x, w, backend: diglot.softmax(x.view(-1, 8), 0, backend=backend),
}


@pytest.mark.gpu
@pytest.mark.parametrize("op", EVERY_OP)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_op_through_inductor(backend, op):
    """Forward and backward, in one graph each, as eager mode does."""

    def run(x, w):
        return EVERY_OP[op](x, w, backend)

    x = torch.randn(ROWS, device=DEVICE, requires_grad=True)
    w = torch.randn(ROWS[1:], device=DEVICE, requires_grad=True)
    eager, compiled = run(x, w), torch.compile(run, fullgraph=True)(x, w)
    torch.testing.assert_close(compiled, eager)
    grad = torch.randn_like(eager)
    leaves = [x, w] if "norm" in op or op == "add" else [x]
    grads, wanted = (torch.autograd.grad(out, leaves, grad) for out in (compiled, eager))
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-4)
