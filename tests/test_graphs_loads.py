"""How arguments get into the memory that a graph reads: by the CUDA library, and by PyTorch.

On the CPU the library finds the same copies, and makes them itself.
"""

from __future__ import annotations

import gc
import sys

import pytest
import torch
from recorded_graphs import install

from diglot.graphs import capture, inputs
from diglot.graphs.arguments import places_of
from diglot.graphs.buckets import Buckets
from diglot.graphs.inputs import StaticInputs, make_slot
from diglot.graphs.watch import library

pytestmark = pytest.mark.skipif(library() is None, reason="there is no library that copies")
CPU = torch.device("cpu")
NAMED = {0: 0, 1: 1}  # dimensions of a matrix that are padded, and the numbers of their names


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


def make_inputs(*examples, dims=None, buckets=((),)):
    """The inputs, and whether each copy so far was the library's."""
    slots = [make_slot(f"x{i}", x, dims or {}, 0, False) for i, x in enumerate(examples)]
    made = StaticInputs(slots, Buckets(("rows", "columns") if dims else (), buckets), CPU)
    taken, natively = [], made._copy_natively
    made._copy_natively = lambda *args: taken.append(natively(*args)) or taken[-1]
    return made, taken


def check(made, load, tensors):
    """Loads tensors where other values were."""
    for view in load.valid:
        view.fill_(1)
    made.load(tensors, load, places_of(tensors), 1)
    for view, tensor in zip(load.valid, tensors, strict=True):
        assert torch.equal(view, tensor)


def numbers(*shape, dtype=torch.float32):
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to(dtype)


@pytest.mark.parametrize(
    ("example", "tensor", "is_native"),
    [
        (numbers(3, 4), numbers(3, 4), True),
        (numbers(), numbers(), True),
        (numbers(3, 4, dtype=torch.bool), numbers(3, 4, dtype=torch.bool), True),
        (numbers(3, 4, dtype=torch.int64), numbers(3, 4, dtype=torch.int64), True),
        (numbers(3, 4), numbers(3, 6)[:, 1:5], True),  # rows with gaps
        (numbers(3, 4), numbers(6, 4)[::2], True),
        (numbers(2, 3, 4), numbers(2, 3, 8)[..., 4:], True),
        (numbers(3, 4).t(), numbers(3, 4).t(), True),  # inputs lie as the example does
        (numbers(2, 3, 4, 5).permute(0, 2, 3, 1), numbers(2, 3, 4, 5).permute(0, 2, 3, 1), True),
        (numbers(1, 4), numbers(4, 4)[1:2], True),
        (numbers(3, 4), numbers(4, 3).t(), False),  # no rows
        (numbers(3, 4), numbers(4).expand(3, 4), True),  # rows that overlap
        (numbers(3, 4), numbers(3, 1).expand(3, 4), False),
        (numbers(2, 3, 4), numbers(2, 5, 8)[:, :3, :4], False),  # two kinds of gaps
        (numbers(2000, 2), numbers(2000, 3)[:, :2], True),  # many rows with gaps
        (numbers(2000, 200), numbers(2000, 201)[:, :200], False),  # of many bytes
        (numbers(3), torch.ones(3, dtype=torch.complex64).conj().imag, False),  # negative bit
    ],
)
def test_layouts(example, tensor, is_native):
    made, taken = make_inputs(example)
    check(made, made.prepare((), ()), [tensor])
    assert taken == [is_native]


@pytest.mark.parametrize("sizes", [(4, 6), (3, 6), (4, 5), (2, 3), (1, 1), (2, 1)])
def test_padded_sizes(sizes):
    """They are rows with gaps in the bucket, whose other elements stay."""
    made, taken = make_inputs(numbers(4, 6), numbers(4, 6), dims=NAMED, buckets=((4, 6),))
    load = made.prepare((4, 6), sizes)
    check(made, load, [numbers(*sizes), 2 + numbers(*sizes)])
    assert taken == [True]
    for view in made.views((4, 6)):
        beyond = view.clone()
        beyond[: sizes[0], : sizes[1]] = 0
        assert not beyond.any()


def test_many_tensors_are_pytorch_s():
    """One launch takes 16. A tensor that is in its place does not count."""
    made, taken = make_inputs(*[numbers(4)] * 17)
    load = made.prepare((), ())
    check(made, load, [numbers(4) + i for i in range(17)])
    assert taken == [False]
    given = [load.valid[0], *(numbers(4) + i for i in range(16))]
    load.valid[0].fill_(7)
    made.load(given, load, places_of(given), 1)
    assert taken == [False, True]
    assert [view.tolist() for view in load.valid] == [
        [7.0] * 4,
        *map(torch.Tensor.tolist, given[1:]),
    ]


def test_a_part_of_the_same_memory():
    """PyTorch copies it first: another copy could write over it."""
    made, taken = make_inputs(numbers(4), numbers(4))
    load = made.prepare((), ())
    load.valid[0].copy_(numbers(4)), load.valid[1].copy_(numbers(4) + 9)
    swapped = [load.valid[1], load.valid[0]]
    expected = [each.clone() for each in swapped]
    made.load(swapped, load, places_of(swapped), 1)
    assert taken == [False]
    assert all(map(torch.equal, load.valid, expected))


def test_calls_with_and_without_the_library(device, monkeypatch):
    """The same results, by buckets, of whatever layout."""
    found = []
    for has_library in (True, False):
        monkeypatch.setattr(inputs, "places_of", places_of if has_library else lambda of: None)
        graphed = capture(
            lambda x, m: (x * m).cumsum(0),
            (numbers(4, 6), numbers(4, 6)),
            dims=({0: "n", 1: "k"}, {0: "n", 1: "k"}),
            buckets={"n": (2, 4), "k": (3, 6)},
            max_padding=99,
        )
        for n, k in ((4, 6), (1, 2), (3, 3), (2, 6), (4, 1)):
            for x in (numbers(n, k), numbers(k, n).t(), numbers(1, k).expand(n, k)):
                found.append(graphed(x, numbers(n, k) + 1).clone())
    half = len(found) // 2
    assert all(map(torch.equal, found[:half], found[half:]))


def test_autograd_sees_that_inputs_were_written_over(device):
    graphed = capture(lambda x: x * 2, torch.ones(3))
    (static,) = graphed.inputs
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * static).sum()
    graphed(torch.zeros(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = (weight * static).sum()
    graphed(static)  # nothing is copied
    loss.backward()


def test_wrong_calls():
    made, _ = make_inputs(numbers(3, 4))
    load = made.prepare((), ())
    assert library().copy_into(load.native, b"", 0) is False
    for wrong in ((None, b"", 0), (load.native, "text", 0), (load.native, b"")):
        with pytest.raises((TypeError, ValueError)):
            library().copy_into(*wrong)
    with pytest.raises(ValueError, match="no such tensor"):
        library().make_load(-1, 0, 8, ((0, 4, (2,), ()),))


def test_a_load_keeps_nothing():
    sizes = (12345, 2)
    before = sys.getrefcount(sizes)
    load = library().make_load(-1, 0, 0, ((0, 4, sizes, (2, 1)),))
    gc.collect()
    assert load is not None and sys.getrefcount(sizes) == before
