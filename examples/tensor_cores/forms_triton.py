"""The product of product_triton.py in other forms: pointers, block pointers, warp specialisation.

Each form is a function that makes a `Call`, which runs a kernel or compiles it without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from product_triton import describe, product_kernel, tile_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from diglot.triton_ops.lib.mma.dot import dot
from diglot.triton_ops.lib.types import convert

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
# Triton 3.9 removes block pointers.
HAS_BLOCK_POINTERS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


@triton.jit
def product_by_pointers(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Addresses of all elements of a tile, and masks at the edges. Any strides would do."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)[None, :]
    depth = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        in_row, in_column = (k + depth)[None, :], (k + depth)[:, None]
        tile_a = tl.load(a + row * stride_a + in_row, (row < M) & (in_row < K), 0.0)
        tile_b = tl.load(b + in_column * stride_b + column, (in_column < K) & (column < N), 0.0)
        sums = dot(tile_a, tile_b, sums, PRECISION)
    place = c + row * stride_c + column
    tl.store(place, convert(sums, c.dtype.element_ty), (row < M) & (column < N))


@triton.jit
def product_by_block_pointers(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A pointer with a shape, moved along a row: what descriptors replace."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    block_a = tl.make_block_ptr(a, (M, K), (stride_a, 1), (row, 0), (BM, BK), (1, 0))
    block_b = tl.make_block_ptr(b, (K, N), (stride_b, 1), (0, column), (BK, BN), (1, 0))
    block_c = tl.make_block_ptr(c, (M, N), (stride_c, 1), (row, column), (BM, BN), (1, 0))
    sums = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        tile_a = tl.load(block_a, boundary_check=(0, 1), padding_option="zero")
        tile_b = tl.load(block_b, boundary_check=(0, 1), padding_option="zero")
        sums = dot(tile_a, tile_b, sums, PRECISION)
        block_a, block_b = tl.advance(block_a, (0, BK)), tl.advance(block_b, (BK, 0))
    tl.store(block_c, convert(sums, c.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def product_specialised(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each program makes its descriptors; one warpgroup loads, and the others multiply."""
    tiles_a = tl.make_tensor_descriptor(a, [M, K], [stride_a, 1], [BM, BK])
    tiles_b = tl.make_tensor_descriptor(b, [K, N], [stride_b, 1], [BK, BN])
    tiles_c = tl.make_tensor_descriptor(c, [M, N], [stride_c, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        sums = dot(tiles_a.load([row, k]), tiles_b.load([k, column]), sums, PRECISION)
    tiles_c.store([row, column], convert(sums, c.dtype.element_ty))


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments.

    Attributes:
        kernel: the function; its parameters are arguments, then constants.
        grid: programs along two axes.
        arguments: descriptors, tensors and integers.
        constants: the precision of float32, and the tile's sizes.
        options: of the launch.
    """

    kernel: Any
    grid: tuple[int, int]
    arguments: list[TensorDescriptor | torch.Tensor | int]
    constants: tuple[Any, ...]
    options: dict[str, int]

    def run(self) -> Any:
        """Launches it. Returns what Triton compiled; None where it interprets."""
        return self.kernel[self.grid](*self.arguments, *self.constants, **self.options)

    def compile(self, architecture: int = 90) -> Any:
        """Compiles it without a GPU, for multiples of 16 as `run` would."""
        names = self.kernel.arg_names
        types = [*map(_type_of, self.arguments), *["constexpr"] * len(self.constants)]
        constants = dict(zip(names[len(self.arguments) :], self.constants, strict=True))
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, argument in enumerate(self.arguments)
            if isinstance(argument, torch.Tensor)
            or (isinstance(argument, int) and argument % 16 == 0)
        }
        source = ASTSource(
            self.kernel, dict(zip(names, types, strict=True)), constants, attrs=aligned
        )
        target = GPUTarget("cuda", architecture, 32)
        return triton.compile(source, target=target, options=self.options)


def _type_of(argument: TensorDescriptor | torch.Tensor | int) -> str:
    if isinstance(argument, TensorDescriptor):
        return f"tensordesc<{TYPES[argument.base.dtype]}{list(argument.block_shape)}>"
    return "i32" if isinstance(argument, int) else f"*{TYPES[argument.dtype]}"


Form = Callable[..., Call]


def _form(kernel: Any, num_warps: int, by_host: bool = False) -> Form:
    """A form whose kernel takes pointers, sizes and row strides; or descriptors by the host."""

    def form(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str = "tf32") -> Call:
        tile = tile_of(a.dtype, precision)
        grid = triton.cdiv(c.shape[0], tile[0]), triton.cdiv(c.shape[1], tile[1])
        arguments = [a, b, c, *c.shape, a.shape[1], a.stride(0), b.stride(0), c.stride(0)]
        if by_host:
            arguments = describe(a, b, c, tile)
        return Call(kernel, grid, arguments, (precision, *tile), {"num_warps": num_warps})

    return form


FORMS: dict[str, Form] = {
    "descriptors": _form(product_kernel, 8, by_host=True),
    "pointers": _form(product_by_pointers, 8),
    # In this form alone the compiler gives warpgroups roles: 4 warps, and tiles of 128 rows.
    "warp-specialised": _form(product_specialised, 4),
}
if HAS_BLOCK_POINTERS:
    FORMS["block pointers"] = _form(product_by_block_pointers, 8)
