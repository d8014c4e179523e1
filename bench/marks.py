"""Remarks that tables add to figures: a compiler's mode, a strawman, exposed host time.

A row carries its remark in "how": a few words, and after a colon the explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from diglot.tools.op_sources import hashes_of

STRAWMAN = (
    "strawman: PyTorch has no such op. F.layer_norm of the whole array as one row stands in its "
    "place. Nobody would choose that"
)
EXPOSED = "with host time"
OLDER = "† marks figures that are older than the op's kernels."
SHARE_EXPOSED = 0.2  # of a row's samples, beyond which the band shows it


def is_of_old_kernels(report: Mapping[str, Any]) -> bool:
    """Whether the code of an op's kernels has changed since a report of it."""
    return bool(report.get("code", {}) != hashes_of(report["op"]))


def words(row: Mapping[str, Any]) -> str:
    """What stands behind a row's figure: remarks that `notes` explains."""
    said, colon, _ = (row.get("how") or "").partition(":")
    is_exposed = (row.get("exposed") or 0) > SHARE_EXPOSED * (row.get("samples") or 0)
    return ", ".join(filter(None, (said if colon else "", EXPOSED if is_exposed else "")))


def titled(name: str, said: str) -> str:
    """A name with a few words."""
    return f"{name} ({said})" if said else name


def notes(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """What the remarks of rows mean, one note for each."""
    lines = []
    for how in dict.fromkeys(filter(None, (row.get("how") for row in rows))):
        marked = [row for row in rows if row.get("how") == how]
        ops, who = (
            ", ".join(dict.fromkeys(str(r[name]) for r in marked)) for name in ("op", "provider")
        )
        said, _, more = how.partition(": ")
        lines.append(f'"{said}" ({ops} by {who}): {more}.' if more else f"{who}: {said}.")
    if any(EXPOSED in words(row) for row in rows):
        lines.append(
            f'"{EXPOSED}": the device waited for the host in more than a fifth of the samples.'
        )
    return lines
