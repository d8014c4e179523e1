"""The pictures of speed in README and on the ops' pages, from the committed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diglot.bench import marks
from diglot.tools.report import cases, figures, page
from diglot.tools.report.results import File, Row, read

# What README's picture shows, in bfloat16: an op, its options, the direction.
SHOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("gelu", {"approximate": "tanh"}, "forward"),
    ("dropout", {"p": 0.1}, "forward"),
    ("softmax", {}, "forward"),
    ("rms_norm", {}, "backward"),
)
SHAPES = ((16384, 16384), (32768, 4096))
TIMER, DTYPE = "device", "bfloat16"


def of_readme(folder: Path) -> str:
    """Ours and the others, of a few ops, as SVG; `folder` has a GPU's results."""
    files = read([folder / f"{op}.json" for op, _, _ in SHOWN]).files
    drawn = []
    for file, (_, options, direction) in zip(files, SHOWN, strict=True):
        rows = [
            row
            for row in _timed(file)
            if (row.options, row.direction) == (options, direction) and row.shape in SHAPES
        ]
        drawn += [case for of in cases.groups(rows, "op").values() for case in of.values()]
    return _draw(drawn, files)


def of_op(path: Path) -> str | None:
    """Of each kind of call in an op's results the largest case, as SVG; None if none was timed."""
    (file,) = read([path]).files
    drawn = [cases.largest(of) for of in cases.groups(_timed(file), "kind").values()]
    return _draw(drawn, [file]) if drawn else None


def _timed(file: File) -> list[Row]:
    return [row for row in file.rows if (row.timer, row.dtype) == (TIMER, DTYPE) and row.tb_per_s]


def _draw(drawn: Sequence[Mapping[str, Row]], files: Sequence[File]) -> str:
    providers = cases.providers_of(files)
    return page.alone(figures.side_by_side(drawn, providers, _measured_on(files)))


def _measured_on(files: Sequence[File]) -> str:
    commits = ", ".join(sorted({file.commit[:12] for file in files}))
    old = " and ".join(file.op for file in files if marks.is_of_old_kernels(file.content))
    return f"{files[0].gpu}, commit {commits}" + (f", older kernels of {old}" if old else "")
