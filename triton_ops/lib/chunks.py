"""Many tensors in one launch, cut into chunks. A table on the device has the address of each chunk.
Twin of csrc/include/diglot/chunks.cuh; python/diglot/backends/chunk_table.py makes the table.

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
    """A chunk's address, count and code of the element type, and whether it is repeated.

    `index` is a row of the table, int64 [rows, 2]: an address, and a packed word. From its low bits
    on, the word has 32 bits of count, 8 of code, and 1 that is set if an earlier chunk is the same
    memory. Beyond the table the chunk is empty.
    """
    exists = (index >= 0) & (index < rows)
    address = tl.load(table + 2 * index, mask=exists, other=0)
    packed = tl.load(table + 2 * index + 1, mask=exists, other=0)
    count = (packed & 0xFFFFFFFF).to(tl.int32)
    return address, count, ((packed >> 32) & 0xFF).to(tl.int32), ((packed >> 40) & 1) != 0


@triton.jit
def whole_blocks(address, count, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """A chunk's data, and how many of its elements form whole blocks, at multiples of 16 bytes.

    A chunk with fewer elements than BLOCK has no whole block.
    """
    return address.to(tl.pointer_type(DTYPE)), count // BLOCK * BLOCK
