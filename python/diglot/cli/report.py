"""`diglot report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from diglot.cli.common import check_files, make_console, one_line_errors


@click.command()
@click.argument("results", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="The page to write.",
)
@click.option(
    "--sources",
    metavar="HASH",
    default="",
    help="Of the sources at hand, as python bench/evidence.py prints it: results of others are "
    "marked as stale. In a source tree it is that of the tree.",
)
@click.option("--force", is_flag=True, help="Overwrite the page.")
def report(**arguments: Any) -> None:
    """Make a page of RESULTS, files that benchmarks and GPU tests wrote, or folders of them.

    It is one HTML file, which needs no network: a roofline, a ranking, the bars that are missed,
    pictures of each op's speed, and every measurement in tables that can be sorted.
    """
    with one_line_errors():
        _report(**arguments)


def _report(*, results: tuple[str, ...], output: str, sources: str, force: bool) -> None:
    from diglot.bench.evidence import ROOT, source_hash
    from diglot.tools.files import writing
    from diglot.tools.report import read, render

    files = [name for name in results if not Path(name).is_dir()]
    check_files(files, {"--output": output}, force)
    found = read(results)
    page = render(found, sources or (source_hash() if ROOT is not None else ""))
    with writing(output):
        Path(output).write_text(page, encoding="utf-8")
    messages = make_console(stderr=True)
    for _, reason in found.left_out:
        messages.print(f"left out: {reason}", markup=False, soft_wrap=True)
    messages.print(f"wrote {output}", markup=False, soft_wrap=True)
