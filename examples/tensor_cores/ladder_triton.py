"""The ladder in Triton: the product of bfloat16 matrices in six steps, from naive to final.

A step is a kernel and a function that makes its `Call`. The kernel's docstring says what changed
since the step before, and why it should pay. docs/ladder.md goes up both ladders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from forms_triton import Call, product_by_pointers
from product_triton import describe
from triton.tools.tensor_descriptor import TensorDescriptor

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.products.epilogue import half_of
from diglot.triton_ops.lib.products.schedule import tile_of
from diglot.triton_ops.lib.types import convert

GROUP = 8  # rows of tiles of a group
SMALL, WIDE = (128, 128, 64), (128, 256, 64)  # rows, columns and depth of tiles


@triton.jit
def add_products(
    sums, a, b, M, N, K, stride_a, stride_b, row, column, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of a tile of C that begins at `row` and `column`, with the products from k on.

    Addresses are made here, in the loop, and the compiler moves out of it what it can. Made before
    a loop that is flattened, they would lose their known alignment. Then no copy of B would be
    asynchronous, and the product would be slow.
    """
    rows = (row + tl.arange(0, BM)).to(tl.int64)[:, None]
    columns = (column + tl.arange(0, BN)).to(tl.int64)[None, :]
    along_a, down_b = (k + tl.arange(0, BK))[None, :], (k + tl.arange(0, BK))[:, None]
    tile_a = tl.load(a + rows * stride_a + along_a, (rows < M) & (along_a < K), 0.0)
    tile_b = tl.load(b + down_b * stride_b + columns, (down_b < K) & (columns < N), 0.0)
    return dot(tile_a, tile_b, sums)


@triton.jit
def store_sums(c, sums, M, N, stride_c, row, column, BM: tl.constexpr, BN: tl.constexpr):
    rows = (row + tl.arange(0, BM)).to(tl.int64)[:, None]
    columns = (column + tl.arange(0, BN)).to(tl.int64)[None, :]
    mask = (rows < M) & (columns < N)
    tl.store(c + rows * stride_c + columns, convert(sums, c.dtype.element_ty), mask)


@triton.jit
def product_grouped(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Step 2: neighbouring programs compute tiles of a group of rows.

    Together they read few rows of A and few columns of B. So L2 holds what they read, and DRAM is
    asked less often. Nothing else changes.
    """
    tile_row, tile_column, _ = tile_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    row, column = tile_row * BM, tile_column * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        sums = add_products(sums, a, b, M, N, K, stride_a, stride_b, row, column, k, BM, BN, BK)
    store_sums(c, sums, M, N, stride_c, row, column, BM, BN)


@triton.jit
def product_persistent(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Step 3: one program on each SM computes tile after tile, in one flattened loop.

    The compiler makes one loop of the tiles and their steps, and loads the next tile's operands
    while it stores a tile. The store has its own counter of tiles. It is in step with the loop's,
    but the stores then do not depend on what the loop has computed for the next tile's loads.
    """
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    stored = tl.program_id(0) - tl.num_programs(0)
    for index in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        tile_row, tile_column, _ = tile_of(index, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = add_products(sums, a, b, M, N, K, stride_a, stride_b, row, column, k, BM, BN, BK)
        stored += tl.num_programs(0)
        tile_row, tile_column, _ = tile_of(stored, rows, columns, GROUP)
        store_sums(c, sums, M, N, stride_c, tile_row * BM, tile_column * BN, BM, BN)


@triton.jit
def product_by_descriptors(
    a, b, c,
    GROUP: tl.constexpr, PARTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Steps 4 and 5: TMA loads and stores tiles by descriptors that the host makes.

    No thread computes addresses or masks. That saves registers, and a tile can be twice as wide: L2
    is asked for a quarter fewer bytes. In step 5 C is stored in two halves. A half needs half the
    shared memory, which leaves room for a fourth stage of loads.
    """
    rows, columns = tl.cdiv(c.shape[0], BM), tl.cdiv(c.shape[1], BN)
    stored = tl.program_id(0) - tl.num_programs(0)
    for index in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        tile_row, tile_column, _ = tile_of(index, rows, columns, GROUP)
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            sums = dot(a.load([tile_row * BM, k]), b.load([k, tile_column * BN]), sums)
        stored += tl.num_programs(0)
        tile_row, tile_column, _ = tile_of(stored, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        if PARTS == 1:
            c.store([row, column], convert(sums, c.dtype))
        else:
            c.store([row, column], convert(half_of(sums, 0), c.dtype))
            c.store([row, column + BN // 2], convert(half_of(sums, 1), c.dtype))


@triton.jit
def product_specialised(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Step 6: one warpgroup loads, and two others multiply 64 rows each.

    Loads and products overlap without a schedule of the compiler's, as in CUDA C++ from step 4 on.
    On sm_90, Triton does it in one form only. The program makes its descriptors, four warps are
    launched, a tile has 128 rows, and no loop is flattened. That is what this step gives up.
    """
    tiles_a = tl.make_tensor_descriptor(a, [M, K], [stride_a, 1], [BM, BK])
    tiles_b = tl.make_tensor_descriptor(b, [K, N], [stride_b, 1], [BK, BN])
    tiles_c = tl.make_tensor_descriptor(c, [M, N], [stride_c, 1], [BM, BN])
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for index in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        tile_row, tile_column, _ = tile_of(index, rows, columns, GROUP)
        row, column = tile_row * BM, tile_column * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, K, BK, warp_specialize=True):
            sums = dot(tiles_a.load([row, k]), tiles_b.load([k, column]), sums)
        tiles_c.store([row, column], convert(sums, c.dtype.element_ty))


def _pointers(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[Any]:
    return [a, b, c, *c.shape, a.shape[1], a.stride(0), b.stride(0), c.stride(0)]


def _tiles(c: torch.Tensor, tile: tuple[int, int, int]) -> tuple[int, int]:
    return triton.cdiv(c.shape[0], tile[0]), triton.cdiv(c.shape[1], tile[1])


def naive(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, programs: int) -> Call:
    """Step 1: a program for each tile, in the order of rows, by addresses of all elements."""
    options = {"num_warps": 8, "num_stages": 3}
    return Call(
        product_by_pointers, _tiles(c, SMALL), _pointers(a, b, c), ("tf32", *SMALL), options
    )


def grouped(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, programs: int) -> Call:
    rows, columns = _tiles(c, SMALL)
    options = {"num_warps": 8, "num_stages": 3}
    constants = (GROUP, *SMALL)
    return Call(product_grouped, (rows * columns, 1), _pointers(a, b, c), constants, options)


def persistent_step(
    kernel: Any, tile: tuple[int, int, int], stages: int, warps: int = 8, parts: int | None = None
) -> Callable[..., Call]:
    """A step whose programs compute several tiles; in `parts` stored by the host's descriptors."""

    def step(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, programs: int) -> Call:
        rows, columns = _tiles(c, tile)
        arguments: list[Any] = _pointers(a, b, c)
        constants: tuple[int, ...] = (GROUP, *tile)
        if parts is not None:
            box = [tile[0], tile[1] // parts]
            arguments = [*describe(a, b, c, tile)[:2], TensorDescriptor.from_tensor(c, box)]
            constants = (GROUP, parts, *tile)
        grid = min(programs, rows * columns), 1
        options = {"num_warps": warps, "num_stages": stages}
        return Call(kernel, grid, arguments, constants, options)

    return step


# By the names in diglot.bench.ladder. `programs` is how many run at once, one on each SM.
STEPS: dict[str, Callable[..., Call]] = {
    "naive": naive,
    "grouped": grouped,
    "persistent": persistent_step(product_persistent, SMALL, 3),
    "descriptors": persistent_step(product_by_descriptors, WIDE, 3, parts=1),
    "halves": persistent_step(product_by_descriptors, WIDE, 4, parts=2),
    "specialised": persistent_step(product_specialised, WIDE, 3, warps=4),
}
