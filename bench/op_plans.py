"""How an op is launched, as Markdown: where its rows are held, and its plans on an H200."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from diglot.backends.plans import Plan
from diglot.bench.harness import OURS
from diglot.bench.markdown import table
from diglot.tools.inspect import calls_of
from diglot.tools.recording import plan_call


def rows(op: str, page: str) -> str:
    """The lines of docs/rows.md that are an op's, table by table."""
    lines: list[str] = []
    title, header = "", ""
    for line in page.splitlines():
        if line.startswith("## "):
            title = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1:2] == ["direction"]:
            header = line
        elif op in cells[0].split(", ") and line.startswith("|"):
            if header:
                lines += ["", f"{title}:", "", header, "|---" * (header.count("|") - 1) + "|"]
                header = ""
            lines.append(line)
    return "\n".join([*lines[1:], ""])


def plans(op: str, shapes: Iterable[tuple[int, ...]]) -> str:
    """How an H200 would launch these shapes in bfloat16; nothing is launched."""
    body = []
    for shape in sorted(set(shapes), key=lambda of: (len(of), of)):
        found: dict[str, list[str]] = defaultdict(list)
        for call in calls_of(op, shape, torch.bfloat16, {}).values():
            for run in (r for backend in OURS for r in plan_call(call, backend, "sm_90")):
                found[run.launcher.removeprefix(f"{op}_")].append(_text(run.plan))
        for direction, texts in found.items():
            body.append(["×".join(map(str, shape)), direction, *texts])
    return "\n".join(table(["shape", "direction", "CUDA C++", "Triton"], body))


def _text(plan: Plan) -> str:
    starts = []
    for launch in plan.launches:
        blocks = "×".join(str(size) for size in launch.grid if size > 1) or "1"
        threads = launch.block[0] if hasattr(launch, "block") else 32 * launch.num_warps
        cluster = getattr(launch, "cluster_blocks", 1)
        in_clusters = f" in clusters of {cluster}" if cluster > 1 else ""
        starts.append(f"{blocks} × {threads} threads{in_clusters}")
    return f"{plan.variant}: {'; then '.join(starts)}"
