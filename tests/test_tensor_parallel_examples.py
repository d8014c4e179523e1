"""Models split over two ranks compute what whole ones do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from backends import DEVICE, KERNELS
from peers import in_group

from diglot import distributed

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    names = "tensor_parallel", "tensor_parallel_encoder", "sentence_encoder"
    yield [importlib.import_module(name) for name in names[:2]]
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("backend", [*KERNELS])
def test_llama(examples, backend):
    llama, _ = examples
    shape = llama.Shape(width=64, heads=4, groups=2, hidden=48, layers=2, cached=5)

    def step(rank, ranks, join):
        return llama.Llama(shape, 3, rank, ranks, "cpu", torch.float32).step(join)

    def work(rank):
        distributed.Workspace(timeout=60.0)
        return step(rank, 2, llama.join_on(backend))

    expected = step(0, 1, llama.join_alone)
    for made in in_group(2, work):
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", [*KERNELS])
def test_encoder(examples, backend):
    _, encoder = examples
    weights = encoder.random_weights("cpu")
    ids = torch.arange(6).reshape(2, 3)
    mask = torch.ones_like(ids, dtype=torch.bool)

    def work(rank):
        distributed.Workspace(timeout=60.0)
        return encoder.PartOfEncoder(weights, rank, 2, backend).encode(ids, mask)

    expected = encoder.PartOfEncoder(weights, 0, 1, "torch").encode(ids, mask)
    for made in in_group(2, work):
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-4)


def test_parts_are_equal(examples):
    llama, encoder = examples
    with pytest.raises(ValueError, match="3 ranks have no equal parts of 2 and 48"):
        llama.Llama(llama.Shape(64, 4, 2, 48, 1, 5), 1, 0, 3, "cpu", torch.float32)
    with pytest.raises(ValueError, match="8 ranks have no equal parts of 12 and 1536"):
        encoder.PartOfEncoder({}, 0, 8, "torch")
