"""What results of ops have in common: cases, their names, and who computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diglot.bench.harness import Row, Rows
from diglot.bench.reports import by_case
from diglot.bench.result_files import File
from diglot.tools.drawing import PROVIDERS

# In the order of the ranking: the formula, PyTorch, its compiler, the two languages, then peers.
ORDER = ("formula", "torch", "torch.compile", "max-autotune", "triton", "cuda", *PROVIDERS)
# Timers whose times are of the device with cold caches, and have a ceiling.
COLD = ("device", "captured")


def providers_of(files: Iterable[File]) -> list[str]:
    """All providers of results of ops, in the order of the ranking."""
    names = {row["provider"] for file in files if file.is_of_ops for row in file.rows}
    return [*(n for n in dict.fromkeys(ORDER) if n in names), *sorted(names - set(ORDER))]


def by_op(files: Iterable[File]) -> dict[str, list[tuple[File, list[Row]]]]:
    """Each op with its rows, file by file: of its own cases and of a ranking, say.

    A file may hold several ops, as `diglot bench gelu softmax --json FILE` writes it.
    """
    found: dict[str, list[tuple[File, list[Row]]]] = {}
    for file in files:
        if file.is_of_ops:
            for op in dict.fromkeys(row["op"] or file.op for row in file.rows):
                rows = [row for row in file.rows if (row["op"] or file.op) == op]
                found.setdefault(op, []).append((file, rows))
    return found


def largest(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[Rows]:
    """Of each kind of cases the one that moves most bytes; the last of several that do."""
    found: dict[Any, Rows] = {}
    for case in by_case(rows):
        kind = key(next(iter(case.values())))
        if kind not in found or moved(case) >= moved(found[kind]):
            found[kind] = case
    return list(found.values())


def moved(case: Mapping[str, Row]) -> float:
    """Bytes of a case."""
    return max(row.get("bytes", 0) for row in case.values())
