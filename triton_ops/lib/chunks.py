"""Many tensors in one launch: they are cut in chunks, and a table on the device says where each
lies. Twin of csrc/include/diglot/chunks.cuh; python/diglot/ops/chunk_table.py makes the table.

Every chunk begins at a multiple of 16 bytes or is shorter than that.
"""

import triton
import triton.language as tl

# Codes of the element types: DType of types.cuh.
FLOAT16 = tl.constexpr(6)
BFLOAT16 = tl.constexpr(7)
FLOAT32 = tl.constexpr(8)
FLOAT64 = tl.constexpr(9)


@triton.jit
def read_chunk(table, rows, index):
    """A chunk's address, count and code of the element type, and whether it is a repeated one.

    `index` is a row of a table of int64 [rows, 2]: an address, and from the low bits on 32 of the
    count, 8 of the code, 1 that says whether the same memory is a chunk before this one, too. Where
    there is no such row, the chunk is empty.
    """
    exists = (index >= 0) & (index < rows)
    address = tl.load(table + 2 * index, mask=exists, other=0)
    packed = tl.load(table + 2 * index + 1, mask=exists, other=0)
    count = (packed & 0xFFFFFFFF).to(tl.int32)
    return address, count, ((packed >> 32) & 0xFF).to(tl.int32), ((packed >> 40) & 1) != 0


@triton.jit
def whole_blocks(address, count, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """A chunk's data, and how many of its elements are in whole blocks, at multiples of 16 bytes.

    A chunk of fewer elements than BLOCK has none.
    """
    return address.to(tl.pointer_type(DTYPE)), count // BLOCK * BLOCK
