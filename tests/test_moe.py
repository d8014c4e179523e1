"""moe: values, routing, derivatives, errors."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, SLOW_TRITON, slow_interpreted
from product_cases import normal

import diglot
from diglot.ops.moe import _moe_activation, _moe_activation_backward, _moe_rows, route_tokens
from diglot.reference.moe import activate_rows, activation_gradient, moe_oracle

WIDE = torch.float64
KINDS = [("silu", True), ("silu", False), ("gelu", True), ("gelu", False)]
# Of a result beside the oracle, which rounds as often: sums and activations may round otherwise.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, WIDE: 1e-12}


def case(dtype, gated=True, tokens=13, hidden=16, inner=24, experts=5, topk=2):
    """Tokens, weights of experts, and a routing. Some ids name no expert."""
    x = normal(tokens, hidden, dtype=dtype)
    w1 = normal(experts, inner * (1 + gated), hidden, dtype=dtype) / 4
    w2 = normal(experts, hidden, inner, dtype=dtype) / 4
    weights = torch.rand(tokens, topk, device=DEVICE)
    return x, w1, w2, weights, torch.randint(-1, experts + 1, (tokens, topk), device=DEVICE)


@pytest.mark.parametrize(("activation", "gated"), KINDS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values(backend, dtype, activation, gated):
    given = case(dtype, gated)
    result = diglot.moe(*given, activation=activation, gated=gated, backend=backend)
    right = moe_oracle(*given, activation, gated, steps_in=dtype)
    assert result.dtype == dtype and result.is_contiguous()
    error = (result.double() - right).abs().max() / right.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
def test_routings(backend):
    """All tokens to one expert, none to any, no tokens, and ids of 32 bits."""
    x, w1, w2, weights, ids = case(torch.float32)
    for routing in (torch.full_like(ids, 3), torch.full_like(ids, -1), ids.int()):
        result = diglot.moe(x, w1, w2, weights, routing, backend=backend)
        right = moe_oracle(x, w1, w2, weights, routing)
        torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-5)
    empty = diglot.moe(x[:0], w1, w2, weights[:0], ids[:0], backend=backend)
    assert empty.shape == (0, 16)


def test_routes():
    ids = torch.tensor([[2, 0], [0, 7], [-1, 2]], device=DEVICE)
    route = route_tokens(ids, 3)
    assert route.order.tolist() == [1, 2, 0, 5, 3, 4]  # an expert's pairs in the order of tokens
    assert route.ends.tolist() == [2, 2, 4] and route.ends.dtype == torch.int32
    assert route.inverse[route.order].tolist() == list(range(6))


@pytest.mark.parametrize(("activation", "gated"), KINDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_activations(backend, activation, gated):
    """Of whole accesses and of single elements, at values where formulas cancel or overflow."""
    for dtype, columns in ((torch.float32, 16), (torch.bfloat16, 5), (WIDE, 3)):
        x = normal(7, columns * (1 + gated), dtype=dtype) * 4
        x[0, :2] = torch.tensor([-90.0, 90.0], dtype=dtype)
        grad = normal(7, columns, dtype=dtype)
        own = _moe_activation(x, activation, gated, backend)
        of_x = _moe_activation_backward(grad, x, activation, gated, backend)
        right = activate_rows(x.double(), activation, gated)
        right_of_x = activation_gradient(grad.double(), x.double(), activation, gated)
        for result, exact in ((own, right), (of_x, right_of_x)):
            torch.testing.assert_close(result, exact.to(dtype), rtol=None, atol=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows(backend):
    """Of 16-byte accesses and of single elements; a place beyond the rows adds nothing."""
    order = torch.tensor([4, 2, 0, 5, 3, 1], device=DEVICE)
    inverse = torch.argsort(order)
    for columns in (16, 5):
        x, rows = normal(3, columns, dtype=torch.float32), normal(6, columns, dtype=torch.float32)
        weights = torch.rand(3, 2, device=DEVICE)
        spread = _moe_rows(x, weights, order, inverse, 2, True, backend)
        torch.testing.assert_close(spread, weights.flatten()[order, None] * x[order // 2])
        total = _moe_rows(rows, weights, order, inverse, 2, False, backend)
        expected = (weights[:, :, None] * rows[inverse].view(3, 2, -1)).sum(1)
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(_moe_rows(x.mT.contiguous().mT, None, order, inverse, 2, True,
                                             backend), x[order // 2])  # fmt: skip


@pytest.mark.parametrize(("activation", "gated"), KINDS[:3:2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend, activation, gated):
    """Twice; what kernels have runs on the same backend."""
    *leaves, ids = case(WIDE, gated, tokens=5, hidden=4, inner=3, experts=3)
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    with diglot.record_runs() as runs:
        result = diglot.moe(*leaves, ids, activation=activation, gated=gated, backend=backend)
        grad = torch.randn_like(result).requires_grad_()
        ours = torch.autograd.grad(result, leaves, grad, create_graph=True)
    assert {run.backend for run in runs} == {backend}
    right = moe_oracle(*leaves, ids, activation, gated)
    theirs = torch.autograd.grad(right, leaves, grad, create_graph=True)
    torch.testing.assert_close((result, *ours), (right, *theirs))
    ours, theirs = (
        torch.autograd.grad([g.square().sum() for g in found], (*leaves, grad))
        for found in (ours, theirs)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents(backend):
    *given, ids = case(WIDE, tokens=4, hidden=4, inner=3)
    given = tuple(t.double() for t in given)
    own, theirs = (
        torch.func.jvp(lambda *t, f=f, k=k: f(*t, ids, **k), given, tuple(t.cos() for t in given))
        for f, k in ((diglot.moe, {"backend": backend}), (moe_oracle, {}))
    )
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("backend", [SLOW_TRITON, pytest.param("torch", marks=slow_interpreted)])
def test_compile(backend):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(x, w1, w2, weights, ids):
        return diglot.moe(x, w1, w2, weights, ids, backend=backend)

    *leaves, ids = case(torch.float32, tokens=6)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    own, right = block(*leaves, ids), diglot.moe(*leaves, ids, backend=backend)
    torch.testing.assert_close(own, right)
    own, right = (torch.autograd.grad(r.sum(), leaves) for r in (own, right))
    torch.testing.assert_close(own, right)


def test_errors():
    x, w1, w2, weights, ids = case(torch.float32)
    for given, error, text in [
        ((x.int(), w1, w2, weights, ids), TypeError, "x must have one of the dtypes"),
        ((x, w1.double(), w2, weights, ids), TypeError, "x and w1 must have one dtype"),
        ((x, w1, w2, weights, ids.float()), TypeError, "topk_ids must be an int32 or int64"),
        ((x, w1, w2, weights, ids.to("meta")), ValueError, "must be on one device"),
        ((x[0], w1, w2, weights, ids), ValueError, "must have two dimensions"),
        ((x, w1[:, :-1], w2, weights, ids), ValueError, r"w1 must have the shape \(5, 48, 16\)"),
        ((x[:, 1:], w1, w2, weights, ids), ValueError, r"x must have the shape \(13, 16\)"),
        ((x, w1, w2, weights, ids[:, :0]), ValueError, "at least one expert of each token"),
        ((x, w1, w2, weights[:1], ids), ValueError, r"topk_weights must have the shape \(13, 2\)"),
    ]:
        with pytest.raises(error, match=f"moe: .*{text}"):
            diglot.moe(*given)
    with pytest.raises(ValueError, match="activation must be 'silu' or 'gelu', not 'relu'"):
        diglot.moe(x, w1, w2, weights, ids, activation="relu")
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.moe(x, w1, w2, weights, ids, backend="vllm")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_full_size(backend):
    """Many tokens, the same bits each time, and nothing that waits for the GPU."""
    given = case(torch.bfloat16, tokens=4096, hidden=512, inner=352, experts=64, topk=6)
    torch.cuda.set_sync_debug_mode("error")
    results = [diglot.moe(*given, backend=backend) for _ in range(3)]
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    right = moe_oracle(*given, steps_in=torch.bfloat16)
    assert (results[0].double() - right).abs().max() / right.abs().max() < 3e-2
