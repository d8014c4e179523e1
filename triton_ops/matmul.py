"""Products of matrices: kernels and launcher. Twin of csrc/ops/matmul.cu."""

import dataclasses

import torch
import triton
import triton.language as tl

from diglot.backends.plans import CALL, STREAM, Plan, Scratch
from diglot.triton_ops.launch.descriptors import Descriptor
from diglot.triton_ops.launch.launch import launcher
from diglot.triton_ops.launch.layout import strided_arguments
from diglot.triton_ops.launch.padded_copy import (
    IEEE_SPEED,
    Matrix,
    copied_behind,
    is_worth,
    readable,
)
from diglot.triton_ops.launch.plan import ACCESS_BYTES, NOTHING, Launch, Operand, Part, Scalar
from diglot.triton_ops.launch.product_splits import scratch_of_parts
from diglot.triton_ops.launch.product_tiles import Epilogue, best_variant
from diglot.triton_ops.launch.products import MOST_SIDE, Product, product_of, tiles_of
from diglot.triton_ops.lib.products.descriptors import multiply_by_descriptors
from diglot.triton_ops.lib.products.padded_copy import copy_tile
from diglot.triton_ops.lib.products.pointers import multiply_by_pointers

HALVES = (torch.float16, torch.bfloat16)
GRID_SIDE = 1 << 30  # programs along an axis of a grid
TMA_ARCHITECTURE = 90
COPIED = 16, 256  # a tile of a copy
# The same where it is transposed, by bytes of an element.
TRANSPOSED = {1: (128, 64), 2: (64, 64), 4: (64, 64), 8: (64, 64)}
COPY_WARPS = 4
ONE_LAUNCH = 1  # a value of `row_sums`
BATCH_RANK = 2  # dimensions of a batch that descriptors take
Batch = tuple[tuple[int, int], ...]  # of each dimension, matrices and the step between them


@triton.jit
def matmul_pointers(
    a, b, bias, input, before, c, m, n, k, rows, columns, count,
    a_row, a_column, b_row, b_column, c_row, c_column, input_row, input_column, bias_stride,
    size0, size1, size2, size3, size4, size5, size6, size7,
    c_start, c0, c1, c2, c3, c4, c5, c6, c7,
    a_start, a0, a1, a2, a3, a4, a5, a6, a7,
    b_start, b0, b1, b2, b3, b4, b5, b6, b7,
    i_start, i0, i1, i2, i3, i4, i5, i6, i7,
    beta_high, beta_low, alpha_high, alpha_low,
    PRECISION: tl.constexpr, RANK: tl.constexpr, ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr,
    GROUP: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_by_pointers(
        (a, b), (bias, bias_stride, input, input_row, input_column), (before, c), (m, n, k),
        ((a_row, a_column), (b_row, b_column), (c_row, c_column)), (rows, columns, count),
        (size0, size1, size2, size3, size4, size5, size6, size7),
        (c_start, a_start, b_start, i_start),
        ((c0, c1, c2, c3, c4, c5, c6, c7), (a0, a1, a2, a3, a4, a5, a6, a7),
         (b0, b1, b2, b3, b4, b5, b6, b7), (i0, i1, i2, i3, i4, i5, i6, i7)),
        (beta_high, beta_low, alpha_high, alpha_low),
        PRECISION, RANK, ACTIVATION, IS_SLOPE, GROUP, VECTORS, BLOCK,
    )  # fmt: skip


@triton.jit
def matmul_descriptors(
    a, b, bias, input, before, c, row_sums, counters, scratch, row_scratch, m, n, k, row_stride,
    inner, c_outer, c_inner, input_outer, input_inner,
    rows, columns, count, parts, input_row, input_column,
    beta_high, beta_low, alpha_high, alpha_low,
    OUTER: tl.constexpr, ALONG_M: tl.constexpr, ALONG_N: tl.constexpr, HAS_DESCRIPTOR: tl.constexpr,
    ACTIVATION: tl.constexpr, IS_SLOPE: tl.constexpr, GROUP: tl.constexpr,
    IS_EXCHANGED: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    multiply_by_descriptors(
        a, b, (bias, 1, input, input_row, input_column), (before, c), (row_sums, row_scratch),
        counters, scratch, (m, n, k), row_stride,
        (inner, ((c_outer, c_inner), (input_outer, input_inner))), (rows, columns, count), parts,
        (beta_high, beta_low, alpha_high, alpha_low),
        OUTER, ALONG_M, ALONG_N, HAS_DESCRIPTOR, ACTIVATION, IS_SLOPE, GROUP, IS_EXCHANGED, PIECES,
        BLOCK,
    )  # fmt: skip


@triton.jit
def product_copy(
    source, copy, other_source, other_copy,
    rows, columns, row_stride, column_stride, units, tile_rows, tile_columns,
    other_rows, other_columns, other_row_stride, other_column_stride, other_units,
    other_tile_rows, other_tile_columns,
    UNIT: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr, OTHER_BLOCK: tl.constexpr,
):  # fmt: skip
    """A copy, or two: the first programs have the tiles of the first."""
    index, count = tl.program_id(0).to(tl.int64), tile_rows * tile_columns
    if other_source is None:
        copy_tile(
            source, copy, (rows, columns), (row_stride, column_stride), units,
            (tile_rows, tile_columns), index, UNIT, VECTOR, BLOCK,
        )  # fmt: skip
    elif index < count:
        copy_tile(
            source, copy, (rows, columns), (row_stride, column_stride), units,
            (tile_rows, tile_columns), index, UNIT, VECTOR, BLOCK,
        )  # fmt: skip
    else:
        copy_tile(
            other_source, other_copy, (other_rows, other_columns),
            (other_row_stride, other_column_stride), other_units,
            (other_tile_rows, other_tile_columns), index - count, UNIT, VECTOR, OTHER_BLOCK,
        )  # fmt: skip


@launcher
def matmul_forward(
    input: Operand, other: Operand, batch_invariant: bool, precision: str, out: Operand
) -> Plan:
    """out = input @ other."""
    product = product_of(input, other, out, is_batch_invariant=batch_invariant)
    return plan_product(product.with_precision(precision))


def plan_product(product: Product) -> Plan:
    """The plan of C = A B, and what follows it."""
    if product.is_empty:
        return NOTHING
    return _plan_by_descriptors(product) or _plan_by_pointers(product)


def plan_with_row_sums(product: Product) -> Plan | None:
    """The plan of C = A B whose launch also sums A's rows; None where none does, or where numbers
    do not ask for it.
    """
    if product.is_empty or product.a.dtype not in HALVES:
        return None
    return _plan_by_descriptors(product, has_row_sums=True)


def _plan_by_pointers(product: Product) -> Plan:
    a, b, c, around = product.a, product.b, product.c, product.around
    device, size = c.device, a.element_size()
    product.choose_numbers("strided")
    tile = device.tuned("products.triton.tile", size)
    block = tile["rows"], tile["columns"], tile["depth"]
    group = device.tuned("products.both.group")
    turned = _turned_b(product)
    of_b = product.strides[1] if turned is None else (turned.units * turned.unit, 1)
    strides: list[Scalar] = []
    for pair in (product.strides[0], of_b, *product.strides[2:]):
        # Steps between neighbours are known when it is compiled.
        strides += [tl.constexpr(1) if stride == 1 else stride for stride in pair]
    vectors = (*product.vector(a, product.strides[0], 1), *product.vector(b, of_b, 2))
    launches = [] if turned is None else [_copy(turned)]
    for slice, start in product.batches.slices():
        tiles = tiles_of(product.sizes, block, slice.numel)
        across = min(tiles[-1], GRID_SIDE)
        scalars = (
            *product.sizes, *tiles, *strides, product.bias_stride,
            *strided_arguments(slice, start, 4), *product.no_numbers,
        )  # fmt: skip
        precision = "tf32" if product.is_tf32 else "ieee"
        constants = (
            precision, len(slice.sizes), around.activation, around.is_slope, group, vectors, block,
        )  # fmt: skip
        launches.append(
            Launch(
                matmul_pointers, (across, triton.cdiv(tiles[-1], across)),
                (a, turned.part if turned else b, around.bias, around.input, around.before, c),
                scalars, constants, tile["warps"], numbers=product.numbers,
                num_stages=tile["stages"],
            )
        )  # fmt: skip
    name = f"pointers, tiles of {block[0]}x{block[1]}{', TF32' * product.is_tf32}"
    if turned is None or turned.part is None:
        return Plan(name, tuple(launches), None)
    return Plan(f"{name}, copy of B", tuple(launches), Scratch(turned.part.end, 0, CALL))


def _turned_b(product: Product) -> Matrix | None:
    """B of float32 with rows along N, in a copy; None where it lies so, or a copy does not pay.

    Threads multiply neighbours along N. In shared memory, lines along K would put these into one
    bank, and a product would take about twice as long.
    """
    of_b, (_, n, k) = product.strides[1], product.sizes
    is_along_k = of_b[0] == 1 and of_b[1] != 1 and n > 1
    is_ieee = product.b.dtype == torch.float32 and not product.is_tf32
    if not (is_along_k and is_ieee) or any(step for _, step in _batch(product, 2)):
        return None
    matrix = Matrix(_matrix(product.b, (k, n), of_b, False)[0]).copied(None)
    assert matrix.part is not None
    return matrix if is_worth(product, matrix.part.end, IEEE_SPEED) else None


def _matrix(
    operand: Operand,
    shape: tuple[int, int],
    strides: tuple[int, int],
    is_transposed: bool | None = None,
    batch: Batch = (),
) -> tuple[Operand, bool]:
    """An operand as a matrix of contiguous rows, and whether that is its transpose.

    Args:
        is_transposed: whether it must be; None: whichever has contiguous rows.
        batch: of each dimension, how many matrices there are, and the step between them.
    """
    rows, columns = shape
    if is_transposed is None and columns == 1 < rows:  # a line for each element is much to copy
        is_transposed = strides[0] % 8 != 0 or strides[0] == 0
    elif is_transposed is None:
        is_transposed = strides[1] != 1 and columns > 1 and (strides[0] == 1 or rows == 1)
    if is_transposed:
        (rows, columns), strides = (columns, rows), (strides[1], strides[0])
    # The step of a single row is of no account, but a descriptor's must be a multiple of 16 bytes.
    unused = -(-columns // 8) * 8
    steps = (unused if rows == 1 else strides[0], 1 if columns == 1 else strides[1])
    differing = [pair for pair in batch if pair[1] != 0]
    return dataclasses.replace(
        operand,
        shape=(*(count for count, _ in differing), rows, columns),
        strides=(*(step for _, step in differing), *steps),
    ), is_transposed


def _copy(*matrices: Matrix) -> Launch:
    """The launch of a padded copy, or of two."""
    blocks: list[tuple[int, int]] = []
    pointers: list[Operand | Part | None] = []
    scalars: list[Scalar] = []
    programs = 0
    for matrix in matrices:
        source = matrix.rows
        assert source is not None
        rows, columns = source.shape
        block = COPIED if source.strides[1] == 1 else TRANSPOSED[source.element_size()]
        tiles = tiles_of((rows, matrix.units * matrix.unit, 0), (*block, 1), 1)
        # Steps between neighbours are known when it is compiled.
        steps = [tl.constexpr(1) if step == 1 else step for step in source.strides]
        scalars += [rows, columns, *steps, matrix.units, *tiles[:2]]
        pointers += [matrix.source, matrix.part]
        blocks.append(block)
        programs += tiles[-1]
    if len(matrices) == 1:
        pointers += [None] * 2
        scalars += [None] * 7
    first = matrices[0]
    return Launch(
        product_copy, (programs,), tuple(pointers), tuple(scalars),
        (first.unit, ACCESS_BYTES // first.source.element_size(), blocks[0], blocks[-1]),
        COPY_WARPS,
    )  # fmt: skip


def plan_copies(a: Matrix, b: Matrix) -> tuple[tuple[Launch, ...], str]:
    """The launch of padded copies, if there are any, and what they add to a plan's name."""
    copied = {letter: x for letter, x in (("A", a), ("B", b)) if x.part is not None}
    text = f", {'copies' if len(copied) == 2 else 'copy'} of {' and '.join(copied)}"
    return ((_copy(*copied.values()),), text) if copied else ((), "")


def _batch(product: Product, array: int) -> Batch:
    """The batch's dimensions in C, A, B or the input, the slowest first."""
    batches = product.batches
    pairs = [(n, steps[array]) for n, steps in zip(batches.sizes, batches.strides, strict=True)]
    return tuple(reversed(pairs))


def _is_outer(product: Product, array: int) -> bool:
    """Whether matrices of an operand differ along the first of two dimensions alone."""
    steps = [step != 0 for _, step in _batch(product, array)]
    return steps == [True, False]


def _steps(product: Product, array: int, has_descriptor: bool) -> tuple[Scalar, Scalar]:
    """Steps along two dimensions of the batch, for a pointer."""
    steps = [] if has_descriptor else [step for _, step in _batch(product, array)]
    outer, inner = [None, None, *steps][-2:]
    return outer, inner


def _beside(product: Product) -> tuple[Operand | None, tuple[Scalar, Scalar]]:
    """The input as the kernel reads it, and its strides: none where a descriptor reads it, only
    that of a column where it is one row for all.
    """
    input, (row, column), (m, n, _) = product.around.input, product.strides[3], product.sizes
    if input is None:
        return None, (None, None)
    if row == 0 or m == 1:
        return input, (None, column)
    matrix, _ = _matrix(input, (m, n), (row, column), False, _batch(product, 3))
    if Matrix(matrix).fits:
        return matrix, (None, None)
    return input, (row, column)


def _epilogue(
    product: Product, has_descriptor: bool, input_strides: tuple[Scalar, Scalar]
) -> Epilogue:
    """What a tile's end needs. A single row may lie as no others do: tiles must not depend on that
    where bits must not depend on M.
    """
    has_input = product.around.input is not None
    if product.is_batch_invariant:
        return Epilogue(has_descriptor and product.sizes[1] % 8 == 0, has_input, has_input)
    return Epilogue(has_descriptor, has_input, input_strides[0] is not None)


def _plan_by_descriptors(product: Product, has_row_sums: bool = False) -> Plan | None:
    """A plan with tensor descriptors; None where these do not take the operands."""
    m, n, k = product.sizes
    device = product.c.device
    is_tf32 = product.is_tf32
    if not (product.a.dtype in HALVES or is_tf32) or k == 0:
        return None
    if len(product.batches.sizes) > BATCH_RANK:
        return None
    if not device.is_interpreted and device.architecture < TMA_ARCHITECTURE:
        return None
    if product.around.bias is not None and n > 1 and product.bias_stride != 1:
        return None
    if product.strides[2][1] != 1 or max(m, n, k) > MOST_SIDE:
        return None
    # wgmma reads float32 along K alone.
    must_a, must_b = (False, True) if is_tf32 else (None, None)
    a, along_m = _matrix(product.a, (m, k), product.strides[0], must_a, _batch(product, 1))
    b, along_k = _matrix(product.b, (k, n), product.strides[1], must_b, _batch(product, 2))
    c, _ = _matrix(product.c, (m, n), product.strides[2], False, _batch(product, 0))
    if None in (a.address, b.address):  # while a graph is compiled
        return None
    matrices = readable(product, a, b)
    if matrices is None:
        return None
    layout = ("T" if along_m else "N") + ("T" if along_k else "N")
    product.choose_numbers(layout)
    if has_row_sums and device.tuned("products.both.row_sums") != ONE_LAUNCH:
        return None
    around = product.around
    before = around.before and dataclasses.replace(
        c, position=around.before.position, address=around.before.address
    )
    outputs = [out for out in (before, c) if out is not None]
    has_descriptor = all(Matrix(out).fits for out in outputs)
    input, input_strides = _beside(product)
    epilogue = _epilogue(product, has_descriptor, input_strides)
    variant = best_variant(product, epilogue._replace(has_row_sums=has_row_sums))
    if variant is None or (has_row_sums and variant.is_exchanged):
        return None
    tile, parts = variant.tile, variant.parts
    block = tile.block
    block_a = (block[2], block[0]) if along_m else (block[0], block[2])
    block_b = (block[1], block[2]) if along_k else (block[2], block[1])
    tiles = tiles_of(product.sizes, block, product.batches.numel)
    if tiles[-1] * parts > MOST_SIDE:
        return None
    counters, sums = scratch_of_parts(tiles[-1], parts, block[0] * block[1])
    row_scratch = None
    if has_row_sums and sums is not None:
        row_scratch = Part(torch.float32, tiles[0] * block[0] * parts).after(sums)
    matrices = copied_behind(row_scratch or sums, *matrices)
    group = device.tuned("products.both.group")

    def described(out: Operand | None, has_descriptor: bool) -> Operand | Descriptor | None:
        return Matrix(out).descriptor(variant.piece) if has_descriptor and out is not None else out

    launch = Launch(
        matmul_descriptors,
        (device.programs(tiles[-1] * parts, tile.programs),),
        (
            matrices[0].descriptor(block_a),
            matrices[1].descriptor(block_b),
            around.bias,
            described(input, input_strides[1] is None),
            described(before, has_descriptor),
            described(c, has_descriptor),
            product.row_sums if has_row_sums else None,
            counters,
            sums,
            row_scratch,
        ),
        (
            *product.sizes,
            product.strides[2][0],
            product.batches.sizes[0] if len(product.batches.sizes) == 2 else None,
            *_steps(product, 0, has_descriptor),
            *_steps(product, 3, input_strides[1] is None),
            *tiles,
            parts,
            *input_strides,
            *product.no_numbers,
        ),
        (
            tuple(_is_outer(product, array) for array in (1, 2, 3)),
            along_m,
            not along_k,
            has_descriptor,
            around.activation,
            around.is_slope,
            group,
            variant.is_exchanged,
            variant.pieces,
            block,
        ),
        tile.warps,
        numbers=product.numbers,
        num_stages=tile.stages,
    )
    name = f"{variant}{', TF32' * is_tf32}{', sums of rows' * has_row_sums}"
    copies, of_copies = plan_copies(*matrices)
    used = (sums, row_scratch, *(x.part for x in matrices))
    scratch = [part for part in used if part is not None]
    zeroed, lifetime = (0, CALL) if counters is None else (counters.end, STREAM)
    return Plan(
        name + of_copies,
        (*copies, launch),
        Scratch(max(part.end for part in scratch), zeroed, lifetime) if scratch else None,
    )
