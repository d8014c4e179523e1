"""The ranking: five ways to write an op, ordered by time, with launches, host time and lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from diglot.bench import marks
from diglot.bench.harness import RANKED, Row, Rows
from diglot.bench.lines import RULE
from diglot.bench.markdown import NOTHING
from diglot.bench.markdown import table as markdown_table
from diglot.bench.reports import by_case, label, measured_on, no_time

TITLES = {
    "formula": "manual formula",
    "torch": "PyTorch",
    "torch.compile": "torch.compile",
    "triton": "Triton",
    "cuda": "CUDA",
}
NOISE = 0.02
# The savings that are shown: a row's figure, its title, and how it is written.
SAVED = (("launches", "launches saved", "d"), ("host_us", "host µs saved", ".3g"))
LINES_HEADER = ("lines of code", *(TITLES[name] for name in RANKED))


def is_noise(a: Row, b: Row) -> bool:
    """Whether two times differ by no more than noise: by 2 %, or with bands that overlap.

    A band is from the 20th to the 80th percentile of a row's samples.
    """
    low, high = sorted((a, b), key=lambda row: row["time_us"])
    return high["time_us"] <= low["time_us"] * (1 + NOISE) or high["p20_us"] <= low["p80_us"]


def ranks(rows: Rows, among: Collection[str] = RANKED) -> dict[str, int]:
    """By provider with a time its place in a case, from 1; those within noise share a place."""
    timed = sorted(
        (row for row in rows.values() if "time_us" in row and row["provider"] in among),
        key=lambda row: row["time_us"],
    )
    places: dict[str, int] = {}
    leader: Row | None = None
    for place, row in enumerate(timed, 1):
        if leader is None or not is_noise(leader, row):
            leader = row
            places[row["provider"]] = place
        else:
            places[row["provider"]] = places[leader["provider"]]
    return places


def header(names: Sequence[str] = RANKED) -> list[str]:
    """The titles of `table`."""
    return ["case", *(TITLES.get(name, name) for name in names), *(title for _, title, _ in SAVED)]


def _cell(row: Row | None, places: Mapping[str, int], has_bands: bool) -> str:
    if row is None:
        return NOTHING
    if "time_us" not in row:
        return no_time(row)
    band = f" ({row['p20_us']:.4g}–{row['p80_us']:.4g})" if has_bands else ""
    return ", ".join(
        filter(None, (f"{places[row['provider']]}. {row['time_us']:.4g}{band}", marks.words(row)))
    )


def _saved(rows: Rows, figure: str, style: str) -> str:
    """The formula's figure, and our kernels' figures."""
    figures = [rows.get(name, {}).get(figure) for name in ("formula", "triton", "cuda")]
    texts = [NOTHING if f is None else format(f, style) for f in figures]
    return f"{texts[0]} → {' / '.join(dict.fromkeys(texts[1:]))}"


def cells(rows: Rows, has_bands: bool = True, names: Sequence[str] = RANKED) -> list[str]:
    """A case's cells under `header`: places and medians in µs; launches; host µs.

    Args:
        rows: of one case, by provider.
        names: the providers that are ranked.
    """
    places = ranks(rows, names)
    first = next(iter(rows.values()))
    return [
        label(first) if first["timer"] == "device" else f"{label(first)} [{first['timer']}]",
        *(_cell(rows.get(name), places, has_bands) for name in names),
        *(_saved(rows, figure, style) for figure, _, style in SAVED),
    ]


def lines_cells(op: str, lines: Mapping[str, Mapping[str, int]]) -> list[str]:
    """An op's cells under `LINES_HEADER`, as `lines.RULE` says."""
    texts = []
    for name in RANKED:
        if name not in lines:
            texts.append(NOTHING)
            continue
        mark = " †" if name == "torch.compile" and lines[name].get("calls") else ""
        texts.append(f"{lines[name]['own']}{mark}")
    return [op, *texts]


def table(
    rows: Iterable[Row], has_bands: bool = True, names: Sequence[str] = RANKED
) -> list[list[str]]:
    """The cells of every case under `header`, as `cells` says."""
    return [cells(of, has_bands, names) for of in by_case(rows)]


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """The ranking of every op, and the lines of code, as two tables."""
    lines: list[str] = []
    if reports:
        lines += [
            f"{measured_on(reports)}. A cell has the place and the median in µs. Ways that differ "
            "by no more than noise share a place. Every result was verified in the same run.",
            "",
        ]
    rows = [row for report in reports for row in report["rows"]]
    shown = table(rows, has_bands=False)
    lines += [" ".join(marks.notes(rows)), "", *markdown_table(header(), shown)]
    of_code = [lines_cells(*of) for report in reports for of in report.get("lines", {}).items()]
    lines += [RULE, "", *markdown_table(LINES_HEADER, of_code)]
    return "\n".join(lines)
