"""Speed against size: a table of a sweep, `diglot bench add --sizes 2^12..2^27`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from diglot.bench.harness import OURS, Row
from diglot.bench.markdown import by_gpu, pivot
from diglot.bench.reports import by_case, kind_text

COLUMNS = (*OURS, "torch", "torch.compile")


def _size(row: Row) -> str:
    count = math.prod(row["shape"])
    exponent = count.bit_length() - 1
    return f"2^{exponent}" if count == 1 << exponent else str(count)


def _cell(row: Row) -> str:
    """GB/s, with the share of a copy's speed."""
    said = f"{row['tb_per_s'] * 1e3:,.0f}"
    share = row.get("share_of_copy")
    return said if share is None else f"{said} ({share:.2f})"


def markdown(reports: Sequence[dict[str, Any]]) -> str:
    """The tables of committed sweeps, for each GPU: GB/s by size and provider."""

    def tables(rows: Sequence[Row]) -> list[str]:
        cells: dict[str, dict[tuple[str, str], str]] = {}
        for case in by_case(rows):
            for name in COLUMNS:
                row = case.get(name, {})
                if "tb_per_s" in row:
                    title = f"elements: {row['op']} {kind_text(row)}, {row['dtype']}"
                    cells.setdefault(title, {})[_size(row), name] = _cell(row)
        return [line for title, of in cells.items() for line in pivot(title, of)]

    return by_gpu(reports, tables)
