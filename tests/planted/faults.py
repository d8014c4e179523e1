"""Faults that are put into headers of the device library: the kernels that include them are built
for the interpreter, which finds the faults, or computes something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from planted.library import Run, build_interpreted, runner


class Fault(NamedTuple):
    """A piece of a header, and what takes its place."""

    right: str
    wrong: str


NO_FAULT = Fault("\n", "\n")


def plant(fault: Fault, headers: Sequence[Path], kernels: Path, folder: Path) -> Run:
    """Builds a planted file of kernels whose headers have a fault. Returns its runner."""
    texts = {header.name: header.read_text() for header in headers}
    assert fault == NO_FAULT or sum(text.count(fault.right) for text in texts.values()) == 1
    texts[kernels.name] = kernels.read_text().replace(
        "runner.h", str(kernels.with_name("runner.h"))
    )
    for file, text in texts.items():
        for header in headers:
            text = text.replace(f"diglot/products/{header.name}", header.name)
        (folder / file).write_text(text.replace(fault.right, fault.wrong))
    return runner(build_interpreted(folder / kernels.name, folder / "library.so"))
