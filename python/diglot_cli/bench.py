"""`diglot bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from diglot_cli.common import (
    check_files,
    command,
    ended_as_interrupted,
    make_console,
    print_table,
    print_verdict,
)

INTERRUPTED = 130  # as a shell reports Ctrl-C


@command()
@click.argument("ops", metavar="[OP]...", nargs=-1)
@click.option(
    "--direction",
    type=click.Choice(["forward", "backward", "both"]),
    default="both",
    show_default=True,
    help="The pass to measure.",
)
@click.option("--dtype", "dtypes", metavar="DTYPE", multiple=True, help="Such as bf16; repeatable.")
@click.option(
    "--shape", "shapes", metavar="SHAPE", multiple=True, help="Such as 8192x8192; repeatable."
)
@click.option("--sizes", metavar="SIZES", help="Numbers of elements: 2^12..2^27 or 1000,2^20.")
@click.option(
    "--option", "options", metavar="NAME=VALUE", multiple=True, help="Such as approximate=tanh."
)
@click.option(
    "--provider",
    "--backend",
    "providers",
    metavar="NAME",
    multiple=True,
    help="cuda, triton, torch, torch.compile, max-autotune, formula, ...; repeatable.",
)
@click.option("--warm", is_flag=True, help="Make the same call just before; default: cold caches.")
@click.option("--graph", is_flag=True, help="Time 20 calls in a CUDA graph, with warm caches.")
@click.option("--ranking", is_flag=True, help="Rank formula, PyTorch, compiled, Triton and CUDA.")
@click.option("--models", is_flag=True, help="Draw shapes of published models.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of --models.")
@click.option("--jobs", type=int, default=0, help="With --models: compile in this many processes.")
@click.option(
    "--plans",
    type=click.Choice(["measured", "model", "invariant"]),
    help="Time our kernels under these plans, beside their usual ones.",
)
@click.option("--results", metavar="DIR", help="Write DIR/<gpu>/<op>.json after each op.")
@click.option("--json", "json_file", metavar="FILE", help="Write all rows as JSON.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write all rows as CSV.")
@click.option("--plot", metavar="DIR", help="Draw speed against size, or bars per shape.")
@click.option(
    "--load", metavar="PATH", multiple=True, help="Show results of a file or folder, without a GPU."
)
@click.option(
    "--against",
    metavar="PATH",
    help="Older results. Exit status 1 if a kernel of diglot is slower or fails.",
)
@click.option("--force", is_flag=True, help="Overwrite files.")
def bench(
    ops: tuple[str, ...],
    *,
    direction: str,
    dtypes: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: str | None,
    options: tuple[str, ...],
    providers: tuple[str, ...],
    warm: bool,
    graph: bool,
    ranking: bool,
    models: bool,
    seed: int,
    jobs: int,
    plans: str | None,
    results: str | None,
    json_file: str | None,
    csv_file: str | None,
    plot: str | None,
    load: tuple[str, ...],
    against: str | None,
    force: bool,
) -> None:
    """Measure ops on a GPU: every backend, PyTorch, and other packages' kernels, interleaved.

    OP is an op, such as gelu; by default all ops. Each op has its own cases. The same run checks
    the results, and a wrong result has no speed.
    """
    from diglot.bench import models as distribution
    from diglot.bench import plan_costs, session
    from diglot.bench.harness import OURS
    from diglot.bench.result_files import read_reports
    from diglot.bench.selection import Selection, parse_options, parse_sizes
    from diglot.files import check_folder
    from diglot.tools.inputs import parse_dtype, parse_shape

    # Everything that can be known to be wrong is told before anything is measured.
    if warm and graph:
        raise ValueError("--warm and --graph exclude each other: in a graph caches are warm")
    selection = Selection(
        direction=None if direction == "both" else direction,
        dtypes=tuple(map(parse_dtype, dtypes)),
        shapes=tuple(map(parse_shape, shapes)),
        sizes=tuple(parse_sizes(sizes)) if sizes is not None else (),
        options=parse_options(options),
        timer="warm" if warm else "graph" if graph else None,
        providers=providers,
        ranking=ranking,
        models=seed if models else None,
        plans=plans,
    )
    if models and (ranking or warm or graph or sizes is not None or shapes):
        raise ValueError("--models draws cases of its own: it takes OPs, --direction and --dtype")
    if plans is not None and (ranking or warm or graph or load or against is not None):
        raise ValueError("--plans compares two times of our kernels, on cold caches, in this run")
    if not {*providers} <= {*OURS} and plans is not None:
        raise ValueError(f"--plans takes a --provider of {' and '.join(OURS)}")
    shown = (Selection(), Selection(ranking=True), Selection(models=seed))
    if load and selection not in shown:
        raise ValueError("--load shows saved results: it takes OPs, and no choice of cases")
    if load and results is not None:
        raise ValueError(
            "--load and --results exclude each other: loaded results are not written again"
        )
    check_files([], {"--json": json_file, "--csv": csv_file}, force)
    if plot is not None:
        check_folder(plot, force)
    older = [] if against is None else read_reports(Path(against))
    messages = make_console(stderr=True)
    if load:
        done = session.read(map(Path, load), ops)
    else:
        plan = session.plan(ops, selection, None if results is None else Path(results), force)
        session.check_gpu(older)
        session.compile_in_this_process()
        with ended_as_interrupted():
            if models and jobs:
                names = [benchmark.op for benchmark, _ in plan.benchmarks]
                distribution.compile_beforehand(names, seed, jobs)
            done = session.measure_all(
                plan,
                lambda text: messages.print(text, markup=False),
            )
    session.check_same_gpu(older, done.gpu)

    try:  # first of all: who reads the tables may go away, as head does
        _keep(done, json_file, csv_file, plot, force, messages)
    finally:
        if plans is not None:
            print_table(plan_costs.HEADER, plan_costs.table(done.rows))
        elif models:
            _print_models(done)
        else:
            _print(done, ranking)
    for path in done.written:
        messages.print(f"wrote {path}", markup=False)
    status = _print_changes(done, older) if against is not None else 0
    if done.incomplete is not None:
        messages.print(f"{done.incomplete}", markup=False)
    if done.error is not None:
        raise done.error
    if status or done.interrupted:
        raise click.exceptions.Exit(INTERRUPTED if done.interrupted else status)


def _keep(
    done: Any,
    json_file: str | None,
    csv_file: str | None,
    plot: str | None,
    force: bool,
    messages: Console,
) -> None:
    from diglot.bench import reports

    if json_file is not None:
        reports.save(done.report(), Path(json_file))
        messages.print(f"wrote {json_file}", markup=False)
    if csv_file is not None:
        reports.write_csv(done.rows, Path(csv_file))
        messages.print(f"wrote {csv_file}", markup=False)
    if plot is not None:
        from diglot.bench import plots

        paths = plots.plot(done.rows, Path(plot), force, done.gpu or "")
        messages.print(f"wrote {len(paths)} pictures to {plot}", markup=False)


def _print(done: Any, ranking: bool) -> None:
    from diglot.bench import marks, summary
    from diglot.bench import ranking as ranks
    from diglot.bench.lines import RULE
    from diglot.tools.regimes import peak_gb_per_s

    print_verdict(*summary.verdict(done.rows, done.gpu))
    if ranking:
        print_table(ranks.header(done.rows), ranks.table(done.rows))
        print_table(ranks.LINES_HEADER, [ranks.lines_cells(*of) for of in done.lines.items()])
        if done.lines:
            make_console().print(RULE, markup=False)
    else:
        peak = None if done.gpu is None else peak_gb_per_s(done.gpu)
        print_table(summary.COLUMNS, [summary.cells(row, peak) for row in done.rows])
    console = make_console()
    for line in (*summary.reasons(done.rows), *marks.notes(done.rows)):
        console.print(line, markup=False)


def _print_models(done: Any) -> None:
    from diglot.bench import model_bars, models

    print_table(model_bars.HEADER, model_bars.table(done.rows))
    print_table(models.HEADER, models.table(done.rows))
    print_table(models.WORST_HEADER, models.worst(done.rows))


def _print_changes(done: Any, older: Sequence[Any]) -> int:
    from diglot.bench import regressions

    older_rows = [row for report in older for row in report["rows"]]
    changes = regressions.compare(done.rows, older_rows)
    told = [change.cells for change in changes if change.verdict != regressions.SAME]
    print_table(regressions.HEADER, told)
    counts = Counter(change.verdict for change in changes)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    make_console().print(f"against older results: {said or 'nothing in common'}", markup=False)
    return int(any(change.is_regression for change in changes))
