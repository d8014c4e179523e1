"""The table of docs/collectives.md, from the times of a run on two GPUs."""

from __future__ import annotations

from typing import Any

from diglot.bench.markdown import NOTHING, table
from diglot.tools.numbers import size

PEERS = ("NCCL", "PyTorch one-shot", "PyTorch two-shot")
OURS = ("CUDA C++", "Triton", "CUDA C++ in the workspace", "Triton in the workspace")


def collectives_table(report: dict[str, Any]) -> str:
    """Microseconds of an all-reduce: a row for each size, and one for the barrier."""
    versions = f"PyTorch {report['torch']}, Triton {report['triton']}"
    lines = [
        f"{report['ranks']} × {report['gpu']}, {versions}, {report['date']}, commit "
        f"{report['commit']}. Figures are µs inside CUDA graphs, of the slower rank: medians of 5 "
        "interleaved runs. Our results were verified first.",
        "",
    ]
    header = ["`all_reduce` of bfloat16", *PEERS, *OURS]
    rows = [
        [size(row["bytes"], "B"), *(_time(row["us"].get(name)) for name in header[1:])]
        for row in sorted(report["rows"], key=lambda row: row["bytes"])
    ]
    lines += table(header, rows)
    times = {name: f"{us:.2f}" for name, us in report["barrier"].items()}
    lines.append(
        f"A barrier takes {times['CUDA C++']} µs in CUDA C++, {times['Triton']} in Triton, and "
        f"{times['PyTorch']} in PyTorch."
    )
    return "\n".join(lines) + "\n"


def _time(us: float | None) -> str:
    return NOTHING if us is None else f"{us:.2f}"
