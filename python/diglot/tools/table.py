"""Tables of text: cells under columns, which rich lays out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diglot.tools.numbers import NOTHING, number

if TYPE_CHECKING:
    import rich.table

WRAPPED_WIDTH = 16  # a column of text may shrink to this


@dataclass(frozen=True)
class Column:
    """A column: its title, which may have several lines, and whether it holds numbers."""

    title: str
    is_number: bool = True


@dataclass(frozen=True)
class Table:
    """Cells under columns. A cell may be empty. A column may be given as the title of texts."""

    titles: Sequence[Column | str]
    rows: Sequence[Sequence[str]]

    @property
    def columns(self) -> list[Column]:
        return [Column(of, False) if isinstance(of, str) else of for of in self.titles]

    def shown(self) -> Table:
        """The same without columns whose cells are all empty. The first column stays."""
        kept = [
            place
            for place in range(len(self.titles))
            if place == 0 or any(row[place] not in ("", NOTHING) for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return Table([self.titles[place] for place in kept], rows)

    def rich(self, has_rule: bool = True) -> rich.table.Table:
        """As rich prints it. Numbers are never broken. Texts wrap between words.

        Raises:
            ImportError: rich is not installed.
        """
        try:
            import rich.table
            from rich import box
            from rich.markup import escape
        except ImportError as error:
            message = 'tables need rich, which is not installed: pip install "diglot[tools]"'
            raise ImportError(message) from error
        form = box.SIMPLE_HEAD if has_rule else None
        has_head = any(column.title for column in self.columns)
        made = rich.table.Table(box=form, padding=(0, 1), pad_edge=False, show_header=has_head)
        for place, column in enumerate(self.columns):
            lines = [*column.title.split("\n"), *(cells[place] for cells in self.rows)]
            longest = max(map(len, lines))
            word = max(map(len, " ".join(lines).split()), default=0)
            made.add_column(
                escape(column.title),
                justify="right" if column.is_number else "left",
                min_width=longest if column.is_number else min(longest, max(word, WRAPPED_WIDTH)),
                vertical="bottom",
            )
        for cells in self.rows:
            made.add_row(*map(escape, cells))
        return made

    def __str__(self) -> str:
        """As wide as it needs to be, without a rule below its head."""
        return plain(self.rich(has_rule=False))


def plain(made: Any) -> str:
    """What rich prints, as text that is as wide as it needs to be."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=1 << 20, force_terminal=False, force_jupyter=False).print(made)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def of_mappings(rows: Iterable[Mapping[str, Any]]) -> Table:
    """A column for each entry that is a text or a number, or is not there, in every row."""
    rows = list(rows)
    simple, kinds = (str, int, float, type(None)), {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if all(isinstance(row.get(name), simple) for row in rows):
            kinds[name] = all(_is_number(row.get(name)) for row in rows)
    cells = [[_text(row.get(name)) for name in kinds] for row in rows]
    return Table([Column(name, is_number) for name, is_number in kinds.items()], cells)


def _is_number(value: Any) -> bool:
    return not isinstance(value, (str, bool))


def _text(value: Any) -> str:
    return number(value) if _is_number(value) else str(value)
