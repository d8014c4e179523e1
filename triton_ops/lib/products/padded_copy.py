"""Copies of matrices that tensor descriptors cannot read where they lie. Lines of a copy begin at
multiples of 16 bytes. Twin of csrc/include/diglot/products/padded_copy.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.products.schedule import tile_of


@triton.jit
def copy_tile(
    source, copy, sizes, strides, units, tiles, index,
    UNIT: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of a copy, with zeros behind the ends of lines.

    Args:
        source: a pointer to the matrix, of any strides and alignment. L2 need not keep it: it
            should keep the copy, which the product reads.
        copy: a pointer to lines of `units` times UNIT elements, one after the other.
        sizes: lines of the matrix, and elements of a line.
        strides: in the source, from a line to the next and from an element to the next.
        tiles: rows and columns of tiles.
        index: of the tile.
        VECTOR: elements of 16 bytes; UNIT is a multiple.
        BLOCK: rows and columns of a tile.
    """
    tile_row, tile_column, _ = tile_of(index, tiles[0], tiles[1], 1)
    row = tile_row * BLOCK[0] + tl.arange(0, BLOCK[0])
    column = tile_column * BLOCK[1] + tl.arange(0, BLOCK[1])
    is_row, is_column = row < sizes[0], column < sizes[1]
    address = source + (row[:, None] * strides[0] + column[None, :] * strides[1])
    mask = is_row[:, None] & is_column[None, :]
    values = tl.load(address, mask=mask, other=0.0, eviction_policy="evict_first")
    pitch = units * UNIT
    address = copy + (row[:, None] * pitch + column[None, :])
    address = tl.max_contiguous(tl.multiple_of(address, (1, 16)), (1, VECTOR))
    mask = tl.max_constancy(is_row[:, None] & (column < pitch)[None, :], (1, VECTOR))
    tl.store(address, values, mask)
