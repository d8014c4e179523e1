"""The machine code of grouped products in Triton, and of a mixture of experts: nothing spilled, and
rows in accesses of 16 bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILED = """
import json, sys
import torch
from diglot.tools.resources import compile_stages
from diglot.triton_ops import grouped_mm, moe
from diglot.triton_ops.launch import launch

H200 = (90, 132, 228 << 10, True)
answers = []

def new(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")

def look(planner, *arguments):
    (made,) = launch.plan(planner, H200, *arguments).launches
    code = compile_stages(made.specialization).resources
    products, widths = [p for p, _ in code.products], [code.load_bytes, code.store_bytes]
    answers.append([made.kernel.fn.__name__, code.spill_bytes, products or widths])

offs = new(64, dtype=torch.int32)
weights = new(64, 1408, 2048).mT
for mean in 16, 32, 64, 128, 256, 512:
    rows, grad = new(64 * mean, 2048), new(64 * mean, 1408)
    look(grouped_mm.grouped_mm_forward, rows, weights, offs, grad)
    look(grouped_mm.grouped_mm_forward, rows.mT, grad, offs, new(64, 2048, 1408))
look(grouped_mm.grouped_mm_forward, rows, weights[..., :-1], offs, grad.new_empty(32768, 1407))
look(grouped_mm.grouped_mm_forward, rows.mT, grad[:, :-1], offs, new(64, 2048, 1407))
places, weights = new(4096, 6, dtype=torch.int64), new(4096, 6, dtype=torch.float32)
look(moe.moe_rows, new(8192, 2048), places, weights, 0, new(4096, 2048))
for activation in ("silu", "gelu"):
    for dtype in (torch.bfloat16, torch.float64):
        wide, narrow = new(4096, 2816, dtype=dtype), new(4096, 1408, dtype=dtype)
        look(moe.moe_activation_forward, wide, activation, True, narrow)
        look(moe.moe_activation_backward, narrow, wide, activation, True, wide)
print(json.dumps(answers))
"""
# Columns of a tensor core's products, of rows and of K. TMA does not store C in the last two.
GROUPED = [16, 128, 32, 128, 64, 128, 128, 128, 256, 128, 128, 128, 128, 128]


@pytest.mark.ahead_of_time
@pytest.mark.slow
def test_triton():
    environment = {k: v for k, v in os.environ.items() if "INTERPRET" not in k}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found[: len(GROUPED)] == [
        ["grouped_mm_descriptors", 0, [f"HGMMA.64x{columns}x16.F32.BF16"]] for columns in GROUPED
    ]
    assert [rest for _, *rest in found[len(GROUPED) :]] == [[0, [16, 16]]] * 9
