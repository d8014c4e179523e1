"""The sentence encoder served by CUDA graphs: requests of random sizes, and one large batch.

Its weights are random.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from diglot import graphs
from diglot.bench.evidence import load_example
from diglot.bench.graphs import OTHER, OURS, judge, row_of, speed
from diglot.bench.harness import DEVICE, Row
from diglot.tools import measure

example = load_example("graphs_encoder")
network: Any = importlib.import_module("sentence_encoder")  # which it imports

LARGE = (64, 512)  # batch, length
REQUESTS = 500
WIDTH, WIDE, TOKENS, POSITIONS = 384, 1536, 30522, 512


# Of a layer's products: outputs and inputs.
PRODUCTS = {
    **{f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")},
    "attention.output.dense": (WIDTH, WIDTH),
    "intermediate.dense": (WIDE, WIDTH),
    "output.dense": (WIDTH, WIDE),
}


def weight_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of the encoder's weights."""
    for name, count in (("word", TOKENS), ("token_type", 2), ("position", POSITIONS)):
        yield f"embeddings.{name}_embeddings.weight", (count, WIDTH)
    norms = ["embeddings"]
    for layer in (f"encoder.layer.{number}" for number in range(network.LAYERS)):
        norms += [f"{layer}.attention.output", f"{layer}.output"]
        for name, shape in PRODUCTS.items():
            yield f"{layer}.{name}.weight", shape
            yield f"{layer}.{name}.bias", shape[:1]
    for norm in norms:
        yield f"{norm}.LayerNorm.weight", (WIDTH,)
        yield f"{norm}.LayerNorm.bias", (WIDTH,)


class RandomEncoder(network.Encoder):  # type: ignore[misc]
    """An encoder of random weights, which takes as long as the trained one."""

    def __init__(self) -> None:
        self.ops, self.device, self.training = example.Ops.of_diglot(), DEVICE, False
        torch.manual_seed(0)
        self.weights = {
            name: 0.05 * torch.randn(shape, device=DEVICE) + name.endswith("LayerNorm.weight")
            for name, shape in weight_shapes()
        }


def large_batch() -> Iterator[Row]:
    """One large batch, where a graph has nothing to gain."""
    encoder = RandomEncoder()
    ids = torch.randint(1000, example.WORDS, LARGE, device=DEVICE)
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        graphed = graphs.capture(encoder.encode, (ids, mask))
        static = graphed.inputs
        torch.testing.assert_close(graphed(ids, mask), encoder.encode(ids, mask))
        ways = {"eager": lambda: encoder.encode(ids, mask), "graphs": lambda: graphed(*static)}
        times = measure.interleaved(ways, budget_ms=1500)
    rows = {
        name: row_of("large batch", name, "device", **timing.figures())
        for name, timing in times.items()
    }
    judge(rows["graphs"], "speed over eager", speed(rows, "graphs", "eager"), 0.98)
    yield from rows.values()


def requests() -> Iterator[Row]:
    """Requests of random sizes by buckets, one after the other: eagerly, and by graphs. The encoder
    that `torch.compile` compiles pads them to the same buckets. Each has seen every bucket before.
    """
    found = example.serve(RandomEncoder(), REQUESTS)
    rows = {
        name: row_of(
            "requests", name, "wall", buckets=example.BUCKETS,
            time_us=1e3 * each.p50, p99_us=1e3 * each.p99, reserved_bytes=each.reserved,
        )
        for name, each in found.items()
    }  # fmt: skip
    for name, other, p50, p99 in (("graphs", "eager", 2.0, 1.3), (OURS, OTHER, 1.0, 1.0)):
        judge(rows[name], f"p50 over {other}", speed(rows, name, other), p50)
        judge(rows[name], f"p99 over {other}", speed(rows, name, other, "p99_us"), p99)
    yield from rows.values()
