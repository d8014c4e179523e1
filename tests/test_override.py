"""diglot.override: PyTorch's functions run diglot's ops, and what it leaves alone is said."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE
from torch._dynamo.testing import CompileCounterWithBackend

import diglot

ROW = (8,)
CALLS = {
    "gelu": lambda x: F.gelu(x),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "softmax of a dtype": lambda x: F.softmax(x, 0, dtype=torch.float64),
    "torch.softmax": lambda x: torch.softmax(x, 1),
    "Tensor.softmax": lambda x: x.softmax(dim=0, dtype=torch.float64),
    "log_softmax": lambda x: F.log_softmax(x, -1, 3, None),
    "torch.log_softmax": lambda x: torch.log_softmax(x, dim=-1),
    "Tensor.log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, ROW, eps=1e-3),
    "layer_norm, weight": lambda x: F.layer_norm(x, ROW, x[0], x[1]),
    "rms_norm": lambda x: F.rms_norm(x, ROW, x[0], 1e-3),
    "module": torch.nn.LayerNorm(ROW),
    "module of dropout": torch.nn.Dropout(0.5).eval(),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_are_sent(call):
    x = torch.randn(3, 8, requires_grad=True)
    expected = CALLS[call](x)
    with diglot.override("torch") as overridden, diglot.record_runs() as runs:
        made = CALLS[call](x)
    assert sum(overridden.sent.values()) == 1 and not overridden.left_alone
    assert len(runs) == ("dropout" not in call)
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(made, expected)
    grad = torch.randn_like(made)
    ours, theirs = (torch.autograd.grad(y, x, grad)[0] for y in (made, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends(backend):
    x = torch.randn(3, 8, device=DEVICE)
    with diglot.override(backend), diglot.record_runs() as runs:
        F.gelu(x)
        F.dropout(x, 0.5)
    assert [(run.op, run.backend) for run in runs] == [("gelu", backend), ("dropout", backend)]
    with diglot.use_backend(backend), diglot.override(), diglot.record_runs() as runs:
        F.gelu(x)
    assert runs[0].backend == backend


def test_dropout():
    x = torch.ones(10_000)
    with diglot.override("torch") as overridden:
        torch.manual_seed(1)
        y = F.dropout(x, p=0.25, training=True)
        assert F.dropout(x, 0.25, training=False) is x
        assert F.dropout(x.clone(), 0.25, inplace=True).shape == x.shape
    torch.manual_seed(1)
    assert torch.equal(y, diglot.dropout(x, 0.25, backend="torch"))
    assert overridden.sent == {"dropout": 3}


LEFT_ALONE = {
    "no dim is given": lambda x: F.softmax(x),
    "softmax() got an unexpected keyword argument 'out'": lambda x: torch.softmax(
        x, 0, out=torch.empty_like(x)
    ),
    "gelu: input must be a dense tensor": lambda x: F.gelu(torch.nested.nested_tensor([x])),
    "layer_norm: weight must have the dtype of input": lambda x: F.layer_norm(
        x.bfloat16(), ROW, x[0].double(), x[1].double()
    ),
    "a tensor of a class that has a __torch_function__": lambda x: F.gelu(x.as_subclass(Mine)),
}


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_what_an_op_does_not_take_is_left_alone(reason):
    x = torch.randn(3, 8)

    def outcome():
        try:
            return LEFT_ALONE[reason](x)
        except RuntimeError as error:  # PyTorch's own
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome()
        with diglot.override("torch") as overridden:
            made = outcome()
    ((call, count),) = overridden.left_alone.items()
    assert (count, call.reason[: len(reason)]) == (1, reason) and not overridden.sent
    assert f"    1  {call.function} left alone: {reason}" in str(overridden)
    assert type(made) is type(expected)
    if isinstance(made, torch.Tensor) and not made.is_nested:
        assert torch.equal(made, expected)


def test_an_explicit_backend_never_falls_back(refused_cuda):
    with pytest.raises(diglot.BackendUnavailable, match=refused_cuda), diglot.override("cuda"):
        F.gelu(torch.randn(3))
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.override("opencl")


def test_scopes():
    """Nested: the innermost one decides. It ends with an error, and is of one thread."""
    x = torch.randn(3, 8)

    def sent(*scopes):
        return [scope.sent.get("softmax", 0) for scope in scopes]

    outer, inner = diglot.override("torch"), diglot.override("torch")
    with outer:
        F.softmax(x, -1)
        with inner, diglot.record_runs() as runs:
            F.softmax(x, -1)
        assert len(runs) == 1 and sent(outer, inner) == [1, 1]
        thread = threading.Thread(target=F.softmax, args=(x, -1))
        thread.start()
        thread.join()
        assert sent(outer, inner) == [1, 1]
        with pytest.raises(ZeroDivisionError), inner:
            raise ZeroDivisionError
        F.softmax(x, -1)
    F.softmax(x, -1)
    assert sent(outer, inner) == [2, 1]
    with outer:  # again
        F.softmax(x, -1)
    assert str(outer) == "    3  softmax -> diglot.softmax"
    assert "no function was called" in str(diglot.override())


@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled(inside):
    """A compiled function is compiled again in the scope, and the graph has diglot's ops."""
    counter = CompileCounterWithBackend("eager")
    overridden = diglot.override("torch")

    def function(x):
        return F.layer_norm(F.gelu(x), ROW).softmax(-1)

    def scoped(x):
        with diglot.override("torch"):
            return function(x)

    x = torch.randn(3, 8)
    compiled = torch.compile(scoped if inside else function, backend=counter, fullgraph=True)
    if inside:
        made = compiled(x)
    else:
        compiled(x)
        with overridden:
            made = compiled(x)
            compiled(x)
    torch.testing.assert_close(made, function(x))
    assert counter.frame_count == (1 if inside else 2) and not overridden.sent
    called = {str(node.target) for node in counter.graphs[-1].graph.nodes}
    assert {"diglot.gelu.default", "diglot.layer_norm.default", "diglot.softmax.default"} <= called


def test_autocast():
    """As of the ops: a norm and a softmax of 16 bits are computed in float32 under autocast."""
    x = torch.randn(3, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16), diglot.override("torch"):
        assert F.softmax(x, -1).dtype == torch.float32
        assert F.gelu(x).dtype == torch.bfloat16
    with diglot.override("torch"), torch.autocast("cpu", torch.bfloat16):
        assert F.layer_norm(x, ROW).dtype == torch.float32
