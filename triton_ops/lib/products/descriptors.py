"""Products of 16-bit matrices by tensor descriptors. Twin of
csrc/include/diglot/products/tensor_cores.cuh.

A program computes tiles of C, one after the other. The compiler makes one loop of all their steps,
so that the next tile's operands are on their way while a tile is stored.

Products of few rows exchange their operands: a tile of C's transpose is B^T A^T. Columns of C then
fill the 64 rows of a tensor core's product, and few rows of C make a narrow tile. Products of few
tiles split K (split.py).
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.batches import load_of, numbers_in_batch, offset_of
from diglot.triton_ops.lib.products.epilogue import finish
from diglot.triton_ops.lib.products.row_sums import (
    ONES,
    add_row_sums,
    leave_row_sums,
    one_of,
    store_row_sums,
    sum_rows,
)
from diglot.triton_ops.lib.products.schedule import part_of, tile_of
from diglot.triton_ops.lib.products.split import add_parts, leave_part


@triton.jit
def multiply_by_descriptors(
    a, b, around, outputs, row_sums, counters, scratch, sizes, row_stride, batch, tiles, parts,
    numbers,
    OUTER: tl.constexpr, ALONG_M: tl.constexpr, ALONG_N: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
    ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr, GROUP: tl.constexpr,
    IS_EXCHANGED: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """C = A B, and what follows it: `around`, `numbers` and the constants are those of `finish`.

    Args:
        a, b: descriptors of matrices whose rows are contiguous, or of a batch of them: A, or its
            transpose where ALONG_M; B, or its transpose where not ALONG_N.
        outputs: two descriptors; without HAS_DESCRIPTOR pointers to rows that begin every
            `row_stride`. The first may be None.
        row_sums: where the sums of A's rows go, or None; and scratch for those of parts of K, or
            None. With them there is no batch, and operands are not exchanged.
        counters, scratch: of `leave_part`; None where K is not split.
        sizes: M, N, K.
        batch: matrices along its second dimension, or None; `steps` of `offset_of`, of outputs and
            of the input, which are None where there is one matrix, or a descriptor.
        tiles: rows and columns of tiles, and how many there are in all.
        parts: of each tile's K.
        OUTER: IS_OUTER of A, B and the input, as `numbers_in_batch` has it.
        IS_EXCHANGED: whether products are those of the transposes.
        PIECES: of `finish`. Smaller ones leave shared memory for another stage.
        BLOCK: rows, columns and depth of a tile.
    """
    m, n, k = tl.cast(sizes[0], tl.int32), tl.cast(sizes[1], tl.int32), tl.cast(sizes[2], tl.int32)
    rows, columns = tl.cast(tiles[0], tl.int32), tl.cast(tiles[1], tl.int32)
    inner, steps = batch
    if inner is not None:
        inner = tl.cast(inner, tl.int32)
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    IS_SPLIT: tl.constexpr = scratch is not None
    HAS_ROW_SUMS: tl.constexpr = row_sums[0] is not None
    for index in tl.range(
        tl.program_id(0), tl.cast(tiles[2] * parts, tl.int32), tl.num_programs(0),
        flatten=not IS_SPLIT,
    ):  # fmt: skip
        if IS_SPLIT:
            number, part, first, end = part_of(index, tl.cdiv(k, BK), tl.cast(parts, tl.int32))
            begin, until = first * BK, end * BK
        else:
            number, begin, until = index, 0, k
        tile_row, tile_column, matrix = tile_of(number, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        of_a = numbers_in_batch(matrix, inner, OUTER[0])
        of_b = numbers_in_batch(matrix, inner, OUTER[1])
        sums = tl.zeros((BN, BM) if IS_EXCHANGED else (BM, BN), tl.float32)
        of_rows = tl.zeros((BM, ONES), tl.float32)
        for start in range(begin, until, BK):
            if ALONG_M:
                tile_a = load_of(a, of_a, start, row).T
            else:
                tile_a = load_of(a, of_a, row, start)
            if ALONG_N:
                tile_b = load_of(b, of_b, start, column)
            else:
                tile_b = load_of(b, of_b, column, start).T
            if IS_EXCHANGED:
                sums = dot(tile_b.T, tile_a.T, sums)
            else:
                sums = dot(tile_a, tile_b, sums)
            if HAS_ROW_SUMS:
                of_rows = sum_rows(tile_a, of_rows)
        of_c = numbers_in_batch(matrix, inner, False)
        of_input = numbers_in_batch(matrix, inner, OUTER[2])
        starts = offset_of(matrix, inner, steps[0]), offset_of(matrix, inner, steps[1])
        if IS_SPLIT and HAS_ROW_SUMS:
            leave_row_sums(of_rows, row_sums[1], tile_row, tile_column, part, parts)
        if not IS_SPLIT:
            if HAS_ROW_SUMS:
                store_row_sums(row_sums[0], one_of(of_rows), row, tile_column, m)
            finish(
                sums, (of_c, of_input, starts), row, column, (m, n), (row_stride, 1), around,
                numbers, outputs, ACTIVATION, IS_SLOPE, HAS_DESCRIPTOR, IS_EXCHANGED, PIECES,
            )  # fmt: skip
        elif leave_part(sums, counters, scratch, number, part, parts):
            if HAS_ROW_SUMS:
                total = add_row_sums(of_rows, row_sums[1], tile_row, tile_column, parts)
                store_row_sums(row_sums[0], total, row, tile_column, m)
            sums = add_parts(sums, scratch, number, parts)
            finish(
                sums, (of_c, of_input, starts), row, column, (m, n), (row_stride, 1), around,
                numbers, outputs, ACTIVATION, IS_SLOPE, HAS_DESCRIPTOR, IS_EXCHANGED, PIECES,
            )  # fmt: skip
