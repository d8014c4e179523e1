"""The words of barriers: one for each stream, and one for each captured launch, for ever."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diglot
from diglot.ops import barrier_word as module
from diglot.ops.barrier_word import barrier_word


@pytest.fixture
def captures(monkeypatch):
    """A machine all of whose launches are captured, as far as the words go; they lie on the CPU."""
    monkeypatch.setattr(module, "WORDS", 2)
    for name in ("_spare", "_captured", "_words"):
        monkeypatch.setattr(module, name, type(getattr(module, name))())
    monkeypatch.setattr(module, "is_captured", lambda device: True)
    monkeypatch.setattr(module, "beside_captures", lambda device: contextlib.nullcontext())
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **how: zeros(*size, **how))


def test_no_word_is_given_twice(captures):
    """Nor is its memory another's, though nobody but a graph holds its address."""
    device = torch.device("cuda", 0)
    addresses = []
    for _ in range(7):
        word = barrier_word(device)
        assert word.shape == (1,) and word.dtype == torch.int32 and word.item() == 0
        word.fill_(1)
        addresses.append(word.data_ptr())
        del word
        torch.full((2,), 7, dtype=torch.int32)
    assert len(set(addresses)) == 7
    kept = {t.data_ptr() + 4 * i for t in module._captured for i in range(2)}
    assert set(addresses) <= kept
    assert all((words <= 1).all() for words in module._captured)


def test_devices_have_words_of_their_own(captures):
    first, second = (barrier_word(torch.device("cuda", index)) for index in (0, 1))
    assert len(module._captured) == 2 and first.data_ptr() != second.data_ptr()


def test_modes_have_no_part_in_words(captures):
    with FakeTensorMode(), torch.inference_mode():
        words = [barrier_word(torch.device("cuda", 0)) for _ in range(3)]
    for word in words:
        assert not isinstance(word, FakeTensor) and not word.is_inference()


def test_threads_share_no_word_of_their_own_streams(captures, monkeypatch):
    monkeypatch.setattr(module, "is_captured", lambda device: False)
    words = []
    for handle in (0, module.PER_THREAD_STREAM):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index, h=handle: h,
                            raising=False)  # fmt: skip
        take = lambda: words.append(barrier_word(torch.device("cuda", 0)))  # noqa: E731
        take()
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert words[0] is words[1] and words[2] is not words[3]
    assert len({word.data_ptr() for word in words}) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_more_captures_than_words_at_once(backend, monkeypatch):
    monkeypatch.setattr(module, "WORDS", 2)
    monkeypatch.setattr(module, "_spare", {})
    x = torch.randn(300_000, device="cuda")
    expected = diglot.global_softmax(x, backend=backend)
    graphs = []
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = diglot.global_softmax(x, backend=backend)
        graphs.append((graph, result))
    torch.cuda.empty_cache()
    rest = [torch.full((64,), -1, dtype=torch.int32, device="cuda") for _ in range(100)]
    for _ in range(3):
        for graph, result in graphs:
            result.zero_()
            graph.replay()
            assert torch.equal(result, expected)
    assert all((t == -1).all() for t in rest)
