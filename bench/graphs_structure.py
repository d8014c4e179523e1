"""What a graph's form gains and costs: branches, overlap with the host, shared memory, updates.

The work is that of examples/graphs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diglot import graphs
from diglot.bench.evidence import load_example
from diglot.bench.graphs import row_of, speed
from diglot.bench.harness import Row
from diglot.tools import measure
from diglot.tools.measure import Timing

NODES = (50, 1000)  # of graphs that are updated
BATCHES, ROUNDS = 6, 5
CHAIN, BRANCHES = "one_after_the_other", "side_by_side"


example = load_example("graphs")


def branches() -> Iterator[Row]:
    """Replays of the same work in a chain, and in two branches."""
    made = example.make_branches()
    replays = {
        name: next(iter(graphed.graphs.values())).graphs[0].replay for name, graphed in made.items()
    }
    rows = {}
    for name, timing in measure.interleaved(replays).items():
        shape = graphs.inspect(made[name])
        facts = {"nodes": len(shape.nodes), "deep": shape.depth, "wide": shape.width}
        rows[name] = row_of(
            "branches", name.replace("_", " "), "device", facts=facts, **timing.figures()
        )
    rows[BRANCHES]["facts"]["speed over a chain"] = round(speed(rows, BRANCHES, CHAIN), 2)
    yield from rows.values()


def next_batch() -> Iterator[Row]:
    """Batches that the host prepares after each replay, and during the one before."""
    rows = {}
    for name, waits in (("after each replay", True), ("during the replay before", False)):
        runs = [example.prepare_and_replay(BATCHES, waits) for _ in range(ROUNDS)]
        host, device = sorted(runs, key=lambda run: run[1][-1][1])[ROUNDS // 2]
        timing = Timing.of([1e3 * run[1][-1][1] for run in runs])
        facts = {"batches": BATCHES, "overlap, ms": round(example.overlap(host, device), 2)}
        rows[name] = row_of(
            "next batch", name, "wall", facts=facts, timeline={"host": host, "replay": device},
            **timing.figures(),
        )  # fmt: skip
    gain = speed(rows, "during the replay before", "after each replay")
    rows["during the replay before"]["facts"]["speed over waiting"] = round(gain, 2)
    yield from rows.values()


def shared_memory() -> Iterator[Row]:
    """Two graphs in one pool, and in two."""
    found = example.share_memory()
    addresses = ", ".join(map(hex, found.addresses))
    yield row_of(
        "shared memory", "one pool", "bytes", pool_bytes=found.together,
        facts={"results are at": addresses},
    )  # fmt: skip
    yield row_of("shared memory", "two pools", "bytes", pool_bytes=found.apart)


def updates() -> Iterator[Row]:
    """The host's time to make a graph executable, and to update an executable one."""
    for nodes in NODES:
        times = example.update_times(nodes)
        rows = {
            name: row_of("update", f"{name}, {nodes} nodes", "host", **Timing.of(each).figures())
            for name, each in zip(("make executable", "update"), times, strict=True)
        }
        gain = round(speed(rows, "update", "make executable"), 1)
        rows["update"]["facts"] = {"speed over making": gain, "a further node": "refused"}
        yield from rows.values()


def parts() -> dict[str, Any]:
    """The parts of the measurement, by name."""
    return {
        "branches": branches,
        "next batch": next_batch,
        "shared memory": shared_memory,
        "updates": updates,
    }
