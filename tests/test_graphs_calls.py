"""How diglot.graphs reads a call, by the CUDA library and in Python."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from recorded_graphs import install

from diglot.graphs import capture
from diglot.graphs.arguments import Arguments, places_of
from diglot.graphs.watch import library

NATIVE = pytest.mark.skipif(library() is None, reason="there is no library that reads calls")


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


@pytest.fixture(params=[pytest.param(True, marks=NATIVE), False], ids=["native", "py"])
def read(request):
    """Reads a call, which has by default the form of the example."""

    def read(*args, example=None, **kwargs):
        arguments = Arguments(None, *(example or (args, kwargs)))
        if not request.param:
            arguments._read_natively = None
        return arguments.read(args, kwargs)

    return read


def kind_of(read, *args, **kwargs):
    return read(*args, **kwargs)[0]


def differ(read, one, other):
    """Whether two calls are of two kinds, or the second one is refused."""
    try:
        found = kind_of(read, *other[0], **other[1], example=one)
    except TypeError:
        return True
    return found != kind_of(read, *one[0], **one[1])


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, torch.zeros(3, 2)),
        (X, torch.zeros(6)),
        (X, X.double()),
        (X, X.to(torch.complex64)),
        (X, X.to("meta")),
        (X, X.requires_grad_(False).clone().requires_grad_()),
        (X, None),
        ((X, X), [X, X]),
        ((X, (X,)), ((X, X),)),
        ([X, [X, X]], [[X, X], X]),
        ({"a": X}, {"b": X}),
        ({"a": X, "b": 1}, {"b": 1, "a": X}),
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        (0, False),
        ("a", "b"),
        (None, False),
        ((), []),
        (torch.float32, torch.float64),
    ],
)
def test_kinds_that_differ(read, one, other):
    assert differ(read, ((X, one), {}), ((X, other), {}))
    assert differ(read, ((X,), {"each": one}), ((X,), {"each": other}))
    assert not differ(read, ((X, one), {}), ((X, one), {}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3),
        lambda: torch.nn.Parameter(torch.ones(2, 3)),
        lambda: torch.ones(3, 2).t(),
        lambda: torch.ones(2, 3, dtype=torch.complex64),
        lambda: [torch.ones(2), {"a": (torch.ones(()), 2.5, "text", None, 10**30)}],
        lambda: torch.bfloat16,
    ],
)
def test_kinds_that_are_equal(read, make):
    one, other = kind_of(read, make(), more=make()), kind_of(read, make(), more=make())
    assert one == other and hash(one) == hash(other)


@NATIVE
def test_a_nan_is_itself():
    nans = [float("nan"), float("nan")]
    one, other = (library().read_call((nan,), {})[0] for nan in nans)
    assert one == other


def test_gradients_count_where_they_are_recorded(read):
    wants = X.clone().requires_grad_()
    recorded = kind_of(read, X), kind_of(read, wants)
    with torch.no_grad():
        assert kind_of(read, X) not in recorded
    assert recorded[0] != recorded[1]


def test_tensors_are_read_in_the_order_of_the_tree(read):
    a, b, c, d = (torch.zeros(2) for _ in range(4))
    *_, tensors = read([a, {"x": (b, 3)}], d, z=c)
    assert [id(each) for each in tensors] == [id(each) for each in (a, b, d, c)]


def test_keywords_are_read_in_one_order(read):
    """Whatever the order in which a caller writes them."""
    a, b = torch.zeros(2), torch.zeros(3)
    assert kind_of(read, a=a, b=b) == kind_of(read, b=b, a=a)
    for found in (read(a=a, b=b), read(b=b, a=a)):
        assert [id(each) for each in found[2]] == [id(a), id(b)]


@NATIVE
def test_places():
    memory = torch.zeros(12)
    place = places_of([memory[:6].view(2, 3)])
    assert places_of([memory[:6].view(2, 3)]) == place
    others = memory[6:].view(2, 3), memory[:6].view(3, 2).t(), torch.zeros(2, 3)
    assert all(places_of([other]) != place for other in others)
    assert places_of([memory[:6].view(2, 3), memory]) != place
    assert places_of([torch.zeros(2, dtype=torch.complex64).conj()]) is None


@NATIVE
def test_what_only_python_reads():
    class Marked(torch.Tensor):
        pass

    endless = []
    endless.append(endless)
    for each in (torch.Size([1]), Marked(), {1.5: 2}, object(), endless, torch.zeros(1).to("meta")):
        assert library().read_call((X, each), {}) is None


@NATIVE
def test_reading_keeps_nothing():
    objects = [torch.zeros(2), "a text of this test", 10**20, [], {}]
    args = (*objects, {objects[1]: objects[0]})
    before = [sys.getrefcount(each) for each in objects]
    for _ in range(100):
        assert library().read_call(args, {}) is not None
    assert [sys.getrefcount(each) for each in objects] == before


FIRST_CALL = """
import builtins
import torch
from diglot.graphs.watch import library

read, example = library().read_call, (torch.zeros(1), torch.nn.Parameter(torch.zeros(1)))
builtins.__import__ = None
print(len(read(example, {})[2]))
"""


@NATIVE
def test_a_first_call_imports_nothing():
    """A thread that imports lets others run, and these may not wait for it with Python's lock."""
    run = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True)
    assert run.stdout == "2\n", run.stderr


# --- calls ---------------------------------------------------------------------------------------


def test_zeros_of_both_signs(device):
    graphed = capture(lambda x, scale: x / scale, (torch.ones(1), 0.0))
    with torch.no_grad():
        assert graphed(torch.ones(1), 0.0).item() == float("inf")
        assert graphed(torch.ones(1), -0.0).item() == -float("inf")
    assert device.captures == 2


def test_a_conjugate_of_the_inputs(device):
    graphed = capture(lambda x: x * 1, torch.ones(2, dtype=torch.complex64))
    x = graphed.inputs[0].copy_(torch.tensor([1 + 2j, 3 - 4j]))
    assert graphed(x).tolist() == [1 + 2j, 3 - 4j]
    assert graphed(x.conj()).tolist() == [1 - 2j, 3 + 4j]


def test_inputs_whose_shape_is_changed_in_place(device):
    graphed = capture(lambda x: x * 1, torch.ones(2, 2))
    graphed.inputs[0].t_()
    x = torch.arange(4.0).view(2, 2)
    assert graphed(x).tolist() == x.tolist()
