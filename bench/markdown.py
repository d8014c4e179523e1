"""Tables of Markdown, as the documents have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from diglot.bench import marks
from diglot.tools.numbers import NOTHING


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one below it."""
    return [_line(header), f"|{'---|' * len(header)}", *map(_line, body), ""]


def pivot(title: str, cells: Mapping[tuple[str, str], str]) -> list[str]:
    """Such lines of cells by row and column, both in the order of their first cells."""
    rows, columns = (dict.fromkeys(key[axis] for key in cells) for axis in (0, 1))
    body = [[row, *(cells.get((row, column), NOTHING) for column in columns)] for row in rows]
    return table([title, *columns], body)


Reports = list[dict[str, Any]]


def of_each_gpu(reports: Iterable[dict[str, Any]]) -> list[Reports]:
    """The reports of each GPU, in the order of the first ones."""
    found: dict[str, Reports] = {}
    for report in reports:
        found.setdefault(report["gpu"], []).append(report)
    return list(found.values())


def by_gpu(
    reports: Iterable[dict[str, Any]], tables: Callable[[list[dict[str, Any]]], Iterable[str]]
) -> str:
    """Tables of the rows of reports, for each GPU, below the dates and commits of these."""
    lines: list[str] = []
    for of_gpu in of_each_gpu(reports):
        ops: dict[str, list[str]] = {}
        for each in of_gpu:
            seed = f", seed {each['seed']}" if "seed" in each else ""
            where = f"At commit {each['commit'][:7]}, {each['date']}{seed}"
            old = marks.is_of_old_kernels(each)
            ops.setdefault(where, []).append(each["op"] + " †" * old)
        said = [f"{where}: {', '.join(names)}." for where, names in ops.items()]
        said += [marks.OLDER] * any(map(marks.is_of_old_kernels, of_gpu))
        lines += [f"### {of_gpu[0]['gpu']}", "", *said, ""]
        lines += tables([row for report in of_gpu for row in report["rows"]])
    return "\n".join(lines)


def put(text: str, name: str, made: str) -> str:
    """A page's text with its part of this name, between two comments, made again."""
    begin, end = (f"<!-- {name}:{which} -->" for which in ("begin", "end"))
    before, rest = text.split(begin)
    return f"{before}{begin}\n{made}{end}{rest.split(end)[1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
