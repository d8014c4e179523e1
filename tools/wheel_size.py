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
OPS = sorted(path.stem for path in (Path(__file__).parents[1] / "csrc/ops").glob("*.cu"))
MB = 1e6
EXTENSION = "diglot/_C.abi3.so"


def machine_code(library: Path) -> dict[str, list[float]]:
    """MB by architecture, for each op in OPS, before nvcc compressed them.

    Every op's file brings one entry an architecture, and the linker keeps the files' order.
    """
    sizes: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("elf", "ptx"):
            if dump(f"-l{kind}", str(library)).strip():
                dump(f"-x{kind}", "all", str(library.resolve()), folder=folder)
        for path in sorted(folder.iterdir(), key=lambda path: int(path.name.split(".")[2])):
            architecture = ".".join(path.name.split(".")[3:])
            sizes.setdefault(architecture, []).append(path.stat().st_size / MB)
    assert all(len(of_ops) == len(OPS) for of_ops in sizes.values()), sizes
    return sizes


def main(wheel: Path) -> str | None:
    console = Console()
    megabytes = wheel.stat().st_size / MB
    sizes: dict[str, list[float]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for file in archive.infolist():
            if re.fullmatch(r"diglot/_\w+\..*so", file.filename):
                console.print(f"{file.filename}: {file.compress_size / MB:.1f} MB of the wheel")
        if EXTENSION in archive.namelist():
            sizes = machine_code(Path(archive.extract(EXTENSION, folder)))
    table = Table("op", *sizes, title="machine code, MB before compression")
    for i, op in enumerate(OPS):
        table.add_row(op, *(f"{of_ops[i]:.2f}" for of_ops in sizes.values()))
    table.add_row("all", *(f"{sum(of_ops):.1f}" for of_ops in sizes.values()), style="bold")
    if sizes:  # else the CUDA extension was left out
        console.print(table)
    console.print(f"{wheel.name}: {megabytes:.1f} MB, of at most {LIMIT}")
    return None if megabytes <= LIMIT else f"the wheel takes more than {LIMIT} MB"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
