"""The ladder in Triton: every step is right, and compiled to what it claims."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from backends import DEVICE, KERNELS
from planted.library import ROOT

if "triton" not in KERNELS:
    pytest.skip("there is no Triton", allow_module_level=True)

import triton

from diglot.bench import ladder

EXAMPLE = ROOT / "examples/tensor_cores"
NAMES = [step.name for step in ladder.STEPS if step.language == "triton"]
SIZES = [(8, 8, 8), (136, 520, 72)]  # one element of a tile; edges of several of both widths
PROGRAMS = 2  # of persistent steps, so that each has several tiles


@pytest.fixture(scope="module")
def steps():
    """The example's module, with its folder on the path, as Python itself would have it."""
    sys.path.insert(0, str(EXAMPLE))
    if DEVICE == "cuda":
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=DEVICE))
    yield importlib.import_module("ladder_triton")
    sys.path.remove(str(EXAMPLE))


def product_of(step, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a step makes of integers, and their exact product."""
    a, b = (torch.randint(-4, 5, s, device=DEVICE).bfloat16() for s in ((m, k), (k, n)))
    c = torch.full((m, n), float("nan"), device=DEVICE, dtype=a.dtype)
    step(a, b, c, PROGRAMS).run()
    return c, (a.double() @ b.double()).bfloat16()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_right(steps, name, sizes):
    result, expected = product_of(steps.STEPS[name], *sizes)
    assert torch.equal(result, expected)


# --- the counter of stores -----------------------------------------------------------------------

START = "stored = tl.program_id(0) - tl.num_programs(0)"
PREVIOUS = f"{START} * 2"


@pytest.mark.parametrize("name", ["persistent", "descriptors"])
@pytest.mark.parametrize("start", [START, PREVIOUS], ids=["right", "previous tile"])
def test_a_tile_is_stored_where_it_belongs(steps, tmp_path, name, start):
    """The stores' own counter names the current tile.

    A well-known example is described as storing the previous one. A kernel that did so would store
    each tile's sums in the place of another, or nowhere.
    """
    text = (EXAMPLE / "ladder_triton.py").read_text()
    assert text.count(START) == 2
    text = text.replace("tile_of(stored,", "tile_of(tl.maximum(stored, 0),")  # inside C at least
    path = tmp_path / "changed.py"
    path.write_text(text.replace(START, start))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    changed = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = changed  # where Triton looks for the kernel's names
    try:
        spec.loader.exec_module(changed)
        result, expected = product_of(changed.STEPS[name], 136, 520, 72)
    finally:
        del sys.modules[path.stem]
    assert torch.equal(result, expected) == (start == START)


# --- compilation ---------------------------------------------------------------------------------

COMPILED = """
import json, sys
import torch
from ladder_triton import STEPS
from diglot.tools.resources import read_compiled
a, b, c = (torch.empty(4096, 4096, dtype=torch.bfloat16) for _ in range(3))
answers = {}
for name in sys.argv[1:]:
    made = STEPS[name](a, b, c, 132).compile()
    answers[name] = [read_compiled(made).resources.form, made.metadata.shared]
print(json.dumps(answers))
"""
PLAIN = "not warp-specialised, 8 warps; descriptor loads 0, stores 0; 4 HGMMA.64x128x16.F32.BF16; "
TILES = {"naive": PLAIN, "grouped": PLAIN, "persistent": PLAIN}
WIDE = "4 HGMMA.64x256x16.F32.BF16; "
FORMS = TILES | {
    "descriptors": f"not warp-specialised, 8 warps; descriptor loads 6, stores 2; {WIDE}",
    "halves": f"not warp-specialised, 8 warps; descriptor loads 8, stores 4; {WIDE}",
    "specialised": "warp-specialised, 12 warps; descriptor loads 3, stores 2; 8 HGMMA.64x256",
}
STAGE, TILE_STAGE = 48 << 10, 32 << 10  # bytes of both operands' tiles, wide and not


@pytest.mark.ahead_of_time
@pytest.mark.slow
def test_what_is_compiled():
    environment = {k: v for k, v in os.environ.items() if "INTERPRET" not in k}
    path = os.pathsep.join([str(EXAMPLE), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, *NAMES],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for name, (form, _) in found.items():
        assert form.startswith(FORMS[name]) and form.endswith(" 0 bytes spilled"), (name, form)
    for name in TILES:  # both operands are copied ahead, three stages of each
        assert found[name][1] >= 3 * TILE_STAGE, name
    # A half of C leaves room for a fourth stage.
    assert 3 * STAGE + (64 << 10) <= found["descriptors"][1] < 4 * STAGE + (32 << 10)
    assert 4 * STAGE + (32 << 10) <= found["halves"][1] <= 227 << 10
