"""How an op is launched, as Markdown: where its rows are held, and its plans on an H200."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from diglot.backends.plans import Plan, PlannedRun, plan_runs
from diglot.bench.harness import COLD, OURS, Benchmark, Case
from diglot.bench.markdown import table
from diglot.bench.reports import kind_text, shape_text
from diglot.tools.gpus import named_device
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


def cases(op: str) -> str:
    """How an H200 would launch the cases of an op's benchmark in bfloat16; nothing is launched.

    There is a line for the first case of each kind, and for each that has a new variant.
    """
    benchmark = importlib.import_module(f"diglot.bench.{op}").benchmark
    body: list[list[str]] = []
    seen: set[object] = set()
    for case in benchmark.cases:
        if case.timer in COLD and case.dtype == torch.bfloat16:
            row = {"options": case.options, "direction": case.direction, "shape": case.shape}
            calls = [_planned(benchmark, case, backend) for backend in OURS]
            news = {kind_text(row), *(tuple(run.plan.variant for run in runs) for runs in calls)}
            if not news <= seen:
                body.append([kind_text(row), shape_text(row), *(_steps(op, of) for of in calls)])
            seen |= news
    return "\n".join(table(["case", "shape", "CUDA C++", "Triton"], body))


def _planned(benchmark: Benchmark, case: Case, backend: str) -> list[PlannedRun]:
    with FakeTensorMode():
        fakes = benchmark.inputs(case)
    call = benchmark.providers[backend](case, tuple(map(_empty, fakes)))
    assert call is not None
    with benchmark.setting(case), plan_runs(named_device("NVIDIA H200")) as runs:
        call()
    return runs


def _empty(fake: torch.Tensor) -> torch.Tensor:
    """A tensor that lies like a fake one. Nothing touches its memory."""
    elements = fake.untyped_storage().nbytes() // fake.element_size()
    memory = torch.empty(elements, dtype=fake.dtype)
    tensor = memory.as_strided(fake.shape, fake.stride(), fake.storage_offset())
    return tensor.requires_grad_(fake.requires_grad)


def _steps(op: str, runs: Iterable[PlannedRun]) -> str:
    """The plans of a call, each on a line that names its launcher where that is not the op's."""
    texts = {run.launcher: f"{run.launcher}: " for run in runs}
    texts[f"{op}_forward"] = texts[op.rstrip("_")] = ""
    return "<br>".join(texts[run.launcher] + _text(run.plan) for run in runs)


def _text(plan: Plan) -> str:
    starts = []
    for launch in plan.launches:
        blocks = "×".join(str(size) for size in launch.grid if size > 1) or "1"
        threads = launch.block[0] if hasattr(launch, "block") else 32 * launch.num_warps
        cluster = getattr(launch, "cluster_blocks", 1)
        in_clusters = f" in clusters of {cluster}" if cluster > 1 else ""
        starts.append(f"{blocks} × {threads} threads{in_clusters}")
    return f"{plan.variant}: {'; then '.join(starts)}"
