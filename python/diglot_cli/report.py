"""`diglot report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from diglot_cli.common import check_files, command, make_console


@command()
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
    help="Hash of the sources, from python bench/evidence.py: marks results of other sources as "
    "stale. In a source tree it is that of the tree.",
)
@click.option("--force", is_flag=True, help="Overwrite the page.")
def report(asked: Any) -> None:
    """Make a page of RESULTS: files of benchmarks and GPU tests, or folders of them.

    The page is one HTML file that needs no network. It has a roofline, a ranking, missed bars, a
    picture of each op's speed, and every measurement in sortable tables.
    """
    from diglot.bench.evidence import ROOT, source_hash
    from diglot.files import writing
    from diglot.tools.report import read, render

    files = [name for name in asked.results if not Path(name).is_dir()]
    check_files(files, {"--output": asked.output}, asked.force)
    found = read(asked.results)
    page = render(found, asked.sources or (source_hash() if ROOT is not None else ""))
    with writing(asked.output):
        Path(asked.output).write_text(page, encoding="utf-8")
    messages = make_console(stderr=True)
    if found.left_out:
        messages.print(f"left out: {len(found.left_out)} files, as the page says", markup=False)
    messages.print(f"wrote {asked.output}", markup=False, soft_wrap=True)
