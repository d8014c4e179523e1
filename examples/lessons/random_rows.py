"""Random numbers that nobody stores: dropout with a seed for each row, and a sparse projection.

    python examples/lessons/random_rows.py

Philox makes random bits of a seed and an index, so a mask can be made again instead of kept. With a
seed for each row, a row's mask does not depend on the rows beside it: the same row in another batch
is dropped out alike. Both languages use diglot's Philox and keep the same elements, bit by bit.

The same trick makes a matrix that is never in memory. A sparse Johnson-Lindenstrauss projection
multiplies by a random matrix of +1, 0 and -1 with probabilities 1/6, 2/3 and 1/6 (D. Achlioptas,
"Database-friendly random projections", 2003): the distances of points change little, although they
have fewer coordinates. Each row of the matrix is a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

from diglot.triton_ops.lib.philox import random_bits

ROWS, COLUMNS, P = (6, 256, 0.25) if INTERPRETED else (4096, 4096, 0.25)
POINTS, FEATURES = (4, 48) if INTERPRETED else (256, 512)
SIXTH = (1 << 32) // 6


@triton.jit
def dropout_kernel(x, seeds, out, columns, threshold, scale, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    row = tl.program_id(0)
    four = tl.arange(0, BLOCK // 4)[:, None] * 4  # Philox makes four words at once
    column = four + tl.arange(0, 4)[None, :]
    bits = random_bits(tl.load(seeds + row), 0, four, 4)
    values = tl.load(x + row * columns + column, column < columns)
    kept = tl.where(bits.to(tl.int64) >= threshold, values * scale, 0.0)
    tl.store(out + row * columns + column, kept, column < columns)


@triton.jit
def project_kernel(x, seeds, out, columns, low, high, scale, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    four = tl.arange(0, BLOCK // 4)[:, None] * 4
    column = four + tl.arange(0, 4)[None, :]
    bits = random_bits(tl.load(seeds + tl.program_id(0)), 0, four, 4).to(tl.int64)
    sign = (bits < low).to(tl.float32) - (bits >= high).to(tl.float32)
    row = tl.load(x + tl.program_id(1) * columns + column, column < columns, 0.0)
    at = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(out + at, tl.sum(tl.sum(sign * row, 1), 0) * scale)


def dropout(language: str, x: torch.Tensor, seeds: torch.Tensor, out: torch.Tensor) -> None:
    """Drops a share P of each row's elements, by the row's seed, and scales the others."""
    rows, columns = x.shape
    if language == "cuda":
        call("random_rows", "dropout", rows, columns, P, seeds, x, out)
    else:
        block, threshold = triton.next_power_of_2(columns), int(P * (1 << 32))
        dropout_kernel[(rows,)](x, seeds, out, columns, threshold, 1 / (1 - P), block)


def project(language: str, x: torch.Tensor, seeds: torch.Tensor, out: torch.Tensor) -> None:
    """out = x S^T, where the row k of S follows from the k-th seed."""
    (rows, columns), features = x.shape, len(seeds)
    if language == "cuda":
        call("random_rows", "project", rows, columns, features, seeds, x, out)
    else:
        block, scale = triton.next_power_of_2(columns), (3 / features) ** 0.5
        low, high = SIXTH, 5 * SIXTH
        project_kernel[(features, rows)](x, seeds, out, columns, low, high, scale, block)


def dropout_table() -> Table:
    """The kept share, and that both languages and a row alone keep the same."""
    x = torch.randn(ROWS, COLUMNS, device=DEVICE)
    seeds = torch.randint(1 << 62, (ROWS,), device=DEVICE)
    outs = {name: torch.empty_like(x) for name in ("cuda", "triton")}
    alone = torch.empty_like(x[:1])
    rows, calls = list[Row](), [partial(dropout, n, x, seeds, out) for n, out in outs.items()]
    for run, (name, out) in zip(calls, outs.items(), strict=True):
        run()
        check_equal(out, outs["cuda"])
        dropout(name, x[3:4].contiguous(), seeds[3:4].contiguous(), alone)
        check_equal(alone, out[3:4])
        kept = (out != 0).float().mean().item()
        rows.append({"language": name, "kept": kept, "mask in memory": "0 bytes"})
    add_times(rows, calls)
    return Table(f"Dropout with p = {P} of {ROWS} rows of {COLUMNS}", rows)


def projection_table() -> Table:
    """How much the distances of random points change."""
    x = torch.randn(POINTS, COLUMNS, device=DEVICE)
    seeds = torch.randint(1 << 62, (FEATURES,), device=DEVICE)
    outs = {n: torch.empty(POINTS, FEATURES, device=DEVICE) for n in ("cuda", "triton")}
    rows, calls = list[Row](), [partial(project, n, x, seeds, out) for n, out in outs.items()]
    for run, (name, out) in zip(calls, outs.items(), strict=True):
        run()
        check_equal(out, outs["cuda"], 1e-3)
        ratio = torch.pdist(out.double()) / torch.pdist(x.double())
        row: Row = {"language": name, "coordinates": FEATURES, "nearest ratio": ratio.min().item()}
        row |= {"mean ratio": ratio.mean().item(), "farthest ratio": ratio.max().item()}
        rows.append({**row, "matrix in memory": "0 bytes"})
    add_times(rows, calls)
    return Table(f"Distances of {POINTS} points of {COLUMNS} coordinates, after / before", rows)


def main() -> Iterator[Table]:
    """Both."""
    yield dropout_table()
    yield projection_table()


if __name__ == "__main__":
    show(main)
