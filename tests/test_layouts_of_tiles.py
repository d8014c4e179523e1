"""Right products, interpreted with race checks: whatever boxes TMA loads the operands in, no
descriptor is said to read them in another order.
"""

from __future__ import annotations

import pytest
import torch
from planted.library import ROOT, build_interpreted, runner
from planted.table import integers

from diglot.backends.registry import INTERPRET

pytestmark = pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set")

# Of a kernel: n, K, whether A and B are given by rows of K, and the elements' type.
FORMS = {
    "panels": (64, 128, False, False, torch.bfloat16),
    "fp8": (64, 128, False, False, torch.float8_e4m3fn),
    "columns": (128, 64, True, True, torch.bfloat16),
    "narrow_columns": (128, 64, True, True, torch.bfloat16),
    "halves": (256, 64, False, False, torch.bfloat16),
    "chunks": (64, 64, False, True, torch.bfloat16),
    "cores": (64, 64, False, False, torch.bfloat16),
    "pixels": (64, 64, False, False, torch.bfloat16),
}


@pytest.fixture(scope="module")
def run():
    return runner(build_interpreted(ROOT / "tests/planted/layouts.cu"))


@pytest.mark.parametrize("kernel", FORMS)
def test_right_layouts_are_not_reported(run, kernel):
    n, depth, a_by_k, b_by_k, dtype = FORMS[kernel]
    values = integers((80 + n) * depth)
    a, b = values[: 64 * depth].view(64, depth), values[-n * depth :].view(n, depth)
    given = a.T if a_by_k else a
    if kernel == "pixels":  # in rows of 8, between one pixel on either side
        given = torch.nn.functional.pad(a.view(8, 8, depth), (0, 0, 1, 1), value=99)
    parts = [given.flatten(), (b.T if b_by_k else b).flatten()]
    operands = torch.cat([part.to(dtype) for part in parts]).view(torch.float32)
    for seed in range(3):
        message, out = run(
            kernel, values=operands, blocks=64 * n, threads=128, shared=1 << 16, seed=seed
        )
        assert message == ""
        assert torch.equal(out, (a @ b.T).flatten())
