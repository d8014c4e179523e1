"""The tables of README.md and of pages in docs, from the committed results.

`python tools/pages.py` writes them. Every figure is a row of bench/results/<gpu>/<op>.json;
nothing is typed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from diglot.bench import (
    bar_tables,
    chosen_plans,
    collective_tables,
    ladder,
    marks,
    model_bars,
    models,
    plan_costs,
    ranking,
    size_tables,
    standing,
    stream_tables,
    tile_order,
)
from diglot.bench.barrier_tables import designs_table, use_table
from diglot.bench.evidence import ROOT
from diglot.bench.graph_tables import graphs_markdown
from diglot.bench.harness import OURS
from diglot.bench.markdown import Reports, by_gpu, of_each_gpu, put, table
from diglot.bench.patched import patched_markdown
from diglot.bench.reports import measured_on
from diglot.bench.result_files import committed
from diglot.reference.specs import all_op_names

MISSED_HEADER = ("op", "bars of cuda", "missed", "bars of triton", "missed")


def _missed(report: dict[str, Any]) -> list[str]:
    """An op's cells under `MISSED_HEADER`."""
    cells = [report["op"]]
    for provider in OURS:
        bars = [b for row in report["rows"] if row["provider"] == provider for b in row["bars"]]
        missed = sum(not bar["met"] for bar in bars)
        cells += [str(len(bars)), f"{missed} ✗" if missed else "0"]
    return cells


def overview(reports: Reports) -> str:
    """Ours against the best peer, and how many bars are missed, of all ops on a GPU."""
    rows = [row for report in reports for row in report["rows"]]
    with_bars = [report for report in reports if any(row["bars"] for row in report["rows"])]
    said = f"{measured_on(reports)}. {standing.MEANING} {standing.OTHERS} {marks.OLDER}"
    lines = [said, "", " ".join(marks.notes(rows)), ""]
    for header, body in (
        (standing.HEADER, standing.lines(reports)),
        (MISSED_HEADER, map(_missed, with_bars)),
    ):
        lines += table(header, body)
    return "\n".join(lines)


def each(made: Callable[[dict[str, Any]], str]) -> Callable[[Reports], str]:
    """From a text of one report, that of all."""
    return lambda reports: "\n".join(map(made, reports))


def apart(made: Callable[[Reports], str]) -> Callable[[Reports], str]:
    """From a text of one GPU's reports, that of all GPUs."""
    return lambda reports: "\n".join(map(made, of_each_gpu(reports)))


def of_rows(*made: tuple[Sequence[str], Callable[[Any], Any]]) -> Callable[[Reports], str]:
    """For each GPU tables, given by a header and by what makes lines of rows."""

    def tables(rows: list[dict[str, Any]]) -> list[str]:
        return [line for header, lines in made for line in table(header, lines(rows))]

    return lambda reports: by_gpu(reports, tables)


MODELS = of_rows(
    (model_bars.HEADER, model_bars.table),
    (models.WORST_HEADER, models.worst),
)


def _layers(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Those of published models in which the peer is furthest ahead."""
    kind = "linear", "forward", "device"
    return models.worst([r for r in rows if (r["op"], r["direction"], r["timer"]) == kind])


PRODUCT_OPS = (
    "matmul",
    "linear",
    "addmm",
    "bmm",
    "baddbmm",
    "mlp",
    "scaled_mm",
    "grouped_mm",
    "moe",
)
PRODUCTS = of_rows(
    (bar_tables.HEADER, bar_tables.table),
    (models.WORST_HEADER, _layers),
)


def _of_readme(reports: Reports) -> str:
    """How ops stand on one GPU."""
    first, *others = of_each_gpu(reports)
    more = [f"[Speed](docs/speed.md) also has the figures of an {of[0]['gpu']}." for of in others]
    return standing.markdown(first, *more)


def _files(ops: Iterable[str]) -> str:
    return " ".join(f"results/*/{op}.json" for op in ops)


CHOSEN = of_rows((chosen_plans.HEADER, chosen_plans.table))
COSTS = of_rows((plan_costs.HEADER, plan_costs.table))
OPS = all_op_names()
OTHER_OPS = [op for op in OPS if op not in PRODUCT_OPS]
# Of the pages, by the mark of a part: which committed results it is of, and what makes it.
PARTS: tuple[tuple[str, str, str, Callable[[Reports], str]], ...] = (
    ("README.md", "bench", f"{_files(OTHER_OPS)} distributions/*/models/*.json", _of_readme),
    ("docs/speed.md", "bench", _files(OPS), apart(overview)),
    ("docs/speed.md", "models", "distributions/*/models/*.json", MODELS),
    ("docs/speed.md", "sizes", "distributions/*/sizes/*.json", size_tables.markdown),
    ("docs/tuning.md", "plans", "distributions/*/plans/*.json", CHOSEN),
    ("docs/tuning.md", "invariant", "distributions/*/invariant/*.json", COSTS),
    ("docs/ranking.md", "ranking", "results/*/ranking/*.json", apart(ranking.markdown)),
    ("docs/barriers.md", "designs", "results/*/barrier_designs.json", each(designs_table)),
    ("docs/barriers.md", "use", "results/*/barrier_designs.json", each(use_table)),
    ("docs/products.md", "bench", _files(PRODUCT_OPS), PRODUCTS),
    ("docs/ladder.md", "ladder", "results/*/ladder.json", ladder.markdown),
    ("docs/ladder.md", "orders", "results/*/ladder.json", lambda _: tile_order.markdown()),
    ("docs/collectives.md", "bench", "results/*/collectives.json", collective_tables.markdown),
    ("docs/graphs.md", "bench", "results/*/graphs.json", graphs_markdown),
    ("docs/models.md", "patched", "results/*/patched.json", patched_markdown),
    ("docs/pipeline.md", "cases", "results/*/stream_cases.json", stream_tables.markdown),
    ("docs/pipeline.md", "bench", "results/*/stream_map.json", stream_tables.markdown),
)


def render() -> dict[Path, str]:
    """The documents' texts with new tables."""
    assert ROOT is not None, "the documents are those of a source tree"
    texts: dict[Path, str] = {}
    for document, name, pattern, make in PARTS:
        path, reports = ROOT / document, committed(pattern)
        made = make(reports) if reports else "No results are committed yet.\n"
        texts[path] = put(texts.get(path) or path.read_text(), name, made)
    return texts
