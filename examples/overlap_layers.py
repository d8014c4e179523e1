"""Products on one stream beside the all-reduces of another: what that gains, and a timeline.

    torchrun --nproc-per-node 2 examples/overlap_layers.py
    torchrun --nproc-per-node 2 examples/overlap_layers.py --backend cuda triton --blocks 16 32

Each rank has a part of every layer's columns, so its product gives a part of every sum. The tokens
come in two halves. While one half's sums travel, the other half's product runs. The two share the
SMs: an all-reduce has `--blocks` blocks, and a product leaves as many SMs to them. The program
prints tokens per second of this order and of one stream, in turns, inside CUDA graphs. Weights are
random; the results are compared with those of one GPU.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from tensor_parallel import arguments_of, measured, on_ranks

import diglot.distributed

LANES = ("products", "all-reduces")
COLUMNS = 100  # of a printed timeline


class Span(NamedTuple):
    """What ran when, in milliseconds since the first began."""

    lane: str
    name: str
    begin: float
    end: float


class Layers:
    """A rank's part of some layers without anything between them.

    Args:
        width: of the layers.
        tokens: of both halves.
        backend: adds up the ranks' sums; "torch" is NCCL.
        blocks: of an all-reduce, at most. A product beside it leaves them as many SMs.
    """

    def __init__(self, layers: int, width: int, tokens: int, backend: str, blocks: int) -> None:
        self.backend, self.blocks, self.group = backend, blocks, dist.new_group()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        bytes = tokens * width * torch.bfloat16.itemsize
        # From three ranks on, each launch keeps its part of the sums in the workspace, too.
        most_staged = bytes if ranks > 2 else 1 << 20
        self.space = diglot.distributed.Workspace(
            self.group, most_staged=most_staged, symmetric=bytes
        )
        # A product writes to the workspace, where the peers read it in place.
        self.parts = self.space.empty(tokens, width, dtype=torch.bfloat16)
        numbers = torch.Generator("cuda").manual_seed(0)
        random = functools.partial(torch.randn, generator=numbers, device="cuda")
        self.x = random(tokens, width).bfloat16()
        self.whole = [(random(width, width) * width**-0.5).bfloat16() for _ in range(layers)]
        self.columns = slice(rank * width // ranks, (rank + 1) * width // ranks)
        self.weights = [weight[:, self.columns].contiguous() for weight in self.whole]
        self.stream = torch.cuda.Stream()
        self.marks: list[tuple[str, str, torch.cuda.Event, torch.cuda.Event]] | None = None

    def alone(self) -> torch.Tensor:
        """The result on one GPU."""
        x = self.x
        for weight in self.whole:
            x = x @ weight.T
        return x

    def in_a_row(self) -> torch.Tensor:
        """Each product, and then its all-reduce, of all tokens."""
        self.space.blocks, x = None, self.x  # nobody else needs an SM
        for weight in self.weights:
            torch.mm(x[:, self.columns], weight.T, out=self.parts)
            x = self._reduce(self.parts)
        return x

    def beside(self) -> torch.Tensor:
        """One half's product beside the other half's all-reduce."""
        halves, parts = list(self.x.chunk(2)), self.parts.chunk(2)
        ends = [torch.cuda.Event(), torch.cuda.Event()]
        main = torch.cuda.current_stream()
        self.space.blocks, kept = self.blocks, []  # what one stream frees, the other may still use
        with shared_multiprocessors(self.blocks):
            for layer, weight in enumerate(self.weights):
                for half in range(2):
                    name = f"layer {layer}, half {half}"
                    if layer > 0:
                        main.wait_event(ends[half])
                    with self._marked(LANES[0], name):
                        torch.mm(halves[half][:, self.columns], weight.T, out=parts[half])
                    self.stream.wait_stream(main)
                    with torch.cuda.stream(self.stream):
                        with self._marked(LANES[1], name):
                            halves[half] = self._reduce(parts[half])
                        ends[half].record()
                    kept.append(halves[half])
        main.wait_stream(self.stream)
        return torch.cat(halves)

    def timeline(self) -> list[Span]:
        """When each product and each all-reduce ran."""
        self.beside()
        self.marks = []
        dist.barrier()
        self.beside()
        torch.cuda.synchronize()
        first = self.marks[0][2]
        spans = [
            Span(lane, name, first.elapsed_time(begin), first.elapsed_time(end))
            for lane, name, begin, end in self.marks
        ]
        self.marks = None
        return spans

    def _reduce(self, part: torch.Tensor) -> torch.Tensor:
        return diglot.distributed.all_reduce(part, group=self.group, backend=self.backend)

    @contextlib.contextmanager
    def _marked(self, lane: str, name: str) -> Iterator[None]:
        if self.marks is None:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self.marks.append((lane, name, begin, end))


@contextlib.contextmanager
def shared_multiprocessors(count: int) -> Iterator[None]:
    """Context manager: products of PyTorch leave that many SMs to other kernels."""
    before = torch._C._get_sm_carveout_experimental()
    torch._C._set_sm_carveout_experimental(count)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(before)


def drawn(spans: Sequence[Span]) -> str:
    """The timeline as text: a line for each lane, with a mark for each half."""
    whole = max(span.end for span in spans)
    lines = []
    for lane in LANES:
        line = [" "] * COLUMNS
        for span in spans:
            if span.lane == lane:
                begin, end = (int(at / whole * (COLUMNS - 1)) for at in (span.begin, span.end))
                line[begin : end + 1] = span.name[-1] * (end + 1 - begin)
        lines.append(f"{lane:>11} |{''.join(line)}|")
    return "\n".join([*lines, f"{'':>11}  0 ms{whole:>{COLUMNS - 7}.2f} ms"])


def write_trace(spans: Sequence[Span], path: Path) -> None:
    """The timeline as a trace, which Perfetto and chrome://tracing show."""
    events = [
        {
            "ph": "X",
            "name": span.name,
            "pid": "this GPU",
            "tid": span.lane,
            "ts": 1e3 * span.begin,
            "dur": 1e3 * (span.end - span.begin),
        }
        for span in spans
    ]
    path.write_text(json.dumps({"traceEvents": events}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--trace", type=Path, help="a file for rank 0's timeline, as a trace")
    given = parser.parse_args(arguments)
    facts = {"layers": given.layers, "width": given.width, "tokens": given.tokens}
    torch.backends.cuda.preferred_blas_library("cublaslt")  # which can leave SMs to others
    with on_ranks(given.output, **facts) as (rank, _, rows):
        for name in given.backend:
            for blocks in given.blocks:
                layers = Layers(given.layers, given.width, given.tokens, name, blocks)
                alone = layers.alone().float()
                steps: dict[str, Callable[[], torch.Tensor]] = {
                    "in a row": layers.in_a_row,
                    "beside": layers.beside,
                }
                errors = {}
                for order, step in steps.items():
                    errors[order] = float((step().float() - alone).norm() / alone.norm())
                    if not errors[order] < 0.02:
                        raise RuntimeError(f"{order}: the relative error is {errors[order]:.3g}")
                row = measured(f"{name}, {blocks} blocks", given.tokens, dict(steps), errors)
                spans = layers.timeline()
                rows.append({**row, "timeline": spans})
                if rank == 0:
                    print(drawn(spans), flush=True)
                    if given.trace is not None:
                        write_trace(spans, given.trace)
                layers.space.synchronize()
                layers.space.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
