"""What Triton makes of a vector add: all stages from its own language down to machine code.

    python examples/lessons/ptx.py --out stages

No GPU is needed: the kernel is compiled ahead of time. It is compiled twice, because the compiler
accesses 16 bytes at once only where it is told that addresses and sizes are multiples of 16, which
a launch finds out by looking at its arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

from diglot.tools.files import check_writable, writing

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


def main() -> None:
    """Compiles, prints what the PTX says, and writes the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder to write the stages into")
    parser.add_argument("--arch", type=int, default=ARCHITECTURE, help="such as 80 or 90")
    parser.add_argument("--force", action="store_true", help="overwrite files")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("TRITON_INTERPRET is set, and what is interpreted is not compiled")
    if arguments.out is not None:
        try:
            check_files(arguments.out, arguments.force)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
    for is_aligned in (False, True):
        made = compile_add(is_aligned, arguments.arch)
        print("multiples of 16 promised:" if is_aligned else "nothing promised:")
        for name, value in summary(made.asm["ptx"]).items():
            print(f"  {name:8}{value}")
        if arguments.out is not None:
            for stage, path in files(arguments.out, is_aligned).items():
                content = made.asm[stage]
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
            print(f"  wrote   {path.parent}/add.*")


if __name__ == "__main__":
    main()
