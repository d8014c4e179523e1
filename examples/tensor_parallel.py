"""A Llama split over several GPUs, whose partial sums diglot adds up on the backend of your choice.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py
    torchrun --nproc-per-node 2 examples/tensor_parallel.py --backend triton --batch 16 --layers 2

Each rank has a part of the heads and of the hidden layer of the MLP. So its products give a part of
every sum. `diglot.distributed.all_reduce_add_rms_norm` adds the ranks' parts and the residual, and
normalizes, in one launch. The program decodes: each step takes one token of every sequence, and
attends to a cache of keys and values. It prints tokens per second with NCCL and with diglot, in
turns, inside CUDA graphs. Weights are random; the result is compared with that of one GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import diglot.distributed

EPS, HEAD = 1e-5, 128  # of the norms; the width of a head
ROUNDS, STEPS = 15, 20

# The sum of a tensor over all ranks, a residual and a norm: the norm, and the new residual.
Join = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Shape:
    """Dimensions: by default of Llama 3.1 8B, with four of its layers."""

    width: int = 4096
    heads: int = 32
    groups: int = 8  # heads of keys and values
    hidden: int = 14336
    layers: int = 4
    cached: int = 1024  # tokens of each sequence in the cache


class Llama:
    """A rank's part of the layers, with one new token for each of some sequences.

    Args:
        shape: of the whole model.
        batch: the number of sequences.
        rank, ranks: which part. All ranks draw the same weights, and keep their part.
    """

    def __init__(
        self, shape: Shape, batch: int, rank: int, ranks: int, device: str, dtype: torch.dtype
    ) -> None:
        self.shape, self.ranks = shape, ranks
        check_parts(ranks, shape.groups, shape.hidden)
        numbers = torch.Generator(device).manual_seed(0)

        def random(*sizes: int, scale: float = 1.0) -> torch.Tensor:
            made = torch.randn(*sizes, generator=numbers, device=device) * scale
            return made.to(dtype)

        def part(whole: torch.Tensor, dim: int) -> torch.Tensor:
            return whole.chunk(ranks, dim)[rank].contiguous()

        s, keys = shape, shape.groups * HEAD
        self.layers = []
        for _ in range(s.layers):
            self.layers.append(
                {
                    "query": part(random(s.heads * HEAD, s.width, scale=s.width**-0.5), 0),
                    "key": part(random(keys, s.width, scale=s.width**-0.5), 0),
                    "value": part(random(keys, s.width, scale=s.width**-0.5), 0),
                    "out": part(random(s.width, s.heads * HEAD, scale=s.width**-0.5), 1),
                    "gate": part(random(s.hidden, s.width, scale=s.width**-0.5), 0),
                    "up": part(random(s.hidden, s.width, scale=s.width**-0.5), 0),
                    "down": part(random(s.width, s.hidden, scale=s.hidden**-0.5), 1),
                    "keys": part(random(batch, s.groups, s.cached, HEAD), 1),
                    "values": part(random(batch, s.groups, s.cached, HEAD), 1),
                    "first_norm": 1 + random(s.width, scale=0.1),
                    "second_norm": 1 + random(s.width, scale=0.1),
                }
            )
        self.last_norm = 1 + random(s.width, scale=0.1)
        self.x = random(batch, s.width)

    def step(self, join: Join) -> torch.Tensor:
        """The last states of one token for each sequence: [batch, width]."""
        residual = self.x
        x = diglot.rms_norm(residual, residual.shape[-1:], self.layers[0]["first_norm"], EPS)
        norms = [layer["first_norm"] for layer in self.layers[1:]] + [self.last_norm]
        for layer, next_norm in zip(self.layers, norms, strict=True):
            x, residual = join(self._attend(x, layer), residual, layer["second_norm"])
            hidden = F.silu(F.linear(x, layer["gate"])) * F.linear(x, layer["up"])
            x, residual = join(F.linear(hidden, layer["down"]), residual, next_norm)
        return x

    def _attend(self, x: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
        """This rank's heads' part of the sum. The new token takes the cache's last place."""
        query, key, value = (
            F.linear(x, layer[name]).unflatten(-1, (-1, HEAD)) for name in ("query", "key", "value")
        )
        layer["keys"][:, :, -1] = key
        layer["values"][:, :, -1] = value
        attended = F.scaled_dot_product_attention(
            query[:, :, None], layer["keys"], layer["values"], enable_gqa=True
        )
        return F.linear(attended.flatten(1), layer["out"])


def check_parts(ranks: int, *sizes: int) -> None:
    """Raises ValueError unless all ranks have equal parts."""
    if any(size % ranks for size in sizes):
        raise ValueError(f"{ranks} ranks have no equal parts of {' and '.join(map(str, sizes))}")


def join_on(backend: str) -> Join:
    """One launch of diglot, or with "torch" NCCL's all-reduce and then a norm."""

    def join(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if backend == "torch":
            dist.all_reduce(x)
            return diglot.add_rms_norm(x, residual, x.shape[-1:], weight, EPS)
        return diglot.distributed.all_reduce_add_rms_norm(x, residual, weight, EPS, backend=backend)

    return join


def join_alone(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """On one GPU there is nothing to add up but the residual."""
    return diglot.add_rms_norm(x, residual, x.shape[-1:], weight, EPS)


def tokens_per_second(steps: dict[str, Callable[[], object]], batch: int) -> dict[str, float]:
    """Medians of CUDA graphs of one step each, replayed in turns."""
    graphs = {}
    for name, step in steps.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], capture_error_mode="thread_local"):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            dist.barrier()
            graph.replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(STEPS):
                graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e-3 / STEPS)
    return {name: batch / statistics.median(of) for name, of in times.items()}


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """The arguments that programs on several GPUs share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["cuda", "triton"], nargs="+", default=["cuda"])
    parser.add_argument("--output", type=Path, help="a file for rank 0's figures, as JSON")
    return parser


@contextlib.contextmanager
def on_ranks(output: Path | None, **facts: Any) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Context manager: this rank, their number, and rows of figures that rank 0 writes at the end.

    Each rank has a GPU, and the group a workspace. Nothing is recorded for gradients.
    """
    os.environ |= {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
    rank, rows = int(os.environ["LOCAL_RANK"]), list[dict[str, Any]]()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    space, ranks = diglot.distributed.Workspace(), dist.get_world_size()
    with torch.inference_mode():
        yield rank, ranks, rows
    space.synchronize()
    space.close()
    if rank == 0 and output is not None:
        facts |= {"gpu": torch.cuda.get_device_name(), "ranks": ranks, "torch": torch.__version__}
        facts |= {"commit": os.environ.get("DIGLOT_COMMIT", "unknown"), "rows": rows}
        output.write_text(json.dumps(facts, indent=1) + "\n")
    dist.destroy_process_group()


def measured(
    what: str, tokens: int, steps: dict[str, Callable[[], object]], errors: dict[str, float]
) -> dict[str, Any]:
    """A row of figures, which rank 0 prints."""
    speeds = tokens_per_second(steps, tokens)
    if dist.get_rank() == 0:
        told = ", ".join(f"{name} {speed:,.0f} tokens/s" for name, speed in speeds.items())
        print(f"{what}: {told}", flush=True)
    return {"what": what, "tokens_per_s": speeds, "errors": errors}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--layers", type=int, default=Shape.layers)
    given = parser.parse_args(arguments)
    shape = Shape(layers=given.layers)
    with on_ranks(given.output, layers=given.layers) as (rank, ranks, rows):
        for batch in given.batch:
            alone = Llama(shape, batch, 0, 1, "cuda", torch.bfloat16).step(join_alone)
            model = Llama(shape, batch, rank, ranks, "cuda", torch.bfloat16)
            names = ["torch", *given.backend]
            joins = {name: join_on(name) for name in names}
            errors = {}
            for name, join in joins.items():
                difference = (model.step(join) - alone).float()
                errors[name] = float(difference.norm() / alone.float().norm())
                if not errors[name] < 0.02:
                    raise RuntimeError(f"{name}: the relative error is {errors[name]:.3g}")
            steps: dict[str, Callable[[], object]] = {
                name: functools.partial(model.step, join) for name, join in joins.items()
            }
            rows.append(measured(f"batch {batch}", batch, steps, errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
