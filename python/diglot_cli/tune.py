"""`diglot tune`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.progress import track

from diglot_cli.common import (
    case_options,
    command,
    ended_as_interrupted,
    make_console,
    print_table,
    show_progress,
)

DEFAULT_ELEMENTS = 4096 * 4096  # of a matrix
WHERE = ("launcher", "language", "dtype", "shape", "layout")


@command()
@click.argument("ops", metavar="OP...", nargs=-1, required=True)
@case_options
@click.option("--like", metavar="FILE", help="A model's config.json: tune its rows, or layers.")
@click.option(
    "--backend",
    "backends",
    type=click.Choice(["cuda", "triton"]),
    multiple=True,
    help="Default: both.",
)
@click.option(
    "--folder", metavar="DIR", help="Folder of times. Default: $DIGLOT_CONFIGS, or a cache."
)
@click.option("--jobs", type=int, default=0, help="Compile Triton's plans in this many processes.")
@click.option(
    "--compile-for",
    metavar="GPU",
    help="Measure nothing: compile Triton's plans for a GPU, such as 'NVIDIA H200'.",
)
@click.option("--part", type=int, hidden=True, help="The number of this process.")
@click.option("--status", is_flag=True, help="Only say how plans are chosen.")
@click.option(
    "--judge",
    metavar="SEED",
    type=int,
    help="Time chosen plans against a search's best, at 12 random shapes; keep nothing.",
)
@click.option("--results", metavar="DIR", help="Folder for --judge: a file per op.")
@ended_as_interrupted()
def tune(asked: Any) -> None:
    """Measure the plans of ops on this GPU, and keep the times for later calls.

    Every plan runs in a CUDA graph, in turns with the others, on a cold L2 cache. Its results are
    compared with those of the planner's own plan.
    """
    from diglot.bench import chosen_plans, models
    from diglot.bench.running import describe
    from diglot.bench.selection import load
    from diglot.tools import measure
    from diglot.tools.gpus import named_device
    from diglot.tools.inputs import parse_dtype, parse_shape
    from diglot.tools.tune import choices_of, compile_call, tune_call

    if asked.like is not None and asked.shapes:
        raise ValueError("--like and --shape: one of them")
    if asked.judge is not None and (asked.like is not None or asked.shapes or asked.dtypes):
        raise ValueError("--judge draws shapes and dtypes itself")
    config = None if asked.like is None else _read_json(Path(asked.like))
    kinds = [parse_dtype(dtype) for dtype in asked.dtypes or ("bf16",)]

    def shapes_of(benchmark: Any) -> list[tuple[Any, Any]]:
        if asked.judge is not None:
            return chosen_plans.shapes(benchmark, asked.judge)
        if config is not None:
            chosen = models.shapes_of(config, sizes=models.sizes_of(benchmark))
        elif asked.shapes:
            chosen = [parse_shape(shape) for shape in asked.shapes]
        else:
            chosen = [benchmark.shape(DEFAULT_ELEMENTS)] if benchmark.shape else []
        return [(shape, kind) for shape in chosen for kind in kinds]

    benchmarks = [(of, shapes_of(of)) for of in (load(op).benchmark for op in asked.ops)]
    device = named_device(asked.compile_for) if asked.compile_for is not None else None
    reason = None if device is not None else measure.why_not()
    if reason is not None:
        raise ValueError(f"nothing is tuned: {reason}")
    directions = ("forward", "backward") if asked.direction == "both" else (asked.direction,)
    calls = list(_calls(benchmarks, directions, asked.backends or ("cuda", "triton")))
    if not calls:
        raise ValueError("no op of these has such a case")
    messages = make_console(stderr=True)
    if asked.part is not None or (device is not None and asked.jobs == 0):
        mine = calls if asked.part is None else calls[asked.part :: asked.jobs]
        is_silent = asked.part is not None or not messages.is_terminal
        for *_, make in track(mine, "compiling", console=messages, disable=is_silent):
            compile_call(make(), device)
        return
    if asked.status:
        _print_status([choice for *_, make in calls for choice in choices_of(make())])
        return
    if asked.jobs > 0:
        again = [sys.executable, "-m", "diglot_cli", *sys.argv[1:]]
        workers = [subprocess.Popen([*again, "--part", str(i)]) for i in range(asked.jobs)]
        for worker in workers:
            worker.wait()
    if device is not None:
        return
    found: list[Any] = []
    judged = {
        op: chosen_plans.Judged(op, asked.judge, asked.results and Path(asked.results))
        for op in (asked.ops if asked.judge is not None else ())
    }
    with show_progress(messages, "") as tell:
        for number, (op, case, backend, make) in enumerate(calls):
            tell.say(f"{op} {describe(case)}")
            tell.done(number, len(calls))
            if asked.judge is None:
                found += tune_call(make(), folder=asked.folder, tell=tell.say)
            elif not judged[op].has(case, backend):
                judged[op].add(chosen_plans.judge(op, case, make(), tell.say))
    if asked.judge is None:
        _print_found(found)
    else:
        rows = [row for of_op in judged.values() for row in of_op.rows]
        print_table(chosen_plans.HEADER, chosen_plans.table(rows))


def _calls(
    benchmarks: list[Any], directions: tuple[str, ...], backends: tuple[str, ...]
) -> Iterator[tuple[str, Any, str, Any]]:
    """The op, the case, the backend, and what makes the call: of all benchmarks and shapes."""
    from diglot.bench.harness import Case
    from diglot.bench.models import options_of

    def maker(benchmark: Any, case: Any, backend: str) -> Any:
        return lambda: benchmark.providers[backend](case, benchmark.inputs(case))

    for benchmark, shapes in benchmarks:
        has = {case.direction for case in benchmark.cases}
        for shape, dtype in shapes:
            for direction in directions:
                case = Case(direction, dtype, shape, options_of(benchmark, direction))
                if direction not in has or not benchmark.takes(case):
                    continue
                for backend in backends:
                    yield benchmark.op, case, backend, maker(benchmark, case, backend)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--like: {path} cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"--like: {path} is no model's config")
    return read


def _where(problem: Any) -> list[str]:
    shape = "x".join(map(str, problem.shape))
    return [problem.launcher, problem.backend, problem.dtypes[0], shape, problem.layout]


def _print_found(found: list[Any]) -> None:
    from diglot.tools.numbers import NOTHING
    from diglot.tools.table import Column

    if not found:
        make_console().print("nothing is tuned: each of these launches has one plan")
        return
    lines = []
    for tuned in found:
        own, best = tuned.times_us.get(""), tuned.times_us[tuned.best]
        times = [NOTHING if own is None else f"{own:.2f}", f"{best:.2f}"]
        lines.append(
            [*_where(tuned.problem), str(len(tuned.times_us)), *times, tuned.best or "its own"]
        )
    print_table([*WHERE, *map(Column, ("plans", "own µs", "best µs")), "plan"], lines)
    console = make_console()
    for tuned in found:
        for name, reason in tuned.skipped.items():
            console.print(
                f"{tuned.problem.launcher} [{tuned.problem.backend}] skipped {name}: {reason}",
                markup=False,
            )


def _print_status(choices: list[Any]) -> None:
    lines = [[*_where(choice.problem), str(choice)] for choice in choices]
    print_table([*WHERE, "chosen"], lines)
    counts = Counter(choice.source for choice in choices)
    near = f"{counts['near']} by a near shape"
    make_console().print(f"{counts['exact']} measured, {near}, {counts['model']} by the model")
