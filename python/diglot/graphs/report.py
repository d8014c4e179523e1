"""What graphs cost, and when they pay."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SCHEMA = "diglot.graphs_report"
SCHEMA_VERSION = 1
NOTHING = "–"


@dataclass(frozen=True)
class GraphReport:
    """One graph.

    Attributes:
        name: its function and its bucket.
        input_bytes: of its arguments; the buckets of a function share them.
        added_bytes: by how much its capture made the pool grow.
        needed_bytes: the most that its capture had allocated at once.
        freed_bytes: by how much a pool that is built again without it would be smaller, if it has
            what its largest graph needs.
        capture_ms: of the host's time, without warm-up.
        replays: how many there were.
        eager_us: of the device, for a call without the graph; the last of the warm-up.
        replay_us: of the device, for a replay; None until it was measured.
        host_us: of the host, for a call of the graph; None until it was measured.
    """

    name: str
    input_bytes: int
    added_bytes: int
    needed_bytes: int
    freed_bytes: int
    capture_ms: float
    replays: int
    eager_us: float | None = None
    replay_us: float | None = None
    host_us: float | None = None

    @property
    def break_even(self) -> int | None:
        """After how many replays the capture has paid for itself.

        None if it was not measured, or a replay is no faster than an eager call.
        """
        if self.eager_us is None or self.replay_us is None or self.eager_us <= self.replay_us:
            return None
        return math.ceil(1e3 * self.capture_ms / (self.eager_us - self.replay_us))


@dataclass(frozen=True)
class Report:
    """The graphs of a callable. Printed, it is a table.

    Attributes:
        graphs: each, in the order of captures.
        pool_bytes: what their pool has reserved, for other callables' graphs, too.
        scratch_bytes: what all graphs of the device have as scratch of diglot's ops.
        input_bytes: of the buffer of arguments.
        eager_calls: calls that ran without a graph, because of their padding.
        rebuilds: how often the pool's limit made it be built again.
        failed: buckets that could not be captured, and why.
    """

    graphs: Sequence[GraphReport]
    pool_bytes: int
    scratch_bytes: int
    input_bytes: int
    eager_calls: int
    rebuilds: int
    failed: Sequence[str] = ()

    @property
    def apart_bytes(self) -> int:
        """What the graphs need if each has a pool of its own."""
        return sum(graph.needed_bytes for graph in self.graphs)

    def json(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = asdict(self) | {"apart_bytes": self.apart_bytes}
        for graph, each in zip(data["graphs"], self.graphs, strict=True):
            graph["break_even"] = each.break_even
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **data}

    def save(self, path: Path | str) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps(self.json(), indent=2) + "\n")

    def __str__(self) -> str:
        head = ["graph", "pool +", "needs", "frees", "capture ms", "replays",
                "eager µs", "replay µs", "host µs", "break-even"]  # fmt: skip
        lines = [head]
        for graph in self.graphs:
            numbers = (graph.eager_us, graph.replay_us, graph.host_us)
            lines.append(
                [
                    graph.name,
                    size(graph.added_bytes),
                    size(graph.needed_bytes),
                    size(graph.freed_bytes),
                    f"{graph.capture_ms:.1f}",
                    f"{graph.replays:,}",
                    *(NOTHING if number is None else f"{number:.1f}" for number in numbers),
                    NOTHING if graph.break_even is None else f"{graph.break_even:,}",
                ]
            )
        notes = [
            f"pool: {size(self.pool_bytes)}, where pools for each graph would have "
            f"{size(self.apart_bytes)}; arguments: {size(self.input_bytes)}; "
            f"scratch of graphs: {size(self.scratch_bytes)}"
        ]
        if self.eager_calls:
            notes.append(f"eager calls, for their padding: {self.eager_calls:,}")
        if self.rebuilds:
            notes.append(f"the pool's limit made it be built anew: {self.rebuilds:,} times")
        notes += [f"not captured: {reason}" for reason in self.failed]
        return "\n".join([*aligned(lines), "", *notes])


def with_freed_bytes(graphs: Sequence[GraphReport]) -> list[GraphReport]:
    """The same, with what each dropped graph would free.

    A shared pool is about as large as its largest graph needs. So a graph frees something only if
    no other needs as much.
    """
    needs = sorted((graph.needed_bytes for graph in graphs), reverse=True)
    second = needs[1] if len(needs) > 1 else 0
    return [replace(graph, freed_bytes=max(0, graph.needed_bytes - second)) for graph in graphs]


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: names to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def size(num_bytes: int) -> str:
    """Bytes in words."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
