"""How good plans are that nobody measured: an evaluation from measured times, without a GPU.

`measured_plans/<gpu>.json` has the times that `diglot tune` measured, by a hash of what each plan
launches. So a planner that changes is judged by the plans that it now makes:

- the *model*: the planner's own choice, for a problem that the store does not have;
- *near*: what the store would choose for a problem if it had all others.

`python -m diglot.bench.stored_plans` prints the tables. It has two commands:

- `record` adds the times of configs/ to the files. Before a planner changes, that keeps times whose
  names would mean other plans afterwards.
- `rename` gives plans of configs/ new names, by the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diglot.backends import store
from diglot.backends.choosing import use_plans
from diglot.backends.plans import KernelLaunch, Plan, plan_runs
from diglot.backends.registry import BACKENDS
from diglot.backends.runs import plan
from diglot.backends.store import Entry, Numbers, Problem, Store, Timing, plan_name
from diglot.backends.tunable_files import TunableError
from diglot.backends.tunables import short_name
from diglot.backends.tuning import candidate_plans
from diglot.bench.chosen_plans import CHOSEN_MEAN, CHOSEN_WORST, OWN_MEAN
from diglot.bench.evidence import ROOT
from diglot.bench.markdown import put
from diglot.bench.markdown import table as markdown_table
from diglot.bench.model_bars import Reached
from diglot.tools.gpus import named_device

GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
TREE = ROOT or Path.cwd()
FOLDER = TREE / "bench/measured_plans"
CONFIGS, PAGE = TREE / "configs", TREE / "docs/tuning.md"
# What sets the time of a launch of Triton, for a problem.
LAUNCHED = (
    "grid", "constants", "num_warps", "max_registers", "num_stages", "num_ctas",
    "per_multiprocessor",
)  # fmt: skip
SEARCHED = 3  # plans at least, where configs/ has the best one and the planner's own alone
PARTS = "parts"  # of K, that different blocks sum
Times = dict[Problem, dict[str, float]]  # microseconds, by the hash of the launches


def call_of(problem: Problem) -> tuple[Any, ...]:
    """A problem's language, op and launcher, and this one's arguments, without memory."""
    if problem.op != "matmul":
        return problem.backend, problem.op, problem.launcher, *_of_rows(problem)
    m, n, k, batch = problem.shape
    lies, _, more = problem.layout.partition(", ")
    dtype = getattr(torch, problem.dtypes[0])

    def matrix(rows: int, columns: int, by: str = "N") -> Tensor:
        sizes = (columns, rows) if by == "T" else (rows, columns)
        made = torch.empty((batch,) * (batch > 1) + sizes, device="meta", dtype=dtype)
        return made.mT if by == "T" else made

    factors = matrix(m, k, lies[0]), matrix(k, n, lies[1])
    how = False, "tf32" if dtype == torch.float32 else "ieee"
    out = matrix(m, n).float() if more == "wide" else matrix(m, n)
    if more != "row sums":
        return problem.backend, "matmul", "matmul_forward", *factors, *how, out
    launcher = "linear", "linear_parameters_backward"
    return problem.backend, *launcher, *factors, *how, out, out[:, 0].contiguous()


def _of_rows(problem: Problem) -> tuple[Any, ...]:
    """A launcher's arguments for a problem of rows."""
    rows, n = problem.shape
    dtype = getattr(torch, problem.dtypes[0])
    # Triton's launcher of a norm is that of its fused form, without a second input.
    has_second = problem.launcher.startswith("add_") and len(problem.dtypes) > 2
    is_centred = "layer_norm" in problem.launcher

    def argument(name: str) -> Any:
        if name in ("dim", "eps"):
            return {"dim": 1, "eps": 1e-5}[name]
        if name == "statistics":
            return torch.empty(1 + is_centred, rows, device="meta")
        is_absent = name in ("residual", "sum") and not has_second
        is_absent |= name == "grad_sum" and problem.dtypes[1] == "none"
        if is_absent:
            return None
        if name in ("weight", "bias", "grad_weight", "grad_bias"):
            return torch.empty(n, device="meta", dtype=dtype)
        return torch.empty(rows, n, device="meta", dtype=dtype)

    launcher = getattr(BACKENDS["triton"].module(problem.op), problem.launcher, None)
    if launcher is None or problem.backend == "cuda":
        launcher = getattr(BACKENDS["torch"].module(problem.op), problem.launcher)
    names = inspect.signature(launcher).parameters
    return tuple([argument(name) for name in names if name != "scratch"])


def plan_of(problem: Problem, numbers: Numbers, gpu: str) -> Plan:
    """The plan of a problem with chosen numbers on a GPU, which need not be here."""
    with use_plans(numbers), plan_runs(named_device(gpu)):
        return plan(*call_of(problem))


def launched(made: Plan) -> str:
    """A hash of what a plan launches. Plans of equal hashes take equal times."""
    told = [_told(launch) for launch in made.launches]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def _told(launch: Any) -> tuple[Any, ...]:
    """All of a launch that sets its time, for a problem."""
    numbers = dict(launch.order.numbers)
    if isinstance(launch, KernelLaunch):
        # Except where K has parts, they say again what the problem and the other fields set.
        return tuple(launch if PARTS in numbers else launch._replace(numbers=()))
    told = launch.kernel.__name__, *(getattr(launch, name) for name in LAUNCHED)
    return (*told, numbers[PARTS]) if PARTS in numbers else told


# --- the files -----------------------------------------------------------------------------------


def file_of(gpu: str) -> Path:
    """Where a GPU's times are committed."""
    return FOLDER / f"{short_name(gpu)}.json"


def measured() -> list[str]:
    """The GPUs that have times here or in configs/."""
    return [gpu for gpu in GPUS if file_of(gpu).exists() or any(stores(gpu))]


def read_times(gpu: str) -> Times:
    """The committed times of a GPU."""
    file = file_of(gpu)
    entries = json.loads(file.read_text())["entries"] if file.exists() else []
    return {
        Problem(
            raw["op"], raw["launcher"], raw["backend"], tuple(raw["dtypes"]), raw["layout"],
            tuple(raw["shape"]),
        ): raw["us"]
        for raw in entries
    }  # fmt: skip


def write_times(times: Times, gpu: str) -> None:
    """Writes a GPU's file, a problem to a line."""
    lines = []
    for problem, us in sorted(times.items(), key=lambda pair: str(pair[0])):
        raw = {name: getattr(problem, name) for name in Problem.__dataclass_fields__}
        lines.append(json.dumps(raw | {"us": dict(sorted(us.items(), key=lambda p: p[1]))}))
    text = ",\n".join(lines)
    about = '"about": "bench/stored_plans.py says what this file has."'
    FOLDER.mkdir(exist_ok=True)
    file_of(gpu).write_text(f'{{{about},\n"entries": [\n{text}\n]}}\n')


def stores(gpu: str) -> Iterator[tuple[Path, Store]]:
    """The files of configs/ for a GPU, and what they have."""
    for file in sorted(CONFIGS.glob(f"*/{file_of(gpu).name}")):
        if file.parent.name != "tunables":
            yield file, store.read(file.parent.name, file)


def record(gpu: str) -> Times:
    """A file's times, with those of configs/ added, by what the planners launch today."""
    times = read_times(gpu)
    for _, kept in stores(gpu):
        for problem, entry in kept.entries.items():
            of = times.setdefault(problem, {})
            for name, timing in entry.timings.items():
                key = launched(plan_of(problem, store.plan_numbers(name), gpu))
                of[key] = min(timing.us, of.get(key, math.inf))
    return times


def names_of(problem: Problem, known: Iterable[str], wanted: set[str], gpu: str) -> dict[str, str]:
    """A name for each wanted hash that some numbers lead to: a known one, or the simplest."""
    found: dict[str, str] = {}
    for name in sorted(known, key=len):
        found.setdefault(launched(plan_of(problem, store.plan_numbers(name), gpu)), name)
    if wanted <= found.keys():
        return {key: found[key] for key in wanted}
    call = call_of(problem)
    with plan_runs(named_device(gpu)):
        starts: list[Numbers] = [{}]
        for start in starts:  # the first adds the others
            with contextlib.suppress(TunableError):
                candidates = candidate_plans(*call, start=start)
                if start == {}:
                    starts += [candidate.numbers for candidate in candidates[1:]]
                for candidate in candidates:
                    found.setdefault(launched(candidate.plan), plan_name(candidate.numbers))
    return {key: found[key] for key in wanted & found.keys()}


def rename(gpu: str) -> Iterator[str]:
    """Names the plans of configs/ by numbers that lead to them today; tells what had none.

    A problem whose plans are all gone leaves configs/.
    """
    times = read_times(gpu)
    for file, kept in stores(gpu):
        for problem, entry in list(kept.entries.items()):
            run = max(timing.run for timing in entry.timings.values())
            us = times[problem]
            names = names_of(problem, entry.timings, set(us), gpu)
            timings = {name: Timing(us[key], run) for key, name in names.items()}
            if len(timings) < len(us):
                yield f"{problem.launcher} {problem.shape}: {len(us) - len(timings)} without a name"
            del kept.entries[problem]
            if timings:
                kept.put(Entry(problem, timings))
        store.write(kept, file)


# --- the evaluation ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How good the choices for a problem are: the best measured time over each choice's.

    Attributes:
        model: of the planner's own choice; None if it was not measured.
        near: of the store's choice without this problem; None as above.
        is_near: whether a near problem was measured; else `near` is the model's.
    """

    problem: Problem
    model: float | None
    near: float | None
    is_near: bool


def judge(times: Mapping[Problem, Mapping[str, float]], gpu: str) -> list[Verdict]:
    """The verdict of every problem whose plans were searched."""
    kept = {file.parent.name: each.entries for file, each in stores(gpu)}
    verdicts = []
    for problem, us in times.items():
        if problem.op in store.EXACT_ONLY and len(us) < SEARCHED:
            continue
        best = min(us.values())

        def share(numbers: Numbers) -> float | None:
            time = us.get(launched(plan_of(problem, numbers, gpu)))  # noqa: B023
            return None if time is None else best / time  # noqa: B023

        of_op = kept.get(problem.op, {}).items()
        others = Store(entries={p: entry for p, entry in of_op if p != problem})
        source, entry = others.find(problem)
        is_near = source == "near" and entry is not None
        model = share({})
        near = share(store.plan_numbers(entry.best_nearby)) if entry and is_near else model
        verdicts.append(Verdict(problem, model, near, is_near))
    return verdicts


HEADER = (
    "op", "launcher", "language", "problems", "model", "worst", "not measured", "near",
    "near or model", "worst", "not measured",
)  # fmt: skip


def table(verdicts: list[Verdict], least: float | None = None) -> list[list[str]]:
    """A line for each launcher and language, under `HEADER`.

    Args:
        least: the bar of the model's geometric mean, if it has one.
    """

    def key(verdict: Verdict) -> tuple[str, str, str]:
        problem = verdict.problem
        return problem.op, problem.launcher, problem.backend

    lines = []
    for group, found in itertools.groupby(sorted(verdicts, key=key), key):
        of = list(found)
        near = str(sum(verdict.is_near for verdict in of))
        lines.append([*group, str(len(of)), *_figures([v.model for v in of], least), near])
        lines[-1] += _figures([v.near for v in of], CHOSEN_MEAN, CHOSEN_WORST[group[2]])
    return lines


def _figures(
    shares: list[float | None], least: float | None = None, worst: float | None = None
) -> list[str]:
    known = [share for share in shares if share is not None]
    if not known:
        return ["–", "–", str(len(shares))]
    reached = Reached(statistics.geometric_mean(known), least), Reached(min(known), worst)
    return [*map(str, reached), str(len(shares) - len(known))]


def judge_all() -> dict[str, list[Verdict]]:
    """The verdicts of each GPU that has times."""
    return {gpu: judge(read_times(gpu), gpu) for gpu in measured()}


def markdown(verdicts: Mapping[str, list[Verdict]]) -> str:
    """A table for each GPU. The planners' numbers are those of the first: others are unknown."""
    lines = []
    for gpu, found in verdicts.items():
        least = None if gpu == GPUS[0] else OWN_MEAN
        lines += [f"### Stored times of an {gpu}", "", *markdown_table(HEADER, table(found, least))]
    return "\n".join(lines)


def render(texts: Mapping[Path, str], verdicts: Mapping[str, list[Verdict]]) -> dict[Path, str]:
    """The text of docs/tuning.md with new tables; `texts` may have the page's."""
    return {PAGE: put(texts.get(PAGE) or PAGE.read_text(), "stored", markdown(verdicts))}


def main(command: str = "") -> None:
    """Runs a command of this module's description."""
    if command == "":
        print(markdown(judge_all()))
    for gpu in measured() if command else ():
        if command == "record":
            write_times(record(gpu), gpu)
        elif command == "rename":
            print(*rename(gpu), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
