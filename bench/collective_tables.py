"""The tables of docs/collectives.md, from the times of a run on two GPUs."""

from __future__ import annotations

from typing import Any

from diglot.bench.markdown import NOTHING, table
from diglot.tools.numbers import size

PEERS = ("NCCL", "PyTorch one-shot", "PyTorch two-shot")
OURS = ("CUDA C++", "Triton", "CUDA C++ in the workspace", "Triton in the workspace")


def collectives_table(report: dict[str, Any]) -> str:
    """Microseconds of an all-reduce: a row for each size, and one for the barrier."""
    header = ["`all_reduce` of bfloat16", *PEERS, *OURS]
    lines = [_conditions(report), "", *_sizes(header, report["rows"])]
    times = {name: f"{us:.2f}" for name, us in report["barrier"].items()}
    lines.append(
        f"A barrier takes {times['CUDA C++']} µs in CUDA C++, {times['Triton']} in Triton, and "
        f"{times['PyTorch']} in PyTorch."
    )
    return "\n".join(lines) + "\n"


def exchanges_table(report: dict[str, Any]) -> str:
    """Microseconds of all_gather, reduce_scatter and all_reduce_add_rms_norm."""
    lines = [_conditions(report), ""]
    for op in ("all_gather", "reduce_scatter"):
        header = [f"`{op}` of bfloat16", PEERS[0], *OURS]
        lines += _sizes(header, report[op])
    rows = [[name, _time(us)] for name, us in report["norm"]["us"].items()]
    shape = report["norm"]["shape"]
    lines += table([f"All-reduce, residual and RMS norm of {shape}", "µs"], rows)
    return "\n".join(lines) + "\n"


def _conditions(report: dict[str, Any]) -> str:
    versions = f"PyTorch {report['torch']}, Triton {report['triton']}"
    return (
        f"{report['ranks']} × {report['gpu']}, {versions}, {report['date']}, commit "
        f"{report['commit']}. Figures are µs inside CUDA graphs, of the slower rank: medians of 5 "
        "interleaved runs. Our results were verified first."
    )


def _sizes(header: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """A row for each size."""
    return table(
        header,
        [
            [size(row["bytes"], "B"), *(_time(row["us"].get(name)) for name in header[1:])]
            for row in sorted(rows, key=lambda row: row["bytes"])
        ],
    )


def _time(us: float | None) -> str:
    return NOTHING if us is None else f"{us:.2f}"
