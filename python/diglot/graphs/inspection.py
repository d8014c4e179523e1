"""What a graph is made of: a table, data, a picture."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from diglot.graphs.capture import GraphedCallable
from diglot.graphs.captured import CapturedGraph
from diglot.graphs.device import find_device
from diglot.graphs.errors import GraphError
from diglot.graphs.nodes import Edge, Node, NotedRun
from diglot.graphs.report import NOTHING, Report, aligned
from diglot.graphs.training import TrainingStep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "diglot.graph"
SCHEMA_VERSION = 1
LONGEST = 44  # characters of a kernel's name in a table
COLORS = {"kernel": "#9ecae1", "memcpy": "#fdd0a2", "memset": "#fee6ce", "host function": "#c7e9c0"}
OTHER = "#dddddd"
NAMESPACES = re.compile(r"\b(?:\w+|\(anonymous namespace\))::|^void ")


@dataclass(frozen=True)
class Inspection:
    """A graph's nodes and edges. Printed, it is a table.

    Attributes:
        name: of the function and its bucket.
        nodes: in the order in which they were captured.
        edges: pairs of places in `nodes`: the second begins when the first has ended.
        report: what the graphs of the callable cost; None for a graph of PyTorch's own.
    """

    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    report: Report | None = None

    @property
    def kinds(self) -> dict[str, int]:
        """How many nodes there are of each kind."""
        return dict(Counter(node.kind for node in self.nodes))

    @property
    def depth(self) -> int:
        """How many nodes the longest chain of nodes has that wait for each other."""
        return len(self._generations())

    @property
    def width(self) -> int:
        """How many nodes at most may run at once, as far as the edges say."""
        return max((len(generation) for generation in self._generations()), default=0)

    def _generations(self) -> list[list[int]]:
        """Nodes in layers: one's predecessors are in layers before its own."""
        waits = Counter(end for _, end in self.edges)
        followers: dict[int, list[int]] = {}
        for begin, end in self.edges:
            followers.setdefault(begin, []).append(end)
        layer = [place for place in range(len(self.nodes)) if not waits[place]]
        layers = []
        while layer:
            layers.append(layer)
            following = []
            for place in layer:
                for end in followers.get(place, []):
                    waits[end] -= 1
                    if waits[end] == 0:
                        following.append(end)
            layer = following
        return layers

    def json(self) -> dict[str, Any]:
        """As data that `json` can write."""
        nodes = [asdict(node) for node in self.nodes]
        for node in nodes:
            del node["handle"]
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "kinds": self.kinds,
            "nodes": nodes,
            "edges": [list(edge) for edge in self.edges],
            "report": None if self.report is None else self.report.json(),
        }

    def save(self, path: Path | str) -> None:
        """Writes it: as JSON, or as a picture, by the name's ending, such as .json, .svg or .png.

        Raises:
            ImportError: matplotlib is not installed, and a picture is asked for.
        """
        path = Path(path)
        if path.suffix == ".json":
            path.write_text(json.dumps(self.json(), indent=2) + "\n")
        else:
            figure = self.plot()
            import matplotlib as mpl

            with mpl.rc_context({"svg.fonttype": "none"}):  # text that can be searched
                figure.savefig(path, bbox_inches="tight")

    def plot(self) -> Figure:
        """A picture: time goes down, and what may run at once is side by side.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(
                'pictures need matplotlib, which is not installed: pip install "diglot[tools]"'
            ) from None
        import networkx

        drawn = networkx.DiGraph(list(self.edges))
        drawn.add_nodes_from(range(len(self.nodes)))
        for i, layer in enumerate(self._generations()):
            for place in layer:
                drawn.nodes[place]["layer"] = -i
        places = networkx.multipartite_layout(drawn, subset_key="layer", align="horizontal")
        figure = Figure(figsize=(1 + 3.5 * self.width, 1 + 0.6 * self.depth))
        axes = figure.add_subplot()
        networkx.draw_networkx_edges(drawn, places, ax=axes, node_size=500)
        for i, node in enumerate(self.nodes):
            box = {"boxstyle": "round", "facecolor": COLORS.get(node.kind, OTHER), "linewidth": 0}
            x, y = places[i]
            axes.text(x, y, _label(node), fontsize=7, ha="center", va="center", bbox=box)
        axes.margins(x=0.5)
        axes.set_title(self.name, fontsize=9)
        axes.set_axis_off()
        return figure

    def __str__(self) -> str:
        head = ["node", "kind", "what", "grid", "block", "bytes", "after"]
        after: dict[int, list[str]] = {}
        for begin, end in self.edges:
            after.setdefault(end, []).append(str(begin))
        lines = [head]
        for i, node in enumerate(self.nodes):
            lines.append(
                [
                    str(i),
                    node.kind,
                    _label(node),
                    NOTHING if node.grid is None else "x".join(map(str, node.grid)),
                    NOTHING if node.block is None else "x".join(map(str, node.block)),
                    NOTHING if node.num_bytes is None else f"{node.num_bytes:,}",
                    " ".join(after.get(i, [])) or NOTHING,
                ]
            )
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        summary = f"{self.name}: {kinds or 'no nodes'}; {len(self.edges)} edges"
        parts = [summary, "", *aligned(lines)]
        return "\n".join(parts if self.report is None else [*parts, "", str(self.report)])


def inspect(graph: Any, name: str | None = None) -> Inspection:
    """The nodes and the edges of a graph.

    Args:
        graph: what `capture` or `training_step` returned; one of its `graphs`; or a
            `torch.cuda.CUDAGraph(keep_graph=True)`.
        name: which of the callable's graphs, a name in its `graphs`; by default the first, the
            largest. A graph that has a gradient has the gradient's nodes after its own.

    Raises:
        TypeError: it is of another type.
        ValueError: the callable has no graph of that name.
        GraphError: there is no graph yet, or it has gone.
    """
    if isinstance(graph, (GraphedCallable, TrainingStep)):
        found = graph.graphs
        if not found:
            raise GraphError("inspect: nothing is captured yet, or it was released: call it first")
        if name is not None and name not in found:
            raise ValueError(f"inspect: there is no graph {name!r}, but {', '.join(found)}")
        chosen = next(iter(found.values())) if name is None else found[name]
        return replace(inspect(chosen), report=graph.report())
    if isinstance(graph, CapturedGraph):
        if not graph.is_alive:
            raise GraphError("inspect: the graph has gone: its pool was built anew or released")
        device = graph.pool.device
        nodes: list[Node] = []
        edges: list[Edge] = []
        for part, runs in zip(graph.graphs, graph.runs, strict=True):
            first = len(nodes)
            found_nodes, found_edges = device.nodes_of(part)
            nodes += _with_runs(found_nodes, runs)
            edges += [(first + begin, first + end) for begin, end in found_edges]
        return Inspection(graph.label, nodes, edges)
    if isinstance(graph, torch.cuda.CUDAGraph):
        where = torch.device("cuda", torch.cuda.current_device())
        return Inspection(name or "graph", *find_device(where).nodes_of(graph))
    raise TypeError(f"inspect: there are no nodes in a {type(graph).__name__}")


def _with_runs(nodes: Sequence[Node], runs: Sequence[NotedRun]) -> list[Node]:
    """The nodes, with the runs that launched them."""
    launched = {handle: noted.run for noted in runs for handle in noted.handles}
    return [replace(node, run=launched.get(node.handle)) for node in nodes]


def _label(node: Node) -> str:
    """What a node is, in few words."""
    if node.run is not None:
        return f"{node.run.launcher} [{node.run.backend}] {node.run.variant}"
    name = NAMESPACES.sub("", node.name) or node.kind
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
