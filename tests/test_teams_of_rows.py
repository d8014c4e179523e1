"""A norm's backward pass in CUDA C++ where warps have several rows together, one after the other.

What they tell each other of one row lies where that of the next one does not: otherwise a fast warp
writes what a slow one still reads, which the interpreter tells as a race.
"""

from __future__ import annotations

from backends import needs_cuda
from norms import Norm


@needs_cuda
def test_several_rows_of_a_team():
    """More rows than groups, of which each is a block."""
    backward = Norm.draw("layer_norm", (140, 4100)).check("cuda")[-1]
    assert backward.variant.startswith("a row in shared memory")
