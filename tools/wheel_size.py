"""What takes room in a wheel: its files, and machine code by op and architecture.

    python tools/wheel_size.py dist/diglot-*.whl

A wheel of more than LIMIT is an error.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diglot.tools.machine_code import dump

LIMIT = 25  # MB
SOURCES = Path(__file__).parents[1] / "csrc"
MB = 1e6
EXTENSION = "diglot/_C.abi3.so"


def sources_of(architecture: str) -> list[str]:
    """The files that are compiled for an architecture, such as "sm_90a.cubin", in order.

    Those that are for one alone lie in a folder of its name, and come last.
    """
    folder = architecture.partition(".")[0]
    own = [f"{folder}/{path.stem}" for path in sorted(SOURCES.glob(f"ops/{folder}/*.cu"))]
    return [
        *(path.stem for of in ("ops", "torch") for path in sorted(SOURCES.glob(f"{of}/*.cu"))),
        *own,
    ]


def machine_code(library: Path) -> dict[str, dict[str, float]]:
    """MB by architecture, for each file of ops, before nvcc compressed them.

    Every file brings one entry an architecture, and the linker keeps the files' order.
    """
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("elf", "ptx"):
            if dump(f"-l{kind}", str(library)).strip():
                dump(f"-x{kind}", "all", str(library.resolve()), folder=folder)
        for path in sorted(folder.iterdir(), key=lambda path: int(path.name.split(".")[2])):
            architecture = ".".join(path.name.split(".")[3:])
            found.setdefault(architecture, []).append(path.stat().st_size / MB)
    return {of: dict(zip(sources_of(of), sizes, strict=True)) for of, sizes in found.items()}


def main(wheel: Path) -> str | None:
    console = Console()
    megabytes = wheel.stat().st_size / MB
    sizes: dict[str, dict[str, float]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for file in archive.infolist():
            if re.fullmatch(r"diglot/_\w+\..*so", file.filename):
                console.print(f"{file.filename}: {file.compress_size / MB:.1f} MB of the wheel")
        if EXTENSION in archive.namelist():
            sizes = machine_code(Path(archive.extract(EXTENSION, folder)))
    table = Table("op", *sizes, title="machine code, MB before compression")
    for op in dict.fromkeys(op for of_ops in sizes.values() for op in of_ops):
        cells = (f"{of_ops[op]:.2f}" if op in of_ops else "" for of_ops in sizes.values())
        table.add_row(op, *cells)
    total = (f"{sum(of_ops.values()):.1f}" for of_ops in sizes.values())
    table.add_row("all", *total, style="bold")
    if sizes:  # else the CUDA extension was left out
        console.print(table)
    console.print(f"{wheel.name}: {megabytes:.1f} MB, of at most {LIMIT}")
    return None if megabytes <= LIMIT else f"the wheel takes more than {LIMIT} MB"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
