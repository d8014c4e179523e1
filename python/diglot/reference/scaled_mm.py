"""Products of 8-bit floats with scales in plain PyTorch: the launcher of the backend "torch", and
the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diglot.reference.matmul import expected_product
from diglot.reference.specs import CallSpec, Expected, Option

BLOCK = 128  # sides of a block that has a scale
UNIT = 16  # elements: PyTorch's op takes sizes that are multiples
ROUNDINGS = 4  # of a sum by its scales and the bias
TRUNCATED = 2.0**-13  # what Hopper's tensor cores cut off of a sum, as a share of its largest term


def scaled_mm_forward(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    use_fast_accum: bool,
    batch_invariant: bool,
    out: Tensor,
    scratch: Tensor | None,
) -> str:
    """out = (mat_a · scale_a) @ (mat_b · scale_b) + bias, by PyTorch's own op where it takes the
    operands. Otherwise matrices of float32 are multiplied.
    """
    if _aten_takes(mat_a, mat_b, scale_a, scale_b, bias, out):
        are_single = scale_a.numel() == scale_b.numel() == 1  # of matrices, not of a single row
        of_a, of_b = (s.reshape(()) if are_single else s for s in (scale_a, scale_b))
        arguments = mat_a, mat_b, of_a, of_b, bias, None, out.dtype, use_fast_accum
        torch._scaled_mm(*arguments, out=out)
        return "aten"
    a, b = mat_a.float(), mat_b.float()
    scale_a, scale_b = (s.reshape(()) if s.numel() == 1 else s for s in (scale_a, scale_b))
    shapes = (a.shape[0], 1), (1, b.shape[1])  # of scales of rows, and of columns
    is_by_block = scale_a.shape not in ((), shapes[0]) or scale_b.shape not in ((), shapes[1])
    if is_by_block:
        a, b = scaled(a, scale_a), scaled(b, scale_b)
    product = a @ b if is_by_block else a @ b * scale_a * scale_b
    out.copy_(product if bias is None else product + bias)
    return "float32"


def _aten_takes(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out: Tensor,
) -> bool:
    """Whether `torch._scaled_mm` takes these operands, of scales of matrices or of rows."""
    m, k = mat_a.shape
    n = mat_b.shape[1]
    if mat_a.device.type != "cuda" or torch.cuda.get_device_capability(mat_a.device) < (8, 9):
        return False
    if 0 in (m, n, k) or k % UNIT or n % UNIT or (bias is not None and out.dtype == torch.float32):
        return False
    if mat_a.stride(1) != 1 or mat_b.stride(0) != 1:
        return False
    if min(mat_a.stride(0), mat_b.stride(1)) < k:
        return False
    if scale_a.numel() == scale_b.numel() == 1:
        return True
    is_by_rows = scale_a.shape == (m, 1) and scale_b.shape == (1, n)
    return is_by_rows and out.dtype == torch.bfloat16 and scale_a.is_contiguous()


def scaled(matrix: Tensor, scale: Tensor) -> Tensor:
    """A matrix of numbers times their scales, in the matrix's dtype."""
    wide = scale.to(matrix.dtype)
    if scale.numel() == 1:
        return matrix * wide.reshape(())
    for dim in range(2):
        if wide.shape[dim] not in (1, matrix.shape[dim]):
            wide = wide.repeat_interleave(BLOCK, dim).narrow(dim, 0, matrix.shape[dim])
    return matrix * wide


def scaled_mm_oracle(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The same in float64."""
    product = scaled(mat_a.double(), scale_a) @ scaled(mat_b.double(), scale_b)
    return product if bias is None else product + bias.double()


def expected_scaled_product(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    truncated_sums: int = 0,
) -> Expected:
    """The right values, and how far sums may be from them.

    Args:
        truncated_sums: how many sums of 32 products tensor cores add to each other, and cut; 0 if
            sums are rounded to float32.
    """
    a, b = scaled(mat_a.double(), scale_a), scaled(mat_b.double(), scale_b)
    exact = expected_product(a, b, bias, dtype)
    assert exact.allowance is not None
    terms = a.shape[-1] + 1
    magnitude = exact.allowance / (terms * torch.finfo(torch.float32).eps)
    allowance = exact.allowance * (1 + ROUNDINGS / terms) + truncated_sums * TRUNCATED * magnitude
    return Expected(exact.function, exact.tensors, {}, dtype, allowance)


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of the matrices: the second has as many columns as the first has rows."""
    return [shape, shape[::-1]]


def _call(function: Callable[..., Any], a: Tensor, b: Tensor, **options: Any) -> Any:
    """The call of matrices of any dtype, contiguous along K, without scales."""
    one = torch.ones((), device=a.device)
    a, b = (t.to(torch.float8_e4m3fn) for t in (a, b.mT.contiguous()))
    return function(a, b.mT, one, one, **options)


SPEC = CallSpec(
    name="scaled_mm",
    inputs=("mat_a", "mat_b"),
    options={"use_fast_accum": Option(False, (False, True))},
    floating_only=True,
    directions=("forward",),
    call=_call,
    shapes=_shapes,
)
