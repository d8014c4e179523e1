"""A comparison as a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diglot.tools.comparison import Comparison, Row
from diglot.tools.resources import KernelResources, TensorLike

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its title, which may have several lines, and whether it holds numbers."""

    title: str
    is_number: bool = True


def number(value: float) -> str:
    """A number in three significant digits, without an exponent where it needs none."""
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.2e}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _index(index: tuple[int, ...] | None) -> str:
    return NOTHING if index is None else f"[{', '.join(map(str, index))}]"


def _share(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g} %"


def heading(comparison: Comparison) -> str:
    """What was compared, in one line."""
    inputs = []
    for given in comparison.inputs:
        if isinstance(given, TensorLike):
            inputs.append(f"{given.dtype}{list(given.shape)}")
        else:
            inputs.append(str(given))
    options = "".join(f", {name}={value!r}" for name, value in comparison.options.items())
    call = f"{comparison.op}({', '.join(inputs)}{options})"
    return f"{call}, {comparison.direction}, on {comparison.device}"


def columns(comparison: Comparison) -> list[Column]:
    """The columns of `cells`."""
    return [
        Column("backend", False),
        Column("variant that ran", False),
        Column("worst error\nulp"),
        Column("worst error\nabsolute"),
        Column("largest ulp at\nindex: value", False),
        Column("beyond\ntolerance"),
        Column("time\nµs"),
        Column("GB/s"),
        Column("of copy\nceiling"),
        Column(f"{comparison.architecture}\nregisters"),
        Column("spills\nbytes"),
        Column("shared\nbytes"),
        Column("load/store\nbytes"),
    ]


def cells(row: Row) -> list[str]:
    """A row's cells; several kernels of one call are separated by " + "."""
    variant = "did not run: see below"
    if row.reason is None:
        variant = "; ".join(dict.fromkeys(row.variants)) or "no kernel needed"
        if row.interpreted:
            variant += " (interpreted)"
    error = [NOTHING] * 4
    if row.error is not None:
        at = ", ".join(f"{name}={value:.6g}" for name, value in row.error.at.items())
        where = f"{_index(row.error.index)}{': ' if at else ''}{at}"
        if len(row.errors) > 1:
            where = f"{row.error.output} {where}"
        absolute = max(of.worst_absolute for of in row.errors)
        failing = max(of.failing for of in row.errors)
        error = [number(row.error.worst_ulp), number(absolute), where, _share(failing)]
    speed = [NOTHING] * 3
    if row.speed is not None:
        speed = [number(row.speed.median_us), number(row.speed.gb_per_s), NOTHING]
        if row.speed.of_ceiling is not None:
            speed[2] = f"{row.speed.of_ceiling:.2f}"
    return [row.backend, variant, *error, *speed, *_kernel_cells(row.kernels)]


def _kernel_cells(kernels: Sequence[KernelResources]) -> list[str]:
    if not kernels:
        return [NOTHING] * 4
    fields = [
        (
            str(kernel.registers),
            str(kernel.spill_bytes),
            str(kernel.shared_bytes),
            f"{kernel.load_bytes or NOTHING}/{kernel.store_bytes or NOTHING}",
        )
        for kernel in kernels
    ]
    return [" + ".join(of) for of in zip(*fields, strict=True)]


def notes(comparison: Comparison) -> list[str]:
    """The lines below the table: agreement, ceiling, reasons."""
    lines = []
    for pair in comparison.agreement:
        text = f"{pair.first} and {pair.second}: {100 * pair.bit_equal:.4g} % bit-equal"
        if pair.max_ulp:
            text += f", at most {number(pair.max_ulp)} representable numbers apart"
            text += f" (at {_index(pair.index)})"
        lines.append(text)
    if comparison.ceiling is not None:
        ceiling = comparison.ceiling
        lines.append(
            f"copy ceiling, same run: {ceiling.gb_per_s:.0f} GB/s "
            f"({number(ceiling.median_us)} µs for {comparison.bytes:,} bytes)"
        )
    if comparison.untimed is not None:
        lines.append(f"not timed: {comparison.untimed}")
    for row in comparison.rows:
        if row.reason is not None:
            lines.append(f"{row.backend} did not run: {row.reason}")
        if row.kernels_reason is not None:
            lines.append(f"{row.backend}, compiled kernel: {row.kernels_reason}")
    tolerances = {row.error.tolerance_ulp for row in comparison.rows if row.error is not None}
    for tolerance in sorted(tolerances):
        lines.append(
            f"errors are against the float64 oracle, in ulps of the result's dtype; tolerance "
            f"{tolerance:g} ulp"
        )
    return lines


def plain(comparison: Comparison) -> str:
    """The comparison as plain text, as wide as it needs to be."""
    head = columns(comparison)
    titles = [column.title.split("\n") for column in head]
    depth = max(len(title) for title in titles)
    lines = [[([""] * (depth - len(t)) + t)[i] for t in titles] for i in range(depth)]
    lines += [cells(row) for row in comparison.rows]
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    table = [
        "  ".join(
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(line, widths, head, strict=True)
        ).rstrip()
        for line in lines
    ]
    table.insert(depth, "  ".join("-" * width for width in widths))
    return "\n".join([heading(comparison), "", *table, "", *notes(comparison)])
