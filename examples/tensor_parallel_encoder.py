"""The sentence encoder split over several GPUs, whose partial sums diglot adds up.

    torchrun --nproc-per-node 2 examples/tensor_parallel_encoder.py
    torchrun --nproc-per-node 2 examples/tensor_parallel_encoder.py --backend cuda triton

It is the network of sentence_encoder.py. Each rank has a part of the heads and of the hidden layer,
so a layer has two all-reduces. Its twelve heads have equal parts for 2, 3, 4 and 6 ranks. The
program prints tokens per second with NCCL and with diglot, in turns, inside CUDA graphs, and
compares the embeddings with those of one GPU. Weights are random, and a sentence has 64 tokens.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from sentence_encoder import HEAD, LAYERS, Encoder, Ops
from tensor_parallel import arguments_of, check_parts, measured, on_ranks

import diglot.distributed

WIDTH, HIDDEN, WORDS, POSITIONS, TOKENS = 384, 1536, 30522, 512, 64
WHOLE = Ops.of_torch()


def random_weights(device: str) -> dict[str, torch.Tensor]:
    """Weights of the network's names and shapes, the same on every rank."""
    numbers = torch.Generator(device).manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (WORDS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        square = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        for name in [*square, f"{layer}.attention.output.dense"]:
            shapes |= {f"{name}.weight": (WIDTH, WIDTH), f"{name}.bias": (WIDTH,)}
        shapes[f"{layer}.intermediate.dense.weight"] = (HIDDEN, WIDTH)
        shapes[f"{layer}.intermediate.dense.bias"] = (HIDDEN,)
        shapes[f"{layer}.output.dense.weight"] = (WIDTH, HIDDEN)
        shapes[f"{layer}.output.dense.bias"] = (WIDTH,)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    made = {
        name: torch.randn(shape, generator=numbers, device=device) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }
    for name in norms:
        made |= {f"{name}.weight": torch.ones(WIDTH, device=device)}
        made |= {f"{name}.bias": torch.zeros(WIDTH, device=device)}
    return made


class PartOfEncoder(Encoder):
    """A rank's part of the encoder.

    Args:
        weights: of the whole network.
        backend: the backend that adds up the ranks' sums; "torch" is NCCL.
    """

    def __init__(
        self, weights: dict[str, torch.Tensor], rank: int, ranks: int, backend: str
    ) -> None:
        self.ops, self.training, self.ranks, self.backend = WHOLE, False, ranks, backend
        self.weights = dict(weights)
        check_parts(ranks, WIDTH // HEAD, HIDDEN)
        for name, whole in weights.items():
            is_split = ".self." in name or ".intermediate." in name
            is_summed = name.endswith("output.dense.weight")
            if ranks > 1 and (is_split or is_summed):
                self.weights[name] = whole.chunk(ranks, int(is_summed))[rank].contiguous()

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if self.ranks == 1 or not name.endswith("output.dense"):
            return super()._linear(x, name)
        part = F.linear(x, self.weights[f"{name}.weight"])
        whole = diglot.distributed.all_reduce(part, backend=self.backend)
        return whole + self.weights[f"{name}.bias"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 16, 256])
    given = parser.parse_args(arguments)
    with on_ranks(given.output) as (rank, ranks, rows):
        weights = random_weights("cuda")
        for count in given.sentences:
            numbers = torch.Generator("cuda").manual_seed(count)
            ids = torch.randint(WORDS, (count, TOKENS), generator=numbers, device="cuda")
            mask = torch.ones_like(ids, dtype=torch.bool)
            alone = PartOfEncoder(weights, 0, 1, "torch").encode(ids, mask)
            errors: dict[str, float] = {}
            steps: dict[str, Callable[[], object]] = {}
            for name in ("torch", *given.backend):
                part = PartOfEncoder(weights, rank, ranks, name)
                errors[name] = float((part.encode(ids, mask) - alone).abs().max())
                if not errors[name] < 1e-3:
                    raise RuntimeError(f"{name}: embeddings differ by {errors[name]:.3g}")
                steps[name] = functools.partial(part.encode, ids, mask)
            rows.append(measured(f"{count} sentences", count * TOKENS, steps, errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
