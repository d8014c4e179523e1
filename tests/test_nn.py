"""diglot.nn in PyTorch's hands: what `print` calls its modules, states, torch.fx."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.fx import symbolic_trace

import diglot


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        diglot.nn.LayerNorm(8, backend="torch"),
        diglot.nn.GELU("tanh", backend="torch"),
        diglot.nn.RMSNorm(8, backend="torch"),
        diglot.nn.Dropout(0.0, backend="torch"),
        diglot.nn.Softmax(backend="torch"),
        diglot.nn.LogSoftmax(backend="torch"),
    )


def test_print_says_whose_module_it_is():
    class Mine(diglot.nn.GELU):
        pass

    lines = str(network()).splitlines()[1:-1]
    assert ["diglot.nn." in line for line in lines] == [False] + [True] * 6
    assert repr(diglot.nn.GELU()) == "diglot.nn.GELU(approximate='none')"
    assert repr(Mine()) == "Mine(approximate='none')"


def test_states_are_those_of_pytorchs_modules():
    theirs = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.RMSNorm(8)
    )
    own = network()
    assert list(own.state_dict()) == list(theirs.state_dict())
    own.load_state_dict(theirs.state_dict())
    copy = pickle.loads(pickle.dumps(own))
    x = torch.randn(3, 8)
    assert torch.equal(copy(x), own(x))
    assert str(copy) == str(own)


def function(x, weight):
    y = diglot.add_layer_norm(x, x, (8,), weight, backend="torch")[0]
    return diglot.add(diglot.gelu(y, backend="torch"), diglot.standardize(x, backend="torch"))


def test_symbolic_trace():
    """A call of an op is one node, whose target is the op."""
    x, weight = torch.randn(3, 8), torch.ones(8)
    model = network()
    traced = symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [
        diglot.layer_norm,
        diglot.gelu,
        diglot.rms_norm,
        diglot.dropout,
        diglot.softmax,
        diglot.log_softmax,
    ]
    assert torch.equal(traced(x), model(x))
    traced = symbolic_trace(function)
    assert {diglot.add_layer_norm, diglot.standardize} < {n.target for n in traced.graph.nodes}
    copy = pickle.loads(pickle.dumps(traced))
    assert torch.equal(copy(x, weight), function(x, weight))


def test_export():
    model, x = network().eval(), torch.randn(3, 8)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))


def test_scripting_is_refused():
    """By PyTorch; docs/models.md says so."""
    with pytest.raises(ValueError, match="Unknown type annotation"):
        torch.jit.script(diglot.nn.GELU())
