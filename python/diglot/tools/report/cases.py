"""What results of ops have in common: cases, their names, and providers' styles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from diglot.bench import reports
from diglot.tools.report.results import File, Row

# In the order of the ranking: the formula, PyTorch, its compiler, the two languages, then peers.
PROVIDERS = (
    "formula",
    "torch",
    "torch.compile",
    "max-autotune",
    "triton",
    "cuda",
    "liger",
    "quack",
)
OURS = ("cuda", "triton")
# Colour and mark of each; whatever else there is shares the last one.
STYLES = {
    "cuda": 0,
    "triton": 1,
    "torch": 2,
    "torch.compile": 3,
    "formula": 4,
    "liger": 5,
    "quack": 6,
}
OTHER_STYLE = 7


@dataclass(frozen=True)
class Provider:
    """A way of computing: its name, its style, and by what the page shows and hides it."""

    name: str
    style: int
    key: str


def providers_of(files: Iterable[File]) -> dict[str, Provider]:
    """All providers of results of ops, by name, in the order of the ranking."""
    names = {row.provider for file in files if is_of_op(file) for row in file.rows}
    ordered = [name for name in PROVIDERS if name in names]
    ordered += sorted(names - set(ordered))
    return {
        name: Provider(name, STYLES.get(name, OTHER_STYLE), f"p{number}")
        for number, name in enumerate(ordered)
    }


def by_op(files: Iterable[File]) -> list[File]:
    """One for each op, with its rows of all files: of its own cases and of a ranking, say.

    A file may hold several ops, as `diglot bench gelu softmax --json FILE` writes it.
    """
    found: dict[str, list[tuple[File, Row]]] = {}
    for file in filter(is_of_op, files):
        for row in file.rows:
            found.setdefault(row.op or file.op, []).append((file, row))
    return [
        replace(
            of[0][0],
            op=op,
            commit=", ".join(dict.fromkeys(file.commit[:12] for file, _ in of if file.commit)),
            incomplete=", ".join({f.path: f.incomplete for f, _ in of if f.incomplete}.values()),
            date=max(file.date for file, _ in of),
            rows=tuple(row for _, row in of),
        )
        for op, of in found.items()
    ]


def is_of_op(file: File) -> bool:
    """Whether a file has results of ops, as `diglot bench` measures them."""
    return file.kind == "benchmark" and bool(file.rows) and reports.is_of_harness(file.content)


def options_text(options: Mapping[str, Any]) -> str:
    """Options in words; of GELU's forms the one that PyTorch calls "none" is the one with erf."""
    return ", ".join(
        {"none": "erf"}.get(value, value) if isinstance(value, str) else f"{name} {value}"
        for name, value in options.items()
    )


def shape_text(row: Row) -> str:
    """Sizes, such as 16384×16384."""
    return "×".join(map(str, row.shape))


def kind_text(row: Row) -> str:
    """Direction and options."""
    return " ".join(filter(None, (options_text(row.options), row.direction)))


def groups(
    rows: Iterable[Row], *keys: str
) -> dict[tuple[Any, ...], dict[tuple[int, ...], dict[str, Row]]]:
    """Rows by the attributes named, then by shape, then by provider.

    A case of an op's own may be one of the ranking too; then the former counts, which has bars.
    """
    found: dict[tuple[Any, ...], dict[tuple[int, ...], dict[str, Row]]] = {}
    for row in rows:
        of = tuple(kind_text(row) if key == "kind" else getattr(row, key) for key in keys)
        case = found.setdefault(of, {}).setdefault(row.shape, {})
        if row.provider not in case or not reports.is_ranked(row.content):
            case[row.provider] = row
    return found


def largest(cases: Mapping[tuple[int, ...], dict[str, Row]]) -> dict[str, Row]:
    """Of cases by shape the one that moves most bytes; the last of several that move as many."""

    def moved(rows: dict[str, Row]) -> float:
        return max(row.bytes or 0 for row in rows.values())

    most = max(map(moved, cases.values()))
    return [rows for rows in cases.values() if moved(rows) == most][-1]
