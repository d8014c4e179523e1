"""A norm's backward pass in CUDA C++ where warps have several rows together, one after the other.

Their messages for one row lie elsewhere than those for the next one. Otherwise a fast warp would
overwrite values that a slow one still reads, which the interpreter tells as a race.
"""

from __future__ import annotations

from backends import needs_cuda
from norms import Norm


@needs_cuda
def test_several_rows_of_a_team():
    """More rows than groups; each group is a block."""
    backward = Norm.draw("layer_norm", (140, 4100)).check("cuda")[-1]
    assert backward.variant.startswith("a row in shared memory")
