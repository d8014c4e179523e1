"""L2 persistence: two workloads, over sizes of the hot set and hit ratios.

One waits for its loads, and gains: the example's walks on a graph, in turns with passes over a
large array. The other has many loads under way, and gains nothing: rows of a table gathered into a
large array, which pushes the table out by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diglot import l2
from diglot.bench.evidence import load_example
from diglot.bench.reports import judged, write_report
from diglot.tools import measure
from diglot.tools.measure import Timing

example = load_example("l2_persistence")

MB = 1 << 20
HOT_MB = (4, 8, 16, 24, 32, 48)
HIT_RATIOS = (0.25, 0.5, 0.75, 1.0)
PASS_MB, GATHERED_MB = 128, 512
ROUNDS, TURNS = 10, 5
BAR = 1.2  # speed that the best cell of the walks and the pass together must reach


@dataclass(frozen=True)
class Workload:
    """A workload: the hot tensor, the pieces of a turn by name, whether results are right."""

    name: str
    hot: torch.Tensor
    pieces: dict[str, Callable[[], None]]
    spoil: Callable[[], object]
    is_right: Callable[[], bool]


def walks(hot_mb: int) -> Workload:
    """Random walks on a graph, after a pass over a large array."""
    problem = example.Problem.random(hot_mb * MB, PASS_MB * MB)

    def spoil() -> None:
        problem.ends.fill_(-1)
        problem.target.fill_(torch.nan)

    pieces = {"pass": problem.stream, "walks": problem.walk}
    return Workload("walks", problem.neighbours, pieces, spoil, problem.is_right)


def gathers(hot_mb: int) -> Workload:
    """Random rows of 128 bytes, each a hash of its index, gathered into a large array."""
    rows, n = hot_mb * MB // 128, GATHERED_MB * MB // 128
    column = torch.arange(32, device="cuda")

    def content(row: torch.Tensor) -> torch.Tensor:
        return ((row[:, None] * 32 + column) * 0x9E3779B1).to(torch.int32)

    table = content(torch.arange(rows, device="cuda"))
    index = torch.randint(rows, (n,), device="cuda")
    out = torch.empty(n, 32, dtype=torch.int32, device="cuda")

    def is_right() -> bool:
        parts = zip(out.split(1 << 18), index.split(1 << 18), strict=True)
        return all(torch.equal(found, content(row)) for found, row in parts)

    def gather() -> None:
        torch.index_select(table, 0, index, out=out)

    return Workload("gathers", table, {"gather": gather}, lambda: out.fill_(-1), is_right)


def _rows(workload: Workload, hot_mb: int) -> list[dict[str, Any]]:
    """A row without persistence and one for each hit ratio, measured in turns."""
    ratios: Sequence[float | None] = (None, *HIT_RATIOS)
    work = tuple(workload.pieces.values())
    verified = {}
    for ratio in ratios:
        workload.spoil()
        example.times_us(workload.hot, work, ratio, 1)
        verified[ratio] = workload.is_right()
    samples: dict[float | None, list[list[float]]] = {ratio: [] for ratio in ratios}
    for _ in range(ROUNDS):
        for ratio in ratios:
            if verified[ratio]:
                samples[ratio] += example.times_us(workload.hot, work, ratio, TURNS)
    rows: list[dict[str, Any]] = []
    for ratio, times in samples.items():
        row: dict[str, Any] = {
            "op": "l2",
            "provider": "none" if ratio is None else "persist",
            "workload": workload.name,
            "options": {"hot_mb": hot_mb, "hit_ratio": ratio},
            "timer": "turns",
            "verified": verified[ratio],
            "bars": [],
        }
        rows.append(row)
        if not verified[ratio]:
            continue
        turn = Timing.of([sum(pieces) for pieces in times])
        row |= {
            **turn.figures(),
            "pieces_us": {
                name: Timing.of(list(part)).median_us
                for name, part in zip(workload.pieces, zip(*times, strict=True), strict=True)
            },
        }
        if "time_us" in rows[0]:
            row["speed"] = rows[0]["time_us"] / row["time_us"]
            row["pieces_speed"] = {
                name: rows[0]["pieces_us"][name] / time for name, time in row["pieces_us"].items()
            }
    return rows


def run(folder: Path | None = None) -> Path:
    """Measures, and writes l2.json to a folder, by default to bench/results/<gpu>.

    Raises:
        RuntimeError: there is no GPU, or persistence has no effect on it.
    """
    measure.check()
    facts = dataclasses.asdict(l2.info())
    if facts["refusal"] is not None:
        raise RuntimeError(f"not timed: {facts['refusal']}")
    rows = []
    for make in (walks, gathers):
        for hot_mb in HOT_MB:
            print(f"l2: {make.__name__}, {hot_mb} MB hot", flush=True)
            rows += _rows(make(hot_mb), hot_mb)
            torch.cuda.empty_cache()
    cells = [row for row in rows if row["workload"] == "walks" and "speed" in row]
    if cells:
        best = max(cells, key=lambda row: row["speed"])
        best["bars"] = [judged("speed of the best cell", best["speed"], BAR)]
    return write_report("l2", rows, folder, l2=facts)
