"""What calls give and get that is no plain tensor; no GPU is needed."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import pytest
import torch
from recorded_graphs import install
from torch.utils import _pytree as pytree

from diglot.graphs import GraphError, capture

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Registered(Batch):
    pass


pytree.register_dataclass(Registered)


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


@pytest.mark.parametrize("make", [Pair, Registered])
def test_trees_of_other_classes(device, make):
    """Named tuples, and classes that PyTorch knows, are copied in and given back, by buckets."""
    graphed = capture(
        lambda pair: make(pair.x + pair.y, pair.x * 2),
        make(torch.ones(4), torch.ones(4)),
        dims=make({0: "n"}, {0: "n"}),
        buckets={"n": (2, 4)},
        clone=True,
    )
    for n in (3, 1, 2):
        found = graphed(make(torch.full((n,), 2.0), torch.ones(n)))
        assert isinstance(found, make)
        assert found.x.tolist() == [3] * n and found.y.tolist() == [4] * n
    assert device.captures == 2


def test_a_class_that_pytorch_does_not_know(device):
    with pytest.raises(TypeError, match=r"a Batch is not. If it holds tensors, register"):
        capture(lambda batch: batch.x, Batch(torch.ones(2), torch.ones(2)))
    with pytest.raises(GraphError, match="returns a Batch, in which the graph would not see"):
        capture(lambda x: Batch(x + 1, x), torch.ones(2))


def _doubles(x):
    yield x * 2


@pytest.mark.parametrize("function", [_doubles, lambda x: map(torch.neg, [x]), lambda x: iter([x])])
def test_results_that_nobody_has_computed(device, function):
    with pytest.raises(GraphError, match="in which the graph would not see tensors"):
        capture(function, torch.ones(2))


def test_an_argument_that_is_used_up(device):
    with pytest.raises(TypeError, match="the warm-up would use up: give a list or a tuple"):
        capture(lambda xs: sum(xs), iter([torch.ones(2)]))


def test_numbers_beside_tensors(device):
    """They are those of the capture, so they must be the same in each call."""
    graphed = capture(
        lambda x: (x * 2, 3, "a", None), torch.ones(2), dims={0: "n"}, buckets={"n": (2, 4)}
    )
    assert graphed(torch.ones(3))[1:] == (3, "a", None)
    with pytest.raises(GraphError, match="for n=4 and n=2 output 1 is 4 and 2, and a graph"):
        capture(lambda x: (x, len(x)), torch.ones(2), dims={0: "n"}, buckets={"n": (2, 4)})
    calls = []
    with pytest.raises(GraphError, match="other shapes or numbers for the same arguments"):
        capture(lambda x: (x, len(calls), calls.append(x)), torch.ones(2))


def scaled(x, scale=2.0, *, shift=0.0):
    return x * scale + shift


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((3.0,), {"shift": 1.0}), ((), {"scale": 3.0, "shift": 1.0})],
)
def test_arguments_by_position_or_by_name(device, args, kwargs):
    """Whichever way the example has them."""
    graphed = capture(scaled, (torch.ones(2), *args), kwargs=kwargs)
    x = torch.ones(2)
    assert graphed(x, 3.0, shift=1.0).tolist() == [4, 4]
    assert graphed(shift=1.0, scale=3.0, x=x).tolist() == [4, 4]
    assert graphed(x, shift=1.0, scale=3.0).tolist() == [4, 4]
    assert device.captures == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        graphed(x, other=3.0)
    with pytest.raises(TypeError, match="must lie as the example's do"):
        graphed(x, shift=1.0)  # nothing fills in a default value


def test_dims_of_positional_arguments(device):
    """Nobody has to say that arguments by name have none."""
    for dims, padding in (
        ({0: "n"}, 7.0),
        (({0: "n"},), (7.0,)),
        ((({0: "n"},), {"shift": None}), 7),
    ):
        graphed = capture(
            lambda x, shift: x.sum() + shift,
            torch.ones(4),
            kwargs={"shift": torch.ones(())},
            dims=dims,
            padding=padding,
            buckets={"n": (4,)},
        )
        assert graphed(torch.ones(3), shift=torch.ones(())) == 11
    with pytest.raises(ValueError, match=r"dims has .* or None for each tensor, not .*None"):
        capture(torch.neg, torch.ones(4), dims=({0: "n"}, None), buckets={"n": (4,)})


def test_a_result_that_is_an_argument(device):
    graphed = capture(lambda x: (x, x[1:]), torch.ones(3))
    for number in (2.0, 3.0):
        found = graphed(torch.full((3,), number))
        assert found[0].tolist() == [number] * 3 and found[1].tolist() == [number] * 2


def test_a_result_that_is_a_parameter(device):
    """No replay has changed it, and autograd believes that."""
    weight = torch.ones(2, requires_grad=True)
    graphed = capture(lambda x: (x * 2, weight.detach()), torch.ones(2))
    loss = (weight * weight).sum()
    graphed(torch.ones(2))
    loss.backward()
    assert weight.grad.tolist() == [2, 2]


def test_what_a_replay_writes_has_changed(device):
    cache, weight = torch.zeros(2), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        graphed = capture(lambda x: cache.add_(x).clone(), torch.ones(2))
    cache.zero_()
    loss = (weight * cache).sum()
    with torch.no_grad():
        assert graphed(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
