"""A launch on three axes: blocks, and in CUDA C++ threads too, numbered by x, y and z.

    python examples/lessons/three_axes.py

The axes of a volume are reversed: out[z, y, x] = in[x, y, z]. The grid has as many axes as the
problem, so that no kernel divides a number into three. Neighbours along x run together: they are
the lanes of a warp, and in the grid blocks of one row follow each other. x may have 2^31 - 1
blocks, y and z 65535 (CUDA C++ Programming Guide, "Compute Capabilities"), in Triton too. Each
program of the Triton kernel writes its place in the grid, which `num_programs` completes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, call, check_equal, show

# isort: split
import torch
import triton
import triton.language as tl

SHAPE = (5, 6, 34) if INTERPRETED else (512, 512, 512)  # of the result: depth, height, width
BLOCKS = {"X": 16, "Y": 4, "Z": 4}


@triton.jit
def reverse_axes_kernel(  # noqa: ANN201
    depth, height, width, source, out, places, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr  # noqa: ANN001
):  # fmt: skip
    x = tl.program_id(0) * X + tl.arange(0, X)[None, None, :]
    y = tl.program_id(1) * Y + tl.arange(0, Y)[None, :, None]
    z = tl.program_id(2) * Z + tl.arange(0, Z)[:, None, None]
    inside = (x < width) & (y < height) & (z < depth)
    values = tl.load(source + (x * height + y) * depth + z, inside)
    tl.store(out + (z * height + y) * width + x, values, inside)
    number = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0)
    tl.store(places + number + tl.program_id(0), tl.program_id(1))


def grid(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Programs on x, y and z for a result of depth, height and width."""
    sizes = zip(reversed(shape), BLOCKS.values(), strict=True)
    x, y, z = (triton.cdiv(size, block) for size, block in sizes)
    return x, y, z


def reverse_axes(
    language: str, source: torch.Tensor, out: torch.Tensor, places: torch.Tensor
) -> None:
    """Writes `out`, and into `places` each block's number on axis y, in the order z, y, x."""
    depth, height, width = out.shape
    if language == "cuda":
        call("three_axes", "reverse_axes", depth, height, width, source, out, places)
    else:
        axes = grid((depth, height, width))
        reverse_axes_kernel[axes](depth, height, width, source, out, places, **BLOCKS)


def main() -> Iterator[Table]:
    """A row for each language."""
    depth, height, width = SHAPE
    source = torch.randn(width, height, depth, device=DEVICE)
    out = torch.empty(SHAPE, device=DEVICE)
    x, y, z = grid(SHAPE)
    expected = torch.arange(y, dtype=torch.int32, device=DEVICE)[None, :, None].expand(z, y, x)
    rows, calls = list[Row](), []
    for language in ("cuda", "triton"):
        places = torch.full((z, y, x), -1, dtype=torch.int32, device=DEVICE)
        calls.append(partial(reverse_axes, language, source, out, places))
        out.zero_()
        calls[-1]()
        check_equal(out, source.permute(2, 1, 0).contiguous())
        check_equal(places, expected.contiguous())
        rows.append({"language": language, "x": x, "y": y, "z": z, "blocks": places.numel()})
    add_times(rows, calls, 2 * source.nbytes)
    yield Table(f"out[z, y, x] = in[x, y, z] of {width} x {height} x {depth}", rows)


if __name__ == "__main__":
    show(main)
