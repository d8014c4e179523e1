"""The backward pass of a norm whose rows a program cannot hold, where programs cannot wait for each
other. A program reads each row in two passes, and adds to its group's sums in memory.

Twin of csrc/include/diglot/norm/backward_streaming.cuh.
"""

import triton
import triton.language as tl

from diglot.triton_ops.lib.elementwise import strided_offset
from diglot.triton_ops.lib.reduce.states import BY_THREAD, sum_along
from diglot.triton_ops.lib.rows.tile import by_thread, load_parameters, tile_mask
from diglot.triton_ops.lib.types import compute_type

from .backward import centered, load_rows, load_statistic, scaled, store_gradient
from .group_sums import store_sums


@triton.jit
def norm_backward_streaming(
    grad_output, grad_sum, input, mean, rstd, weight, workspace, grad_input,
    n, count, groups, sizes, starts, strides,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LATER: tl.constexpr, RANK: tl.constexpr,
    VECTOR: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """A group's rows, each in two passes. Arguments are those of `norm_backward_resident`."""
    T: tl.constexpr = grad_input.dtype.element_ty
    COMPUTE: tl.constexpr = compute_type(T)
    n = n * VECTOR
    part = tl.full((), 1.0, COMPUTE) / tl.full((), n, COMPUTE)
    group = tl.program_id(0).to(tl.int64)
    BIAS_FIELD: tl.constexpr = 1 if WEIGHT else 0
    AT: tl.constexpr = VECTOR if ALIGNED else 1
    if not LATER:
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            nothing = tl.full((1, BLOCK), 0.0, COMPUTE)
            mask = (index < n)[None, :]
            if WEIGHT:
                store_sums(workspace, 0, group, groups, 0, index, n, mask, nothing, False, AT)
            if BIAS:
                store_sums(
                    workspace,
                    BIAS_FIELD,
                    group,
                    groups,
                    0,
                    index,
                    n,
                    index < n,
                    nothing,
                    False,
                    AT,
                )
    for number in range(group, count, tl.num_programs(0)):
        row = number + tl.arange(0, 1)
        row_mask = row < count
        offset = strided_offset(row, sizes, starts[4], strides[4], RANK, True)
        center = load_statistic(mean, offset, row_mask)
        factor = load_statistic(rstd, offset, row_mask)
        sums_h = tl.full((1, THREADS, 1), 0.0, COMPUTE)
        sums_hy = tl.full((1, THREADS, 1), 0.0, COMPUTE)
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            mask = tile_mask(index, n, row_mask, False)
            x = load_rows(
                input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED
            )
            grad = load_rows(
                grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
            )
            y = centered(x.to(COMPUTE), center) * factor
            h = scaled(grad.to(COMPUTE), load_parameters(weight, index, n, VECTOR, ALIGNED))
            sums_h += sum_along(by_thread(h, VECTOR, THREADS), BY_THREAD)
            sums_hy += sum_along(by_thread(h * y, VECTOR, THREADS), BY_THREAD)
        mean_h, mean_hy = tl.sum(sums_h) * part, tl.sum(sums_hy) * part
        for first in range(0, n, BLOCK):
            index = first + tl.arange(0, BLOCK)
            mask = tile_mask(index, n, row_mask, False)
            x = load_rows(
                input, row, index, mask, sizes, starts[3], strides[3], RANK, VECTOR, ALIGNED
            )
            grad = load_rows(
                grad_output, row, index, mask, sizes, starts[1], strides[1], RANK, VECTOR, ALIGNED
            )
            y = centered(x.to(COMPUTE), center) * factor
            wide = grad.to(COMPUTE)
            if WEIGHT:
                store_sums(workspace, 0, group, groups, 0, index, n, mask, wide * y, True, AT)
            if BIAS:
                store_sums(workspace, BIAS_FIELD, group, groups, 0, index, n, mask, wide, True, AT)
            out_offset = strided_offset(row, sizes, starts[0], strides[0], RANK, True)
            sum_offset = out_offset
            if grad_sum is not None:
                sum_offset = strided_offset(row, sizes, starts[2], strides[2], RANK, True)
            store_gradient(
                grad_input, grad_sum, y,
                scaled(wide, load_parameters(weight, index, n, VECTOR, ALIGNED)), factor,
                None if mean is None else mean_h, mean_hy,
                out_offset,
                sum_offset,
                index, mask, T, VECTOR, ALIGNED,
            )  # fmt: skip
