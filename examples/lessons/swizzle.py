"""Triton's swizzle: how its compiler lays a tile out in shared memory so that no bank is hit twice.

    python examples/lessons/swizzle.py

A matrix product reads its operands from shared memory in squares of 8 rows of 16 bytes. In a tile
with rows of 64 float16 numbers, 128 bytes, the 8 pieces below each other lie in the same 4 of the
32 banks. They would be read one after the other. bank_conflicts.py avoids that by padding or by an
XOR of its own. Triton's compiler does it by the layout that it gives the tile, and its TTGIR says
which: `swizzled_shared` on sm_80, `nvmma_shared` on sm_90, where the tensor cores themselves read
so. Both put piece p of row r at p XOR (r / perPhase mod maxPhase). All of it is seen without a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lesson import Table, compiled, show

# isort: split
import triton
import triton.language as tl

ROW_BYTES, PIECE_BYTES, BANK_BYTES, BANKS = 128, 16, 4, 32


@triton.jit
def product_kernel(a, b, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    # In a loop, so that loads to shared memory run ahead of products.
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(8):
        total += tl.dot(tl.load(a + at + step * BLOCK * BLOCK), tl.load(b + at))
    tl.store(out + at, total)


def layouts() -> dict[str, list[str]]:
    """By architecture, the layouts of shared memory in the TTGIR."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"a": "*fp16", "b": "*fp16", "out": "*fp32", "BLOCK": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    found = {}
    for architecture in (80, 90):
        source = ASTSource(product_kernel, types, {"BLOCK": 64}, aligned)
        ttgir = triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm["ttgir"]
        named = re.findall(r"^#\w+ = #ttg\.(\w*shared<\{.*\}>)", ttgir, re.MULTILINE)
        found[f"sm_{architecture}"] = [layout for layout in named if "wizzl" in layout]
    return found


def phases(layout: str) -> tuple[int, int]:
    """perPhase and maxPhase, of a layout as TTGIR has it."""
    if found := re.search(r"swizzlingByteWidth = (\d+)", layout):
        # Pieces change places within this width: 128 bytes hold 8, and rows take turns.
        width = int(found[1])
        return ROW_BYTES // width, width // PIECE_BYTES
    numbers = dict(re.findall(r"(\w+) = (\d+)", layout))
    return int(numbers["perPhase"]), int(numbers["maxPhase"])


def steps(per_phase: int, max_phase: int, piece: int = 0) -> int:
    """How often the fullest bank is asked, when 8 rows are read at one piece; 1 is no conflict."""
    banks: Counter[int] = Counter()
    for row in range(8):
        place = piece ^ (row // per_phase % max_phase)
        first = (row * ROW_BYTES + place * PIECE_BYTES) // BANK_BYTES
        banks.update((first + word) % BANKS for word in range(PIECE_BYTES // BANK_BYTES))
    return max(banks.values())


def main() -> Iterator[Table]:
    """A row for rows as they come, and one for each layout of the compiler."""
    rows = [{"compiled for": "–", "layout": "rows as they come", "steps of a read": steps(1, 1)}]
    for architecture, found in compiled(layouts).items():
        for layout in found:
            short = re.sub(r", (order|transposed) .*", "}>", layout)
            row = {"compiled for": architecture, "layout": short}
            rows.append({**row, "steps of a read": steps(*phases(layout))})
    yield Table("Triton: tiles of 64 x 64 float16 numbers, read by 8 rows of 16 bytes", rows)


if __name__ == "__main__":
    show(main)
