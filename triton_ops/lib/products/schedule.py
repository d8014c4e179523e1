"""The order in which programs compute the tiles of a product. Programs that run at once should read
the same rows of A and columns of B, so that L2 serves them. Twin of
csrc/include/diglot/products/schedule.cuh.

Of 9 x 9 tiles, the first nine in row-major order read one row of tiles of A and all nine columns of
B: 90 loads. In groups of three rows they read three rows and three columns: 54 loads.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(index, rows, columns, group):
    """Row, column and matrix of a tile: a bijection from the numbers of all tiles.

    Args:
        index: the number of the tile.
        rows, columns: tiles of a matrix of the batch.
        group: how many neighbouring rows of tiles make a group. Tiles go down the columns of a
            group, and group by group.
    """
    batch = index // (rows * columns)
    within = index % (rows * columns)
    first = within // (group * columns) * group
    height = tl.minimum(rows - first, group)  # the last group may have fewer rows
    place = within % (group * columns)
    return first + place % height, place // height, batch


@triton.jit
def part_of(index, steps, parts):
    """What a program computes at a time: a tile's number, a part of its K, and that part's first
    step and end. Each tile's K is split into `parts`, which follow one another. So they end at
    about the same time, and their sums are still in L2 when they are added up.

    Args:
        index: the number of the part, among those of all tiles.
        steps: along K, at least one for each part.
    """
    part = index % parts
    first = (part.to(tl.int64) * steps // parts).to(tl.int32)
    end = ((part.to(tl.int64) + 1) * steps // parts).to(tl.int32)
    return index // parts, part, first, end
