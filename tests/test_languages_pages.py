"""docs/triton_and_cuda.md and docs/triton_limits.md: what they say of Triton is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from apart import FILE, run_apart
from backends import DEVICE
from lessons import FOLDER

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("triton_and_cuda", "triton_limits", "lessons")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_files_are_there(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert targets and [t for t in targets if not (DOCS / t).exists()] == []
    named = set(re.findall(r"`(\w+\.(?:py|cu))`", text))
    assert named and [name for name in named if not (FOLDER / name).exists()] == []
    sources = re.findall(r"`(?:triton_ops/)?(lib/[\w/]+\.py)`", text)
    assert [path for path in sources if not (DOCS.parent / "triton_ops" / path).exists()] == []


@triton.jit
def narrow_kernel(x, out):
    at = tl.arange(0, 4)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16))


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
def test_the_interpreter_truncates():
    x = torch.tensor([1.0, 1.0 + 2**-8 + 2**-20, 1.0 + 2**-7, -1.0 - 2**-8 - 2**-20])
    out = torch.empty(4, dtype=torch.bfloat16)
    narrow_kernel[(1,)](x, out)
    assert out.tolist() == [1, 1, 1 + 2**-7, -1] != x.bfloat16().tolist()


# In a process of its own, because here kernels are interpreted.
REFUSED = """
import json
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def block(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)

@triton.jit
def element(x):
    tl.store(x, tl.load(x + tl.arange(0, 8))[3])

@triton.jit
def part(x):
    tl.store(x + tl.arange(0, 4), tl.load(x + tl.arange(0, 8))[0:4])

@triton.jit
def after_a_return(x, C: tl.constexpr):
    if C:
        return
    tl.store(x, tl.load(x) + not_there)

@triton.jit
def two_layouts(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    at = i[:, None] * B + i[None, :]
    total = tl.zeros((B, B), tl.float32)
    for step in range(n):
        tile = tl.load(x + step * B * B + at)
        total += tl.trans(tile) + tile
    tl.store(out + at, total)

def compile(kernel, types, **constants):
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    try:
        return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttgir"]
    except triton.CompilationError as error:
        return f"{error} {error.__cause__}"

x = {"x": "*fp32"}
print(json.dumps({
    "96": compile(block, {**x}, B=96),
    "2^21": compile(block, {**x}, B=1 << 21),
    "element": compile(element, {**x}),
    "part": compile(part, {**x}),
    "return": compile(after_a_return, {**x}, C=True),
    "loop": compile(two_layouts, {**x, "out": "*fp32", "n": "i32"}, B=64),
}))
"""


@pytest.mark.slow
@pytest.mark.ahead_of_time
def test_what_the_compiler_refuses(tmp_path):
    script = tmp_path / "refused.py"  # a kernel's source is read from its file
    script.write_text(REFUSED)
    answer = run_apart(FILE, str(script))
    assert answer.returncode == 0, answer.stderr[-3000:]
    said = json.loads(answer.stdout)
    assert "power of 2" in said["96"]
    assert "exceeds triton maximum tensor numel (1048576)" in said["2^21"]
    assert "unsupported tensor index" in said["element"]
    assert "unsupported tensor index" in said["part"]
    assert "not_there is not defined" in said["return"]
    loop = said["loop"]
    assert loop.index("scf.for") < loop.index("convert_layout") < loop.index("scf.yield")
