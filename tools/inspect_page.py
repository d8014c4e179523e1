"""The excerpts of docs/inspect.md, out of the compilers.

`python tools/pages.py` writes them. What the page shows of gelu is what `diglot inspect`
shows; what it shows of its own kernel, a product of two tiles, is compiled from the page's text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from diglot.tools.cuda_library import cuda_sass
from diglot.tools.inspect import Inspection, inspect

PAGE = Path(__file__).parent.parent / "docs/inspect.md"
STAGES = ("ttir", "ttgir", "llir", "ptx", "sass")
BLOCK = re.compile(r"(<!-- excerpt: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COPYING = "layer_norm_backward_rows<NormShape<4, true>, float>"


def versions() -> str:
    """Which compilers made the excerpts."""
    from diglot import _C

    cuda = f"{_C.cuda_version // 1000}.{_C.cuda_version % 1000 // 10}"
    return f"Triton {metadata.version('triton')}, CUDA {cuda}"


def lines(text: str, *patterns: str, most: int = 1) -> list[str]:
    """Of each pattern the first lines that have it, in the text's order, without locations."""
    found: dict[int, str] = {}
    every = text.splitlines()
    for pattern in patterns:
        having = [i for i, line in enumerate(every) if re.search(pattern, line)]
        assert having, pattern
        found |= {i: every[i] for i in having[:most]}
    plain = [re.sub(r" loc\(.*\)$|\s*//.*$|, !dbg.*$", "", found[i]) for i in sorted(found)]
    return [re.sub(r"\s+", " ", line).strip() for line in plain]


def code(language: str, of: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *of, "```"])


def cell(of: Iterable[str]) -> str:
    return "<br>".join(f"`{line}`" for line in of) or "–"


def of_gelu(found: Inspection) -> dict[str, str]:
    """By name, the excerpts of gelu's forward kernels in float32."""
    cuda, triton = (
        next(kernel for kernel in found.of(of) if kernel.directions == ("forward",))
        for of in ("cuda", "triton")
    )
    ir = {stage: triton.stages[stage] for stage in STAGES}
    loads = r"ld\.global\.v4\.b32", r"LDG\.E\.128"
    stores = r"st\.global\.v4\.b32", r"STG\.E\.128"

    def row(tl: str, ttgir: str, ptx: str, sass: str, cpp: str, most: int = 1) -> str:
        cells = [f"`{tl}`"] + [
            cell(lines(ir[stage], pattern, most=most if stage != "ttgir" else 1) if pattern else [])
            for stage, pattern in (("ttgir", ttgir), ("ptx", ptx), ("sass", sass))
        ]
        return f"| {' | '.join([*cells, f'`{cpp}`' if cpp else '–'])} |"

    mapping = [
        "| Triton | TTGIR | PTX | SASS | in CUDA C++ |",
        "|---|---|---|---|---|",
        row("tl.program_id(0)", "get_program_id", "ctaid", "CTAID", "blockIdx.x"),
        row("num_warps=4", r"num-warps", "reqntid", "", "blockDim.x"),
        row("tl.arange(0, 1024)", "make_range", r"and\.b32", "0x1fc", "4 * threadIdx.x"),
        row("tl.load(p + index)", r"tt\.load", loads[0], loads[1], "load_vector(p)", most=2),
        row(
            "tl.store(p + index, y)", r"tt\.store", stores[0], stores[1], "store_vector(p)", most=2
        ),
    ]
    # The module's line has more attributes than one wants to read.
    mapping[3] = re.sub(r"`module attributes.*?(\"ttg.num-warps\" = \d+).*?`", r"`\1`", mapping[3])
    table = [
        "| | registers | occupancy | limited by | instructions |",
        "|---|---|---|---|---|",
    ]
    for kernel in (cuda, triton):
        counts = ", ".join(f"{n} {name}" for name, n in kernel.resources.instructions)
        occupancy = kernel.occupancy
        table.append(
            f"| {kernel.language} | {kernel.resources.registers} | {100 * occupancy.share:.0f} % "
            f"| {', '.join(occupancy.limited_by)} | {counts} |"
        )
    names = r"get_program_id", r"make_range", r"tt\.splat .*f32", r"tt\.load"
    return {
        "versions": f"Compiled for sm_90 with {versions()}.",
        "resources": "\n".join(table),
        "ttir": code("mlir", lines(ir["ttir"], *names)),
        "ttgir": code("mlir", lines(ir["ttgir"], r"^#blocked = ", *names)),
        "llir": code(
            "llvm", lines(ir["llir"], "= .*ctaid", r"= .*tid\.x\(", r"= .*ld\.global\.v4")
        ),
        "ptx": code(
            "ptx", lines(ir["ptx"], r"^\.target", "reqntid", "ctaid", r"tid\.x", *loads[:1], most=2)
        ),
        "sass": code("", lines(ir["sass"], "CTAID", r"SR_TID", loads[1], stores[1], most=2)),
        "cuda-sass": code("", lines(cuda.stages["sass"], loads[1], stores[1], most=4)),
        "mapping": "\n".join(mapping),
        "copies": code("", lines(cuda_sass(COPYING), "LDGSTS", "LDGDEPBAR", r"DEPBAR\.LE")),
    }


COMPILE = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from diglot.tools.resources import read_compiled

specification = importlib.util.spec_from_file_location("product", sys.argv[1])
product = importlib.util.module_from_spec(specification)
specification.loader.exec_module(product)
types = dict.fromkeys(("a", "b", "c"), "*fp16") | {"SIZE": "constexpr"}
hints = {(i,): [["tt.divisibility", 16]] for i in range(3)}
source = ASTSource(product.product, types, {"SIZE": 64}, hints)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
told = {"ttgir": compiled.asm["ttgir"], "shared": compiled.metadata.shared}
print(json.dumps(told | {"sass": read_compiled(compiled).stages["sass"].decode()}))
"""


def of_product(page: str) -> dict[str, str]:
    """The excerpts of the page's own kernel."""
    (kernel,) = re.findall(r"```python\n(import triton\n.*?)```", page, re.DOTALL)
    environment = {n: v for n, v in os.environ.items() if not n.endswith("_INTERPRET")}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "product.py"
        source.write_text(kernel)
        command = [sys.executable, "-c", COMPILE, str(source)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    compiled = json.loads(done.stdout)
    allocations = r"local_alloc", r"dot"
    return {
        "product-ttgir": code("mlir", lines(compiled["ttgir"], *allocations, most=2)),
        "product-sass": code("", lines(compiled["sass"], "STS", r"BAR\.SYNC", "HGMMA")),
        "product-shared": f"`metadata.shared`: {compiled['shared']} bytes.",
    }


def fill(page: str, excerpts: dict[str, str]) -> str:
    """The page with these excerpts."""

    def put(block: re.Match[str]) -> str:
        name = block[2]
        return f"{block[1]}{excerpts[name]}\n{block[3]}" if name in excerpts else block[0]

    return BLOCK.sub(put, page)


def render() -> dict[Path, str]:
    """The page as the compilers at hand make it, by its path."""
    page = PAGE.read_text()
    return {PAGE: fill(page, of_gelu(inspect("gelu", stages=STAGES)) | of_product(page))}


def is_of_these_compilers() -> bool:
    """Whether the page's excerpts were made by the compilers at hand."""
    return versions() in PAGE.read_text()
