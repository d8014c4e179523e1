"""What Triton makes of a vector add: all stages from its own language down to machine code.

    python examples/lessons/ptx.py --out stages

No GPU is needed: the kernel is compiled ahead of time, twice. The compiler accesses 16 bytes at
once only where it is told that addresses and sizes are multiples of 16. A launch finds that out by
looking at its arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lesson import Table, compiled, options, show

# isort: split
import triton
import triton.language as tl

from diglot.files import check_writable, writing

ARCHITECTURE = 90
STAGES = ("ttir", "ttgir", "llir", "ptx", "cubin")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def compile_add(is_aligned: bool, architecture: int = ARCHITECTURE) -> Any:
    """The compiled kernel for float32; its `asm` has the stages by name.

    Args:
        is_aligned: whether to promise that all three addresses and n are multiples of 16.
        architecture: such as 90.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    promise = {(i,): [["tt.divisibility", 16]] for i in range(4)} if is_aligned else None
    source = ASTSource(add_kernel, signature, {"BLOCK": 1024}, promise)
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options={"num_warps": 4})


def summary(ptx: str) -> dict[str, str]:
    """What PTX says at its head, and its accesses to global memory, by how many there are."""
    found = {
        directive: re.search(rf"^\.{directive} +(.+?)$|\.{directive} +(.+?)$", ptx, re.MULTILINE)
        for directive in ("version", "target", "reqntid", "maxntid")
    }
    told = {name: (m.group(1) or m.group(2)).strip() for name, m in found.items() if m}
    for kind in ("ld", "st"):
        accesses = re.findall(rf"\b{kind}\.global\S*", ptx)
        counts = {access: accesses.count(access) for access in dict.fromkeys(accesses)}
        told[kind] = ", ".join(f"{count} {access}" for access, count in counts.items())
    return told


def files(out: Path, is_aligned: bool) -> dict[str, Path]:
    """Where the stages go, by their names."""
    folder = out / ("aligned" if is_aligned else "plain")
    return {stage: folder / f"add.{stage}" for stage in STAGES}


def check_files(out: Path, force: bool) -> None:
    """Makes the folders, and raises ValueError unless every file may be written."""
    for is_aligned in (False, True):
        for path in files(out, is_aligned).values():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(path, force)


def make(out: str | None = None, architecture: int = ARCHITECTURE) -> list[dict[str, str]]:
    """Compiles twice; what each PTX says. Writes the stages into a folder, if one is given."""
    told = []
    for is_aligned in (False, True):
        made = compile_add(is_aligned, architecture)
        promise = "multiples of 16" if is_aligned else "nothing"
        told.append({"promised": promise, **summary(made.asm["ptx"])})
        for stage, path in files(Path(out), is_aligned).items() if out else ():
            content = made.asm[stage]
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return told


def main(out: Path | None = None, arch: int = ARCHITECTURE, force: bool = False) -> Iterator[Table]:
    """Compiles, tells what the PTX says, and writes the stages."""
    if out is not None:
        try:
            check_files(out, force)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
    yield Table("PTX", compiled(make, out and str(out.resolve()), arch))


if __name__ == "__main__":
    parser = options()
    parser.add_argument("--out", type=Path, help="folder to write the stages into")
    parser.add_argument("--arch", type=int, default=ARCHITECTURE, help="such as 80 or 90")
    parser.add_argument("--force", action="store_true", help="overwrite files")
    show(main, parser)
