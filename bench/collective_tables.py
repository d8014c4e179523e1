"""The bars and tables of docs/collectives.md, from what bench/collectives.py measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diglot.bench.harness import OURS, Row
from diglot.bench.markdown import NOTHING, table
from diglot.bench.reports import judged, measured_on, no_time
from diglot.tools.numbers import size as count

NORM = "all_reduce_add_rms_norm"
# Microseconds on two H200s, by bytes: in CUDA C++ and in Triton, of tensors in the workspace.
MOST_US = {
    1 << 10: (5.0, 6.5), 64 << 10: (6.0, 7.5), 512 << 10: (9, 10), 1 << 20: (10.5, 12),
    4 << 20: (18, 20), 16 << 20: (55, 60), 64 << 20: (205, 220),
}  # fmt: skip
BARRIER_US = (3.0, 4.0)
OVER_PEERS = 1.02  # times the best peer's time
NORM_ROWS, NORM_OVER_PEERS, NORM_OVER_TWO = 128, 0.75, 0.85
MOST_FAST_BYTES, FAST, LONG = 16 << 20, 1.05, 0.97  # times NCCL's speed, up to a size, and above
PLACES = ("staged", "workspace", "workspace to workspace")
NAMES = {
    "nccl": "NCCL", "torch": "PyTorch", "torch one-shot": "PyTorch one-shot",
    "torch two-shot": "PyTorch two-shot", "cuda": "CUDA C++", "triton": "Triton",
    "workspace": "in the workspace", "staged": "",
}  # fmt: skip
EXPLAINED = (
    "Figures are µs inside CUDA graphs, of the slower rank: medians of {samples} interleaved runs. "
    "Results were verified before and after. ✗ marks a figure that misses a bar."
)

Rows = Sequence[Row]


def judge(rows: Rows, ranks: int) -> list[Row]:
    """The rows, each with its bars."""
    return [{**row, "bars": list(_bars(row, rows, ranks))} for row in rows]


def _bars(row: Row, rows: Rows, ranks: int) -> Iterator[Row]:
    us = row.get("time_us")
    if row["provider"] not in OURS or us is None:
        return
    place, op = OURS.index(row["provider"]), row["op"]
    alike = [r for r in rows if (r["op"], r["bytes"]) == (op, row["bytes"]) and "time_us" in r]
    best = min((r["time_us"] for r in alike if r["provider"] not in OURS), default=None)
    if op == "barrier" and ranks == 2:
        yield judged("µs", us, BARRIER_US[place], False)
    elif op == "all_reduce" and row["way"] in PLACES:
        if ranks == 2 and row["way"] != "staged" and row["bytes"] in MOST_US:
            yield judged("µs", us, MOST_US[row["bytes"]][place], False)
        if best is not None:
            yield judged("of the best peer", us / best, OVER_PEERS, False)
    elif op in ("all_gather", "reduce_scatter") and best is not None:
        bound = FAST if row["bytes"] <= MOST_FAST_BYTES else LONG
        yield judged("times NCCL's speed", best / us, bound)
    elif op == NORM and row["shape"][0] == NORM_ROWS and row["way"].startswith("one launch"):
        if best is not None:
            yield judged("of the best peer", us / best, NORM_OVER_PEERS, False)
        other = row["provider"], row["way"].replace("one launch", "two launches")
        for two in alike:
            if (two["provider"], two["way"]) == other:
                yield judged("of two launches", us / two["time_us"], NORM_OVER_TWO, False)


def markdown(files: Sequence[Mapping[str, Any]]) -> str:
    """Tables for each GPU and number of ranks."""
    lines = []
    for file in files:
        for ranks, report in sorted(file["ranks"].items(), key=lambda of: int(of[0])):
            lines += _of_ranks(int(ranks), report)
    return "\n".join(lines)


def _of_ranks(ranks: int, report: Mapping[str, Any]) -> list[str]:
    rows = report["rows"]
    samples = "/".join(map(str, sorted({row["samples"] for row in rows if "samples" in row})))
    lines = [
        f"### {ranks} × {report['gpu']}",
        "",
        f"{measured_on([report])}. {EXPLAINED.format(samples=samples)}",
        "",
    ]
    of_op: dict[str, list[Row]] = {}
    for row in rows:
        of_op.setdefault(row["op"], []).append(row)
    reduced = of_op.get("all_reduce", [])
    lines += _by_size("`all_reduce`", [r for r in reduced if not _is_protocol(r)])
    for backend in OURS:
        protocols = [r for r in reduced if r["provider"] == backend and _is_protocol(r)]
        lines += _by_size(f"`all_reduce` in {NAMES[backend]} by", protocols, marks_fastest=True)
    for op in ("all_gather", "reduce_scatter"):
        lines += _by_size(f"`{op}`", of_op.get(op, []))
    lines += _norms(of_op.get(NORM, []))
    lines += _by_size("", of_op.get("barrier", []))
    lines += [_soaked(row) for row in of_op.get("soak", [])]
    failed = [row for row in rows if "reason" in row]
    lines += [f"- {_name(row)}, {_size(row)}: {row['reason']}" for row in failed]
    return [*lines, ""]


def _is_protocol(row: Row) -> bool:
    return row["provider"] in OURS and row["way"] not in PLACES


def _name(row: Row) -> str:
    """The column of a row; of a protocol, its name."""
    way = NAMES.get(row["way"], row["way"])
    return way if _is_protocol(row) and way else f"{NAMES[row['provider']]} {way}".strip()


def _size(row: Row) -> str:
    return "barrier" if row["op"] == "barrier" else count(row["bytes"], "B")


def _cell(row: Row | None, is_fastest: bool = False) -> str:
    if row is None:
        return NOTHING
    if "time_us" not in row:
        return no_time(row)
    text = f"{row['time_us']:.2f}"
    text = f"**{text}**" if is_fastest else text
    return text if all(bar["met"] for bar in row["bars"]) else f"{text} ✗"


def _by_size(title: str, rows: Rows, marks_fastest: bool = False) -> list[str]:
    """A line for each size, a column for each provider and way."""
    names = list(dict.fromkeys(map(_name, rows)))
    body = []
    for of_size in dict.fromkeys(map(_size, rows)):
        found = {_name(row): row for row in rows if _size(row) == of_size}
        best = min((r["time_us"] for r in found.values() if "time_us" in r), default=None)
        cells = [
            _cell(row, marks_fastest and row is not None and row.get("time_us") == best)
            for row in map(found.get, names)
        ]
        body.append([of_size, *cells])
    return table([title, *names], body) if rows else []


def _norms(rows: Rows) -> list[str]:
    """A line for each way, a column for each number of rows."""
    counts = list(dict.fromkeys(row["shape"][0] for row in rows))
    ways: dict[str, dict[int, Row]] = {}
    for row in rows:
        name = f"{NAMES[row['provider']]}, {row['way']}".replace("by cuda", "in CUDA C++")
        ways.setdefault(name.replace("by triton", "in Triton"), {})[row["shape"][0]] = row
    body = [[name, *(_cell(found.get(n)) for n in counts)] for name, found in ways.items()]
    header = ["all-reduce, residual and RMS norm of rows of 8192", *map(str, counts)]
    return table(header, body) if rows else []


def _soaked(row: Row) -> str:
    name = NAMES[row["provider"]]
    if "calls" not in row:
        return f"- Random all-reduces in {name} failed."
    return (
        f"- {row['calls']:,} all-reduces of random sizes in a row in {name}, {row['eager']:,} of "
        "them outside of graphs, with ranks late by turns. Wrong elements, by rank: "
        f"{', '.join(map(str, row['wrong']))}."
    )
