"""A norm's backward pass over more outer dimensions than a launch takes: several launches, each
over a slice of the rows, whose sums for weight and bias add up.
"""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from norms import Norm

# Neighbouring dimensions of the input do not merge with those of the gradient. Of dimensions a
# launch takes three in Triton, eight in CUDA C++: here it takes two launches.
SHAPES = {"cuda": (2,) * 9, "triton": (2,) * 4}
# Lengths of rows: several rows to a team, or one; in Triton also in tiles.
LENGTHS = {"cuda": (8, 61), "triton": (8, 61, 3000, 8200)}
CALLS = {
    "layer_norm": ("both", torch.float32),
    "rms_norm": ("weight", torch.bfloat16),
    "add_layer_norm": ("float32 both", torch.bfloat16),
}


def in_reverse(shape: tuple[int, ...], n: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of n elements that lie in memory as those of the transposed outer dimensions."""
    outer = tuple(range(len(shape)))
    memory = torch.randn(*reversed(shape), n, device=DEVICE).to(dtype)
    return memory.permute(*reversed(outer), len(shape))


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize(
    ("backend", "n"),
    [
        *(pytest.param("cuda", n, marks=NEEDS_CUDA) for n in LENGTHS["cuda"]),
        *(("triton", n) for n in LENGTHS["triton"]),
    ],
)
def test_sums_of_all_slices(backend, n, op):
    parameters, dtype = CALLS[op]
    shape = SHAPES[backend]
    drawn = Norm.draw(op, (*shape, n), dtype, parameters)
    arrays = [in_reverse(shape, n, dtype) for _ in drawn.arrays]
    norm = Norm(op, arrays, drawn.parameters).require_grad()
    grads = [torch.randn(*shape, n, device=DEVICE).to(dtype) for _ in arrays]
    results = norm(backend)
    norm.assert_right(results)
    norm.assert_right_gradients(torch.autograd.grad(results, norm.tensors, grads), *grads)
