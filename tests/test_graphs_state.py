"""What diglot.graphs finds that a function reads, and what it sees of its changes; no GPU."""

from __future__ import annotations

import sys

import pytest
import recorded_graphs
import torch
from recorded_graphs import install
from torch import nn

from diglot.graphs import GraphError, capture


@pytest.fixture(autouse=True)
def device(monkeypatch):
    return install(monkeypatch)


class Cached(nn.Module):
    """A module with a tensor that is no parameter and no buffer, and modules in a plain list."""

    def __init__(self):
        super().__init__()
        self.scale, self.layers = torch.ones(2), [nn.Linear(2, 2)]

    def forward(self, x):
        return self.layers[0](x * self.scale)


def test_a_closure_s_variable_that_was_bound_anew():
    weight = torch.ones(1)
    graphed = capture(lambda x: x * weight, torch.ones(1))
    graphed(torch.ones(1))
    weight = torch.zeros(1)
    with pytest.raises(GraphError, match="weight was replaced by another tensor"):
        graphed(torch.ones(1))


def test_a_tensor_in_several_places():
    """Each place must hold it, and the tensor itself is looked at once."""
    weight = torch.ones(1)
    reads = {"one": weight, "between": torch.ones(1), "other": [weight]}
    graphed = capture(torch.neg, torch.ones(1), reads=reads)
    graphed(torch.ones(1))
    reads["other"][0] = torch.ones(1)
    with pytest.raises(GraphError, match=r"^other\[0\] was replaced by another tensor"):
        graphed(torch.ones(1))
    reads["other"][0] = weight
    reads["between"] = torch.ones(1)
    with pytest.raises(GraphError, match=r"^between was replaced by another tensor"):
        graphed(torch.ones(1))


def test_a_closure_s_variable_without_a_value():
    def negate(x):
        return -x if x.dim() else later

    assert capture(negate, torch.ones(1))(torch.ones(1)).tolist() == [-1]
    later = None


def test_a_module_that_was_replaced():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    for function in (model, lambda x: model(x)):
        model[0][0] = nn.Linear(2, 2)
        graphed = capture(function, torch.ones(1, 2))
        graphed(torch.ones(1, 2))
        model[0][0] = nn.Linear(2, 2)
        with pytest.raises(GraphError, match=r"module .*0\.0 was replaced after the capture"):
            graphed(torch.ones(1, 2))


def test_what_is_no_parameter_of_a_module():
    model = nn.Sequential(Cached())
    graphed = capture(model, torch.ones(1, 2))
    graphed(torch.ones(1, 2)).sum().backward()
    assert model[0].layers[0].weight.grad.tolist() == [[1, 1], [1, 1]]
    model[0].scale = torch.zeros(2)
    with pytest.raises(GraphError, match=r"0\.scale was replaced by another tensor"):
        graphed(torch.ones(1, 2))


def test_a_module_among_the_arguments():
    model = nn.Linear(2, 2)
    graphed = capture(lambda module, x: module(x), (model, torch.ones(1, 2)))
    graphed(model, torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[1, 1], [1, 1]]
    model.weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(GraphError, match=r"args\[0\]\.weight was replaced by another tensor"):
        graphed(model, torch.ones(1, 2))


def test_a_default_value():
    weight = torch.ones(2, requires_grad=True)

    def scaled(x, weight=weight):
        return x * weight

    capture(scaled, torch.ones(2))(torch.full((2,), 3.0)).sum().backward()
    assert weight.grad.tolist() == [3, 3]


class Hidden:
    """It keeps a tensor where nobody looks."""

    def __init__(self, weight):
        self.weights = {weight}

    def __call__(self, x):
        (weight,) = self.weights
        return x * weight


def test_a_leaf_that_was_not_found():
    """Its gradient would be left out, and nobody would see it."""
    weight = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(GraphError, match=r"gradient to a tensor of shape \(2, 3\).* give it in re"):
        capture(Hidden(weight), torch.ones(2, 3))
    graphed = capture(Hidden(weight), torch.ones(2, 3), reads=weight)
    graphed(torch.ones(2, 3)).sum().backward()
    assert weight.grad.eq(1).all()


# --- where else tensors are ----------------------------------------------------------------------


class Slotted:
    __slots__ = ("weight",)

    def __call__(self, x):
        return x * self.weight


class OfClass:
    table = torch.ones(2)

    def __call__(self, x):
        return x * self.table


class ModuleOfClass(nn.Module):
    table = torch.ones(2)

    def forward(self, x):
        return x * self.table


SCALE = torch.ones(2)


def uses_a_global_within(x):
    def scaled(x):
        return x * SCALE

    return sum([scaled(x) * SCALE for _ in range(1)])


def uses_a_module(x):
    return x * recorded_graphs.SCALE


@pytest.mark.parametrize(
    ("make", "owner", "name"),
    [
        (Slotted, None, "weight"),
        (OfClass, OfClass, "table"),
        (ModuleOfClass, ModuleOfClass, "table"),
        (lambda: uses_a_global_within, sys.modules[__name__], "SCALE"),
        (lambda: uses_a_module, recorded_graphs, "recorded_graphs.SCALE"),
    ],
)
def test_where_else_tensors_are(make, owner, name, monkeypatch):
    function, key = make(), name.rpartition(".")[2]
    place = function if owner is None else owner
    monkeypatch.setattr(place, key, torch.full((2,), 3.0), raising=False)
    graphed = capture(function, torch.ones(2))
    assert graphed(torch.ones(2)).tolist() == [9 if name == "SCALE" else 3] * 2
    monkeypatch.setattr(place, key, torch.zeros(2))
    with pytest.raises(GraphError, match=f"{name} was replaced by another tensor"):
        graphed(torch.ones(2))
