"""A comparison in words: a verdict for each backend, tables, and notes."""

from __future__ import annotations

from collections.abc import Iterator

from diglot.tools.comparison import Comparison, Row
from diglot.tools.numbers import NOTHING, number
from diglot.tools.resources import KernelResources, TensorLike
from diglot.tools.table import Column, Table


def _index(index: tuple[int, ...] | None) -> str:
    return NOTHING if index is None else f"[{', '.join(map(str, index))}]"


def verdicts(comparison: Comparison) -> list[tuple[str, bool]]:
    """A line for each backend, such as "cuda: within tolerance (worst 0.5 ulp of 1.5)".

    Each line comes with a flag: whether a result is beyond the tolerance.
    """
    return [_verdict(row) for row in comparison.rows]


def _verdict(row: Row) -> tuple[str, bool]:
    if row.reason is not None:
        return f"{row.backend}: did not run: {row.reason}", False
    if not row.errors:
        return f"{row.backend}: no result to judge", False
    worst = max(row.errors, key=lambda error: error.worst_of_allowed)
    if worst.has_sums:
        said = f"worst error {number(worst.worst_of_allowed)} of the allowed"
    else:
        unit = " ulp" if worst.tolerance_ulp else ""
        said = f"worst {number(worst.worst_ulp)}{unit} of {worst.tolerance_ulp:g}"
    if len(row.errors) > 1:
        said += f", in {worst.output}"
    if worst.failing == 0:
        return f"{row.backend}: within tolerance ({said})", False
    share = f"{100 * worst.failing:.2g} % of the elements"
    return f"{row.backend}: beyond tolerance in {share} ({said})", True


def heading(comparison: Comparison) -> str:
    """The call that was compared, in one line."""
    inputs = []
    for given in comparison.inputs:
        if isinstance(given, TensorLike):
            inputs.append(f"{given.dtype}{list(given.shape)}")
        else:
            inputs.append(str(given))
    options = "".join(f", {name}={value!r}" for name, value in comparison.options.items())
    call = f"{comparison.op}({', '.join(inputs)}{options})"
    return f"{call}, {comparison.direction}, on {comparison.device}"


def tables(comparison: Comparison) -> list[Table]:
    """The errors of each result, how each backend ran, and its compiled kernels; none is empty."""
    title = f"compiled kernel,\n{comparison.architecture}"
    made = (
        Table(ERRORS, [line for row in comparison.rows for line in _error_cells(row)]),
        Table(RUNS, [_run_cells(row) for row in comparison.rows if row.reason is None]),
        Table(
            [KERNELS[0], title, *KERNELS[1:]],
            [_kernel_cells(row.backend, of) for row in comparison.rows for of in row.kernels],
        ),
    )
    return [table.shown() for table in made if table.rows]


ERRORS = (
    "backend",
    "result",
    Column("worst error\nulp"),
    "at index: value",
    Column("worst error\nabsolute"),
    Column("of the\nallowed"),
    Column("beyond\ntolerance"),
)


def _error_cells(row: Row) -> Iterator[list[str]]:
    for error in row.errors:
        at = ", ".join(f"{name}={value:.6g}" for name, value in error.at.items())
        yield [
            row.backend,
            error.output if len(row.errors) > 1 else "",
            number(error.worst_ulp),
            f"{_index(error.index)}{': ' if at else ''}{at}",
            number(error.worst_absolute),
            number(error.worst_of_allowed),
            f"{100 * error.failing:.2g} %" if error.failing else "",
        ]


RUNS = (
    "backend",
    "variant that ran",
    Column("time\nµs"),
    Column("GB/s"),
    Column("of copy\nceiling"),
    Column("host\nµs"),
    "bound by",
)


def _run_cells(row: Row) -> list[str]:
    variant = "; ".join(dict.fromkeys(row.variants)) or "no kernel needed"
    if row.interpreted:
        variant += " (interpreted)"
    cells, speed = [row.backend, variant], row.speed
    if speed is None:
        return cells + [NOTHING] * 5
    return [
        *cells,
        number(speed.median_us),
        number(speed.gb_per_s),
        NOTHING if speed.of_ceiling is None else f"{speed.of_ceiling:.2f}",
        NOTHING if speed.host_us is None else number(speed.host_us),
        NOTHING if speed.regime is None else str(speed.regime),
    ]


KERNELS = (
    "backend",
    Column("registers"),
    Column("spills\nbytes"),
    Column("shared\nbytes"),
    Column("load/store\nbytes"),
)


def _kernel_cells(backend: str, kernel: KernelResources) -> list[str]:
    return [
        backend,
        kernel.name.partition("<")[0],
        str(kernel.registers),
        str(kernel.spill_bytes),
        str(kernel.shared_bytes),
        f"{kernel.load_bytes or NOTHING}/{kernel.store_bytes or NOTHING}",
    ]


def notes(comparison: Comparison) -> list[str]:
    """The lines below the tables: the scale of the check, agreement, ceiling, reasons."""
    lines = list(_scale(comparison))
    for pair in comparison.agreement:
        text = f"{pair.first} and {pair.second}: {100 * pair.bit_equal:.4g} % bit-equal"
        if pair.max_ulp:
            text += f", at most {number(pair.max_ulp)} representable numbers apart"
            text += f" (in {pair.output} at {_index(pair.index)})"
        lines.append(text)
    if comparison.ceiling is not None:
        ceiling = comparison.ceiling
        lines.append(
            f"copy ceiling, same run: {ceiling.gb_per_s:.0f} GB/s "
            f"({number(ceiling.median_us)} µs for {comparison.bytes:,} bytes)"
        )
    if comparison.untimed is not None:
        lines.append(f"not timed: {comparison.untimed}")
    lines += [
        f"{row.backend}, compiled kernel: {row.kernels_reason}"
        for row in comparison.rows
        if row.kernels_reason is not None
    ]
    return lines


def _scale(comparison: Comparison) -> Iterator[str]:
    """What an error is measured against, and how much of it is allowed."""
    results: dict[str, list[str]] = {}
    for error in {error.output: error for row in comparison.rows for error in row.errors}.values():
        limit = f"may be off the float64 oracle by {error.tolerance_ulp:g} ulp"
        if error.has_sums:
            limit += " plus the rounding of its sums, which is larger where terms cancel"
        results.setdefault(limit if error.tolerance_ulp else "must be exact", []).append(
            error.output
        )
    for limit, names in results.items():
        yield f"{', '.join(names)}: an element {limit}"


def plain(comparison: Comparison) -> str:
    """The comparison as plain text, as wide as it needs to be."""
    lines = [line for line, _ in verdicts(comparison)]
    lines += [heading(comparison), ""]
    for table in tables(comparison):
        lines += [str(table), ""]
    return "\n".join([*lines, *notes(comparison)])
