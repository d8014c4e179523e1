"""Captured callables within captures, and threads that wait for each other; no GPU is needed."""

from __future__ import annotations

import threading

import pytest
import torch
from recorded_graphs import install
from torch import nn

from diglot.graphs import GraphError, Pool, capture, training_step


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


def make_step(pool=None, model=None):
    model = nn.Linear(2, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    example = torch.ones(3, 2), torch.ones(3, 2)
    return training_step(model, nn.MSELoss(), optimizer, example, pool=pool, backend="torch")


def test_another_thread_s_capture_needs_a_callable_that_waits_for_it(device):
    """Neither waits for the other: not in the warm-up's stream, and not in one beside it."""
    started = threading.Event()
    inner = capture(torch.neg, torch.ones(2), lazy=True)

    def outer(x):
        if not device.is_capturing():
            first.start()
            started.wait()
            first.join(0.05)  # it is on its way to a capture
        y = inner(x)
        warm_up, device.stream = device.stream, 3
        y = y + inner(x)
        device.stream = warm_up
        return y

    def call():
        started.set()
        found.append(inner(torch.ones(2)).tolist())

    found = []
    first = threading.Thread(target=call, daemon=True)
    second = threading.Thread(target=lambda: capture(outer, torch.ones(2), warmup=1), daemon=True)
    second.start()
    second.join(20), first.join(20)
    assert not second.is_alive() and found == [[-1, -1]]


@pytest.mark.parametrize("what", ["report", "bytes", "graphs", "inputs", "step"])
def test_who_asks_waits_for_a_capture(device, what):
    begun, may_end, pool = threading.Event(), threading.Event(), Pool("cpu")

    def slow(x):
        begun.set()
        may_end.wait()
        return x + 1

    step = make_step(pool) if what == "step" else None
    graphed = capture(slow, torch.ones(2), lazy=True, pool=pool)
    ask = {
        "report": graphed.report,
        "bytes": lambda: pool.bytes,
        "graphs": lambda: pool.graphs,
        "inputs": lambda: graphed.inputs,
        "step": lambda: step.report(),
    }[what]
    answers = []
    captures = threading.Thread(target=lambda: graphed(torch.ones(2)), daemon=True)
    captures.start()
    begun.wait()
    asks = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asks.start()
    asks.join(0.05)
    assert not answers
    may_end.set()
    captures.join(20), asks.join(20)
    assert len(answers) == 1
    if what == "report":
        assert len(answers[0].graphs) == 1


def is_multithreaded():
    """Whether PyTorch gives backward passes on a GPU to a thread of their own."""
    return torch._C._is_multithreading_enabled()


def test_backward_passes_of_captures_are_in_their_thread(device):
    """PyTorch's thread for them may wait for the lock of a pool that this thread holds."""
    found = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.append(is_multithreaded())
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            found.append(is_multithreaded())
            return gradient * 2

    capture(Noted.apply, torch.ones(2, requires_grad=True))
    assert found == [False] * 8  # three warm-ups and a capture
    linear = nn.Linear(2, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            return Noted.apply(self.linear(x))

    make_step(model=Model())
    assert found == [False] * 16
    assert is_multithreaded()


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_callable_beside_the_stream_of_a_warm_up(device, is_shared):
    """On a stream that the function forks it is the function itself, as in the capture."""
    pool = Pool("cpu")
    x = torch.ones(2, requires_grad=True)
    inner = capture(torch.exp, x, pool=pool)
    assert device.captures == 2

    def outer(x):
        before, device.stream = device.stream, 3
        y = inner(x)
        device.stream = before
        return y * 2

    captured = capture(outer, x, pool=pool if is_shared else None)
    assert device.captures == 4 and inner.graphs["exp (one shape)"].replays == 0
    captured(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach().exp())


def test_a_lazy_callable_within_a_capture(device):
    """It is not captured for that; afterwards it is, and both go on."""
    inner = capture(torch.neg, torch.ones(2), lazy=True)
    outer = capture(lambda x: inner(x) + 1, torch.ones(2))
    assert device.captures == 1 and not inner.graphs
    assert inner(torch.ones(2)).tolist() == [-1, -1] and device.captures == 2
    assert outer(torch.ones(2)).tolist() == [0, 0]


def test_an_error_ends_what_is_run_for_a_capture(device):
    """Later calls are replays, and backward passes have their thread again."""
    inner = capture(torch.neg, torch.ones(2))

    def fails(x):
        inner(x)
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            capture(fails, torch.ones(2))
        assert inner(torch.ones(2)).tolist() == [-1, -1]
    assert inner.graphs["neg (one shape)"].replays == 2 and is_multithreaded()


def test_other_threads_replay_during_a_warm_up(device):
    """The callable of another pool waits for nobody."""
    other, found = capture(torch.neg, torch.ones(2)), []

    def slow(x):
        if not device.is_capturing():
            thread = threading.Thread(target=lambda: found.append(other(x).tolist()), daemon=True)
            thread.start()
            thread.join(20)
        return x + 1

    capture(slow, torch.ones(2), warmup=1)
    assert found == [[-1, -1]] and other.graphs["neg (one shape)"].replays == 1


def test_a_step_is_no_part_of_another_graph(device):
    step = make_step()
    batch = torch.ones(3, 2), torch.ones(3, 2)
    with pytest.raises(GraphError, match="cannot be a part of another graph"):
        capture(lambda x: x + step(*batch), torch.ones(()))
    step(*batch)
