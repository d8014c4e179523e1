"""scaled_mm: forms of scales, fast and exact sums, bars."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

import diglot
from diglot.bench import products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    Row,
    Tensors,
    normal,
    speed_over_torch,
)
from diglot.reference.scaled_mm import BLOCK, expected_scaled_product, scaled
from diglot.reference.specs import Expected

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 8192), (128, 8192, 8192))
MATRIX, ROW, BLOCKS = "matrix", "row", "blocks"
K_MAJOR = "NT"  # A by rows, B by columns: what tensor cores read
OTHER_LAYOUTS = ("NN", "TN", "TT")
# Our other ways to the same result.
ONE_SCALE, FAST, OF_K_MAJOR = "one scale", "fast sums", "K-major"
TERMS = 32  # products that tensor cores add at once
SCALE = 0.5


def _inputs(case: Case) -> Tensors:
    """A (m, k) and B (k, n), each by rows or by columns."""
    m, n, k = case.shape
    a, b = (t.to(torch.float8_e4m3fn) for t in normal([(m, k), (n, k)], torch.float32))
    return products.laid_out(_layout(case), a, b.mT)


def _layout(case: Case) -> str:
    return str(case.options.get("layout", K_MAJOR))


def _form(case: Case) -> str:
    return str(case.options.get("scales", MATRIX))


def _is_fast(case: Case) -> bool:
    return bool(case.options.get("fast", True))


def _scales(case: Case, form: str, device: torch.device) -> Tensors:
    """Those of A and B. All are equal, so that each form has the same right result."""
    m, n, k = case.shape
    steps, columns = math.ceil(k / BLOCK), math.ceil(n / BLOCK)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        MATRIX: ((), ()),
        ROW: ((m, 1), (1, n)),
        BLOCKS: ((m, steps), (steps, columns)),
    }
    return tuple(torch.full(shape, SCALE, device=device) for shape in shapes[form])


def _operands(case: Case, tensors: Tensors) -> Tensors:
    return (*tensors, *_scales(case, _form(case), tensors[0].device))


def _expected(case: Case, tensors: Tensors) -> Expected:
    a, b = tensors
    scale = torch.full((), SCALE, device=a.device)
    sums = math.ceil(case.shape[-1] / TERMS)
    return expected_scaled_product(a, b, scale, scale, None, case.dtype, sums)


def _is_large(row: Row) -> bool:
    return tuple(row["shape"]) in SHAPES[:3]


def _has(name: str, value: Any, row: Row) -> bool:
    return _is_large(row) and "layout" not in row["options"] and row["options"].get(name) == value


benchmark = Benchmark(
    op="scaled_mm",
    cases=[
        *(Case("forward", torch.bfloat16, s, {"scales": MATRIX, "fast": True}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": ROW, "fast": True}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": MATRIX, "fast": False}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": BLOCKS, "fast": False}) for s in SHAPES),
        *(
            Case("forward", torch.bfloat16, shape, {"scales": MATRIX, "layout": layout})
            for shape in SHAPES[:2]
            for layout in OTHER_LAYOUTS
        ),
        Case("forward", torch.bfloat16, (64, 64, 64), {"scales": MATRIX}, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=products.bytes_moved,
    flops=products.flops,
    shape=products.square,
    operands=_operands,
    keywords=lambda case: {"out_dtype": case.dtype, "use_fast_accum": _is_fast(case)},
    takes=lambda case: products.is_product(case) and "layout" not in case.options,
    on_demand=products.ON_DEMAND,
    bars=[
        Bar(
            "speed over cuBLASLt, one scale",
            lambda row: _has("scales", MATRIX, row) and _has("fast", True, row),
            speed_over_torch,
            products.by_language(0.97, 0.92),
        ),
        Bar(
            "speed of scales of rows over one scale",
            functools.partial(_has, "scales", ROW),
            products.over(ONE_SCALE),
            products.by_language(0.97, 0.95),
        ),
        Bar(
            "speed of exact over fast sums, one scale",
            lambda row: _has("scales", MATRIX, row) and _has("fast", False, row),
            products.over(FAST),
            products.by_language(0.85, 0.80),
        ),
        Bar(
            "speed over own K-major operands, one scale",
            lambda row: "layout" in row["options"],
            products.over(OF_K_MAJOR),
            products.by_language(0.85, 0.80),
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": diglot.scaled_mm})


# The cases that differ from each way.
DIFFERS: dict[str, Callable[[Case], bool]] = {
    ONE_SCALE: lambda case: _form(case) == ROW,
    FAST: lambda case: _form(case) == MATRIX and not _is_fast(case),
    OF_K_MAJOR: lambda case: _layout(case) != K_MAJOR,
}


def _other_way(way: str, backend: str, case: Case, tensors: Tensors) -> Call | None:
    """The same product with one scale, fast sums and K-major operands, where the case has not."""
    if not DIFFERS[way](case):
        return None
    a, b = products.laid_out(K_MAJOR, *tensors)
    of_a, of_b = _scales(case, MATRIX, a.device)
    return lambda: diglot.scaled_mm(a, b, of_a, of_b, None, case.dtype, True, backend=backend)


for _way in DIFFERS:
    products.other_way(benchmark, _way, functools.partial(_other_way, _way))


@benchmark.provider("torch", torch._scaled_mm)
def _torch(case: Case, tensors: Tensors) -> Call | None:
    """PyTorch's op, of scales that all its versions take alike, and of K-major operands alone."""
    if _form(case) == BLOCKS or _layout(case) != K_MAJOR:
        return None
    (a, b), (of_a, of_b) = tensors, _scales(case, _form(case), tensors[0].device)
    options = None, None, case.dtype, _is_fast(case)  # no bias, and no scale of the result
    return lambda: torch._scaled_mm(a, b, of_a, of_b, *options)


def _formula(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """The definition in eager PyTorch, in float32."""
    return (scaled(a.float(), scale_a) @ scaled(b.float(), scale_b)).to(out_dtype)


benchmark.way("formula", {"forward": _formula})
