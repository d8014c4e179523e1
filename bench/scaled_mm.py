"""scaled_mm: forms of scales, fast and exact sums, bars."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

import diglot
from diglot.bench import harness, products
from diglot.bench.harness import OURS, Bar, Benchmark, Call, Case, Row, Rows, Tensors, normal
from diglot.reference.scaled_mm import BLOCK, expected_scaled_product, scaled
from diglot.reference.specs import Expected

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 8192), (128, 8192, 8192))
MATRIX, ROW, BLOCKS = "matrix", "row", "blocks"
ONE_SCALE, FAST = "one scale", "fast sums"  # our other ways to the same result
TERMS = 32  # products that tensor cores add at once
SCALE = 0.5


def _inputs(case: Case) -> Tensors:
    """A (m, k), and B (k, n) with contiguous columns."""
    m, n, k = case.shape
    a, b = (t.to(torch.float8_e4m3fn) for t in normal([(m, k), (n, k)], torch.float32))
    return a, b.mT


def _form(case: Case) -> str:
    return str(case.options.get("scales", MATRIX))


def _is_fast(case: Case) -> bool:
    return bool(case.options.get("fast", True))


def _scales(case: Case, form: str) -> Tensors:
    """Those of A and B. All are equal, so that each form has the same right result."""
    m, n, k = case.shape
    steps, columns = math.ceil(k / BLOCK), math.ceil(n / BLOCK)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        MATRIX: ((), ()),
        ROW: ((m, 1), (1, n)),
        BLOCKS: ((m, steps), (steps, columns)),
    }
    return tuple(torch.full(shape, SCALE, device=harness.DEVICE) for shape in shapes[form])


def _operands(case: Case, tensors: Tensors) -> Tensors:
    return (*tensors, *_scales(case, _form(case)))


def _expected(case: Case, tensors: Tensors) -> Expected:
    a, b = tensors
    scale = torch.full((), SCALE, device=a.device)
    sums = math.ceil(case.shape[-1] / TERMS)
    return expected_scaled_product(a, b, scale, scale, None, case.dtype, sums)


def _is_large(row: Row) -> bool:
    return tuple(row["shape"]) in SHAPES[:3]


def _beside(way: str, row: Row, rows: Rows) -> float:
    """Speed as a multiple of that of another way of the same language."""
    return float(rows[f"{row['provider']}, {way}"]["time_us"] / row["time_us"])


def _has(name: str, value: Any, row: Row) -> bool:
    return _is_large(row) and row["options"].get(name) == value


def _by_language(cuda: float, triton: float) -> Any:
    return lambda row: cuda if row["provider"] == "cuda" else triton


benchmark = Benchmark(
    op="scaled_mm",
    cases=[
        *(Case("forward", torch.bfloat16, s, {"scales": MATRIX, "fast": True}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": ROW, "fast": True}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": MATRIX, "fast": False}) for s in SHAPES),
        *(Case("forward", torch.bfloat16, s, {"scales": BLOCKS, "fast": False}) for s in SHAPES),
        Case("forward", torch.bfloat16, (64, 64, 64), {"scales": MATRIX}, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=products.bytes_moved,
    flops=products.flops,
    shape=products.square,
    operands=_operands,
    keywords=lambda case: {"out_dtype": case.dtype, "use_fast_accum": _is_fast(case)},
    takes=products.is_product,
    bars=[
        Bar(
            "speed over cuBLASLt, one scale",
            lambda row: _has("scales", MATRIX, row) and _has("fast", True, row),
            products.speed_over_torch,
            _by_language(0.97, 0.92),
        ),
        Bar(
            "speed of scales of rows over one scale",
            functools.partial(_has, "scales", ROW),
            functools.partial(_beside, ONE_SCALE),
            _by_language(0.97, 0.95),
        ),
        Bar(
            "speed of exact over fast sums, one scale",
            lambda row: _has("scales", MATRIX, row) and _has("fast", False, row),
            functools.partial(_beside, FAST),
            _by_language(0.85, 0.80),
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": diglot.scaled_mm})


def _other_way(backend: str, way: str, case: Case, tensors: Tensors) -> Call | None:
    """The same product with one scale, or with fast sums, where the case has neither."""
    if way == ONE_SCALE and _form(case) != ROW:
        return None
    if way == FAST and (_is_fast(case) or _form(case) != MATRIX):
        return None
    (a, b), (of_a, of_b) = tensors, _scales(case, MATRIX)
    return lambda: diglot.scaled_mm(a, b, of_a, of_b, None, case.dtype, True, backend=backend)


for _backend in OURS:
    for _way in (ONE_SCALE, FAST):
        benchmark.provider(f"{_backend}, {_way}", diglot.scaled_mm)(
            functools.partial(_other_way, _backend, _way)
        )


@benchmark.provider("torch", torch._scaled_mm)
def _torch(case: Case, tensors: Tensors) -> Call | None:
    """PyTorch's op, of scales that all its versions take alike."""
    if _form(case) == BLOCKS:
        return None
    (a, b), (of_a, of_b) = tensors, _scales(case, _form(case))
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
