"""`diglot bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from diglot_cli.common import (
    case_options,
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
@case_options
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
@click.option("--force", is_flag=True, help="Overwrite files.")
def bench(asked: Any) -> None:
    """Measure ops on a GPU: every backend, PyTorch, and other packages' kernels, interleaved.

    OP is an op, such as gelu; by default all ops. Each op has its own cases. The same run checks
    the results, and a wrong result has no speed.
    """
    from diglot.bench import models as distribution
    from diglot.bench import plan_costs, session
    from diglot.bench.harness import OURS
    from diglot.bench.selection import Selection, parse_options, parse_sizes
    from diglot.files import check_folder
    from diglot.tools.inputs import parse_dtype, parse_shape

    # Everything that can be known to be wrong is told before anything is measured.
    if asked.warm and asked.graph:
        raise ValueError("--warm and --graph exclude each other: in a graph caches are warm")
    selection = Selection(
        direction=None if asked.direction == "both" else asked.direction,
        dtypes=tuple(map(parse_dtype, asked.dtypes)),
        shapes=tuple(map(parse_shape, asked.shapes)),
        sizes=tuple(parse_sizes(asked.sizes)) if asked.sizes is not None else (),
        options=parse_options(asked.options),
        timer="warm" if asked.warm else "graph" if asked.graph else None,
        providers=asked.providers,
        ranking=asked.ranking,
        models=asked.seed if asked.models else None,
        plans=asked.plans,
    )
    if asked.models and (
        asked.ranking or asked.warm or asked.graph or asked.sizes is not None or asked.shapes
    ):
        raise ValueError("--models draws cases of its own: it takes OPs, --direction and --dtype")
    if asked.plans is not None and (asked.ranking or asked.warm or asked.graph or asked.load):
        raise ValueError("--plans compares two times of our kernels, on cold caches, in this run")
    if not {*asked.providers} <= {*OURS} and asked.plans is not None:
        raise ValueError(f"--plans takes a --provider of {' and '.join(OURS)}")
    shown = (Selection(), Selection(ranking=True), Selection(models=asked.seed))
    if asked.load and selection not in shown:
        raise ValueError("--load shows saved results: it takes OPs, and no choice of cases")
    if asked.load and asked.results is not None:
        raise ValueError(
            "--load and --results exclude each other: loaded results are not written again"
        )
    check_files([], {"--json": asked.json_file, "--csv": asked.csv_file}, asked.force)
    if asked.plot is not None:
        check_folder(asked.plot, asked.force)
    messages = make_console(stderr=True)
    if asked.load:
        done = session.read(map(Path, asked.load), asked.ops)
    else:
        folder = None if asked.results is None else Path(asked.results)
        plan = session.plan(asked.ops, selection, folder, asked.force)
        session.check_gpu()
        session.compile_in_this_process()
        with ended_as_interrupted():
            if asked.models and asked.jobs:
                names = [benchmark.op for benchmark, _ in plan.benchmarks]
                distribution.compile_beforehand(names, asked.seed, asked.jobs)
            done = session.measure_all(plan, lambda text: messages.print(text, markup=False))

    try:  # first of all: who reads the tables may go away, as head does
        _keep(done, asked, messages)
    finally:
        if asked.plans is not None:
            print_table(plan_costs.HEADER, plan_costs.table(done.rows))
        elif asked.models:
            _print_models(done)
        else:
            _print(done, asked.ranking)
    for path in done.written:
        messages.print(f"wrote {path}", markup=False)
    if done.incomplete is not None:
        messages.print(f"{done.incomplete}", markup=False)
    if done.error is not None:
        raise done.error
    if done.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _keep(done: Any, asked: Any, messages: Console) -> None:
    from diglot.bench import reports

    if asked.json_file is not None:
        reports.save(done.report(), Path(asked.json_file))
        messages.print(f"wrote {asked.json_file}", markup=False)
    if asked.csv_file is not None:
        reports.write_csv(done.rows, Path(asked.csv_file))
        messages.print(f"wrote {asked.csv_file}", markup=False)
    if asked.plot is not None:
        from diglot.bench import plots

        paths = plots.plot(done.rows, Path(asked.plot), asked.force, done.gpu or "")
        messages.print(f"wrote {len(paths)} pictures to {asked.plot}", markup=False)


def _print(done: Any, ranking: bool) -> None:
    from diglot.bench import bar_tables, marks, summary
    from diglot.bench import ranking as ranks
    from diglot.bench.lines import RULE
    from diglot.tools.regimes import peak_gb_per_s

    print_verdict(*summary.verdict(done.rows, done.gpu))
    if ranking:
        print_table(ranks.header(), ranks.table(done.rows))
        print_table(ranks.LINES_HEADER, [ranks.lines_cells(*of) for of in done.lines.items()])
        if done.lines:
            make_console().print(RULE, markup=False)
    else:
        peak = None if done.gpu is None else peak_gb_per_s(done.gpu)
        print_table(summary.COLUMNS, [summary.cells(row, peak) for row in done.rows])
        if any("mean" in bar for row in done.rows for bar in row["bars"]):
            print_table(bar_tables.HEADER, bar_tables.table(done.rows))
    console = make_console()
    for line in (*summary.reasons(done.rows), *marks.notes(done.rows)):
        console.print(line, markup=False)


def _print_models(done: Any) -> None:
    from diglot.bench import model_bars, models

    print_table(model_bars.HEADER, model_bars.table(done.rows))
    print_table(models.WORST_HEADER, models.worst(done.rows))
