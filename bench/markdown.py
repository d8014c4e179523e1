"""Tables of Markdown, as the documents have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diglot.tools.numbers import NOTHING


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one below it."""
    return [_line(header), f"|{'---|' * len(header)}", *map(_line, body), ""]


def pivot(title: str, cells: Mapping[tuple[str, str], str]) -> list[str]:
    """The same of cells by row and column, both in the order in which they come first."""
    rows, columns = (dict.fromkeys(key[axis] for key in cells) for axis in (0, 1))
    body = [[row, *(cells.get((row, column), NOTHING) for column in columns)] for row in rows]
    return table([title, *columns], body)


def put(text: str, name: str, made: str) -> str:
    """A page's text with its part of this name, between two comments, made again."""
    begin, end = (f"<!-- {name}:{which} -->" for which in ("begin", "end"))
    before, rest = text.split(begin)
    return f"{before}{begin}\n{made}{end}{rest.split(end)[1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
