"""The tree of times that Triton's profiler, Proton, writes.

It is JSON in the form of the package hatchet, and is read here without that package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diglot.tools.numbers import duration
from diglot.tools.table import plain

TIME = "time (ns)"
METADATA = "__proton_launch_metadata"  # what launches of Triton's compute for the profiler itself


@dataclass(frozen=True)
class Node:
    """A scope or a kernel, with its parts.

    Attributes:
        us: time on the GPU with that of its parts, in microseconds.
        count: how many kernels ran.
        metrics: numbers that were given for it, such as "bytes".
    """

    name: str
    us: float
    count: int
    parts: tuple[Node, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def read(path: str | Path) -> Node:
        """The root of a file that Proton wrote.

        Raises:
            ValueError: it is no such file.
        """
        try:
            root, *_ = json.loads(Path(path).read_text())
            return _node(root)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is no tree of Proton's: {error!r}") from error

    def stacks(self) -> dict[tuple[str, ...], float]:
        """Times in microseconds by stack, outermost first, each without that of its parts."""
        found: dict[tuple[str, ...], float] = {}
        waiting: list[tuple[tuple[str, ...], Node]] = [((), self)]
        while waiting:
            stack, node = waiting.pop()
            own = node.us - sum(part.us for part in node.parts)
            if own > 0:
                found[stack or (node.name,)] = found.get(stack, 0.0) + own
            waiting += [((*stack, part.name), part) for part in node.parts]
        return found

    def __str__(self) -> str:
        """The tree as text, what took longest first."""
        from rich.text import Text
        from rich.tree import Tree

        root = Tree(Text(_told(self, self.us)))
        waiting = [(root, self)]
        while waiting:
            tree, node = waiting.pop()
            for part in sorted(node.parts, key=lambda part: part.us, reverse=True):
                waiting.append((tree.add(Text(_told(part, self.us))), part))
        return plain(root)


def _node(entry: dict[str, Any]) -> Node:
    parts = tuple(_node(e) for e in entry["children"] if e["frame"]["name"] != METADATA)
    metrics = entry["metrics"]
    return Node(
        entry["frame"]["name"],
        metrics.get(TIME, 0) / 1e3 + sum(part.us for part in parts),
        int(metrics.get("count", 0)) + sum(part.count for part in parts),
        parts,
        {
            name: value
            for name, value in metrics.items()
            if name not in (TIME, "count") and isinstance(value, (int, float)) and value
        },
    )


def _told(node: Node, whole_us: float) -> str:
    """A node in words, with its numbers, and the bandwidth that is in them."""
    given = [f"{name} {value:.4g}" for name, value in node.metrics.items()]
    if "bytes" in node.metrics and node.us:
        given.append(f"{node.metrics['bytes'] / node.us / 1e3:.4g} GB/s")
    share = f"{100 * node.us / (whole_us or 1.0):.1f} %"
    said = [f"{duration(node.us / 1e6)}, {share}", f"{node.count} kernels", *given]
    return f"{node.name}: {', '.join(said)}"
