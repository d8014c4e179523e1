"""Where time goes: an MLP's flame graph, what cdist launches, and CUDA_LAUNCH_BLOCKING.

    python examples/lessons/mlp_profile.py

A flame graph shows whole stacks: wide boxes are where time goes, and what a box calls lies above
it. The MLP's is written to out/mlp_flame.svg; one layer is as wide as the next. `torch.cdist` is
one operator that runs several kernels, so a profile is needed to know them. Launches return before
the work is done, which hides where an error or a delay comes from: with CUDA_LAUNCH_BLOCKING=1, set
before the process starts, each launch waits. That is for finding errors, and never for timing.
Without a GPU operators stand for kernels, and the last part is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lesson import DEVICE, ON_GPU, Row, Table, show

# isort: split
import torch

import diglot

LAYERS, WIDTH, BATCH = (64, 2048, 1024) if ON_GPU else (4, 64, 8)
FLAME = Path("out/mlp_flame.svg")

# Host time of a product: until it is asked for, or until it is done.
ASK = """
import time, torch
a = torch.randn(8192, 8192, device="cuda")
for _ in range(2):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    a @ a
    asked = time.perf_counter() - begin
    torch.cuda.synchronize()
    done = time.perf_counter() - begin
print(1e3 * asked, 1e3 * done)
"""


class Mlp(torch.nn.Module):
    """LAYERS times a linear layer and a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = diglot.gelu(layer(x))
        return x


def mlp_table() -> Table:
    """The operators of the MLP; writes the flame graph."""
    model, x = Mlp().to(DEVICE), torch.randn(BATCH, WIDTH, device=DEVICE)
    done = diglot.profile_call(lambda: model(x).sum().backward(), repeat=2, frames=True)
    FLAME.parent.mkdir(parents=True, exist_ok=True)
    done.save_flame(FLAME, force=True)
    rows: list[Row] = [
        {"operator": name, "kernels a call": of.kernels.total() / 2}
        for name, of in done.kernels_by_op().items()
    ]
    rows.sort(key=lambda row: -row["kernels a call"])
    return Table(f"MLP of {LAYERS} layers, forward and backward: {FLAME}", rows)


def cdist_table() -> Table:
    """What distances of all pairs of rows run."""
    size = 2048 if ON_GPU else 64
    a, b = torch.randn(2, size, size, device=DEVICE)
    done = diglot.profile_call(partial(torch.cdist, a, b), repeat=2, frames=False)
    kernels = done.kernels_by_op()["aten::cdist"].kernels
    rows = [{"kernel": name[:80], "a call": count / 2} for name, count in kernels.items()]
    return Table(f"What torch.cdist of {size} x {size} runs", rows)


def blocking_table() -> Table:
    """Host time of one product, with and without CUDA_LAUNCH_BLOCKING."""
    rows = []
    for value in ("0", "1"):
        environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": value}
        answer = subprocess.run(
            [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
        )
        asked, done = map(float, answer.stdout.split())
        rows.append({"CUDA_LAUNCH_BLOCKING": value, "ms until asked": asked, "until done": done})
    return Table("A product of 8192 x 8192 float32 matrices", rows)


def main() -> Iterator[Table]:
    """All three."""
    yield mlp_table()
    yield cdist_table()
    if ON_GPU:
        yield blocking_table()


if __name__ == "__main__":
    show(main)
