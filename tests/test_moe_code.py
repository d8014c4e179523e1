"""The machine code of grouped products in Triton, and of a mixture of experts: nothing spilled."""

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
    answers.append([made.kernel.fn.__name__, code.spill_bytes, [p for p, _ in code.products]])

offs = new(64, dtype=torch.int32)
look(grouped_mm.grouped_mm_forward, new(8192, 2048), new(64, 1408, 2048).mT, offs, new(8192, 1408))
look(grouped_mm.grouped_mm_forward, new(8192, 2048).mT, new(8192, 1408), offs, new(64, 2048, 1408))
places, weights = new(4096, 6, dtype=torch.int64), new(4096, 6, dtype=torch.float32)
look(moe.moe_rows, new(8192, 2048), places, weights, 0, new(4096, 2048))
for activation in ("silu", "gelu"):
    for dtype in (torch.bfloat16, torch.float64):
        wide, narrow = new(4096, 2816, dtype=dtype), new(4096, 1408, dtype=dtype)
        look(moe.moe_activation_forward, wide, activation, True, narrow)
        look(moe.moe_activation_backward, narrow, wide, activation, True, wide)
print(json.dumps(answers))
"""
GROUPED = [0, ["HGMMA.64x128x16.F32.BF16"]]


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
    of_rows, of_k, *others = json.loads(done.stdout)
    assert of_rows == ["grouped_mm_descriptors", *GROUPED]
    assert of_k == ["grouped_mm_pointers", *GROUPED]
    assert [spilled for _, spilled, _ in others] == [0] * 9
