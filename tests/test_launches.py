"""What an op launches on a chunk is watched once, and remembered for calls that are alike."""

from __future__ import annotations

import functools

import pytest
import torch
from backends import DEVICE, HAS_CUDA

import diglot
from diglot.backends.runs import record_runs
from diglot.pipeline import launches
from diglot.pipeline.launches import Like, Op

pytestmark = [] if HAS_CUDA else [pytest.mark.gpu]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(launches, "_remembered", {})


def op(fn, state=None):
    fn = functools.partial(fn, backend="cuda")
    return Op(fn, lambda *chunks: ((fn(*chunks),), True), state)


def look(fn, chunk, state=None):
    """The verdict, and how many launches that took."""
    with record_runs() as runs:
        of = op(fn, state)
        like = [Like(chunk.shape, chunk.dtype)]
        seen = of.look(like, chunk.device, lambda: of.watch([chunk]))
    return seen, len(runs)


X = torch.randn(4, 5, device=DEVICE)


def test_the_second_look_launches_nothing():
    first, count = look(diglot.gelu, X)
    again, none = look(diglot.gelu, X.clone())
    assert (count, none) == (1, 0)
    assert again == first
    assert (first.launch.launcher, first.launch.places) == ("gelu_forward", (0, 1))


def test_what_differs_is_looked_at():
    scaled = functools.partial(diglot.add, other=1)
    calls = [
        (diglot.gelu, X, None),
        (diglot.gelu, X, "other state"),
        (diglot.gelu, X.half(), None),
        (diglot.gelu, X[:3].clone(), None),
        (functools.partial(diglot.gelu, approximate="tanh"), X, None),
        (scaled, X, None),
        (functools.partial(scaled, alpha=1), X, None),
        (functools.partial(scaled, alpha=1.0), X, None),
        (functools.partial(diglot.add, other=1.0), X, None),
        (functools.partial(diglot.add, other=-0.0), X, None),
        (functools.partial(diglot.add, other=0.0), X, None),
    ]
    assert [look(*call)[1] for call in calls] == [1] * len(calls)
    assert [look(*call)[1] for call in calls] == [0] * len(calls)


def test_with_a_tensor_among_the_options_it_is_looked_at_each_time():
    other = torch.randn(5, device=DEVICE)
    fn = functools.partial(diglot.add, other=other)
    for _ in range(2):
        seen, count = look(fn, X)
        assert count == 1
        assert seen.launch.places[0] == 0
        assert any(argument is other for argument in seen.launch.arguments)


def test_another_default_dtype():
    """What integers and a float give."""
    x = torch.arange(6, device=DEVICE)
    fn = functools.partial(diglot.add, other=0.5)
    assert diglot.stream_map(fn, x.cpu(), backend="cuda").dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert diglot.stream_map(fn, x.cpu(), backend="cuda").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_callable_is_not_remembered():
    class Cast:
        dtype = torch.float32
        __hash__ = None

        def __call__(self, x):
            return x.to(self.dtype)

    cast, none = Cast(), torch.empty(0, 3)
    assert diglot.stream_map(cast, none).dtype == torch.float32
    cast.dtype = torch.float16
    assert diglot.stream_map(cast, none).dtype == torch.float16
    assert not launches._remembered


def test_rows_alone_differ():
    def launch(fn, rows):
        return look(fn, X[:1].expand(rows, 5).contiguous())[0].launch

    one = launch(diglot.gelu, 1)
    assert one.differs_in_rows_alone(launch(diglot.gelu, 7), (1, 7))
    assert not one.differs_in_rows_alone(launch(diglot.gelu, 7), (1, 6))
    tanh = functools.partial(diglot.gelu, approximate="tanh")
    assert not one.differs_in_rows_alone(launch(tanh, 7), (1, 7))
    wide = look(diglot.gelu, torch.randn(7, 6, device=DEVICE))[0].launch
    assert not one.differs_in_rows_alone(wide, (1, 7))


def test_not_for_ever(monkeypatch):
    monkeypatch.setattr(launches, "MOST_REMEMBERED", 3)
    for size in range(1, 9):
        look(diglot.gelu, torch.randn(size, device=DEVICE))
        assert len(launches._remembered) <= 3
