"""matmul: cases, providers, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
import torch.nn.functional as F

import diglot
from diglot.bench import products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    Function,
    Row,
    Tensors,
    normal,
    speed_over_torch,
)
from diglot.bench.running import dtype_name
from diglot.reference.matmul import expected_product
from diglot.reference.specs import Expected
from diglot.tools.ceiling_runs import float32_products

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
LAYOUTS = ("NN", "NT", "TN", "TT")
K_MAJOR = "NT"  # A by rows, B by columns
LARGE = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (16384, 6656, 16384),
    (4096, 1792, 4096),
)
SQUARES = LARGE[:2]
WEIGHTS = (8192, 8192)
FEW_ROWS = {16: (1.20, 1.10), 64: (1.10, 1.00), 128: (1.05, 0.97)}  # the bounds
MANY_ROWS = (512, 1024, 2048)  # of batch_invariant
ODD_K = (((4096, 4096, 4095), "NN"), ((4096, 4096, 4095), "NT"), ((8192, 8192, 8191), "NT"))
ODD_LINES = ((LARGE[0], "NN"), (LARGE[0], "NT"), (LARGE[1], "NT"))
TF32 = "TF32"
CUT = 2.0**-10  # what TF32 loses of an operand, at most
# Our other ways to the same result.
ALIGNED, OF_K_MAJOR, INVARIANT = "aligned", "K-major", "batch invariant"


def _inputs(case: Case) -> Tensors:
    """A (m, k) and B (k, n), each by rows or by columns, with a gap of one between odd lines."""
    m, n, k = case.shape
    gap, columns = int("lines" in case.options), [of == "T" for of in case.options["layout"]]
    shapes = (k, m) if columns[0] else (m, k), (n, k) if columns[1] else (k, n)
    lines = normal([(count, length + gap) for count, length in shapes], case.dtype)
    matrices = [of[:, : of.shape[1] - gap] for of in lines]
    return tuple(t.mT if by_columns else t for t, by_columns in zip(matrices, columns, strict=True))


def _is_tf32(case: Case) -> bool:
    return case.options.get("precision") == TF32


def _expected(case: Case, tensors: Tensors) -> Expected:
    """The product. In TF32, each product of a sum loses as much as its two operands."""
    a, b = tensors
    exact = expected_product(a, b, None, case.dtype)
    if not _is_tf32(case):
        return exact
    assert exact.allowance is not None
    magnitude = exact.allowance / ((case.shape[-1] + 1) * torch.finfo(FP32).eps)
    return replace(exact, allowance=exact.allowance + 2 * CUT * (1 + CUT) * magnitude)


def _setting(case: Case) -> AbstractContextManager[None]:
    return float32_products("tf32" if _is_tf32(case) else "ieee")


def _is_odd(row: Row) -> bool:
    return row["shape"][-1] % 2 == 1 or "lines" in row["options"]


def _is_plain(row: Row) -> bool:
    return row["timer"] == "device" and row["dtype"] == "bfloat16" and not _is_odd(row)


def _is_large(row: Row) -> bool:
    return _is_plain(row) and tuple(row["shape"]) in LARGE


def _few_rows(row: Row) -> tuple[float, float] | None:
    m, *others = row["shape"]
    return FEW_ROWS.get(m) if tuple(others) == WEIGHTS else None


def _is_of(row: Row, dtype: str) -> bool:
    return row["timer"] == "device" and row["dtype"] == dtype and "precision" not in row["options"]


def _has_layout(row: Row, precision: str | None, is_k_major: bool) -> bool:
    options = row["options"]
    return options.get("precision") == precision and (options["layout"] == K_MAJOR) == is_k_major


def _is_invariant(dtype: str, shape: Sequence[int], options: Mapping[str, str]) -> bool:
    """Whether a case is computed by `batch_invariant` too."""
    m, *others = shape
    are_many = tuple(shape) == LARGE[0] or (m in MANY_ROWS and tuple(others) == WEIGHTS)
    return dtype == "bfloat16" and are_many and options == {"layout": K_MAJOR}


def _cases() -> list[Case]:
    def case(dtype: torch.dtype, shape: tuple[int, ...], layout: str, **options: str) -> Case:
        return Case("forward", dtype, shape, {"layout": layout, **options})

    return [
        *(case(BF16, shape, layout) for shape in LARGE for layout in LAYOUTS),
        *(case(BF16, (m, *WEIGHTS), K_MAJOR) for m in (*FEW_ROWS, *MANY_ROWS)),
        *(case(BF16, shape, layout) for shape, layout in ODD_K),
        *(case(BF16, shape, layout, lines="odd lines") for shape, layout in ODD_LINES),
        *(case(FP32, shape, of, precision=TF32) for shape in SQUARES for of in LAYOUTS),
        *(case(FP32, LARGE[0], layout) for layout in ("NN", K_MAJOR)),
        case(FP64, LARGE[0], "NN"),
        Case("forward", FP32, (64, 64, 64), {"layout": "NN"}, timer="host"),
    ]


benchmark = Benchmark(
    op="matmul",
    cases=_cases(),
    inputs=_inputs,
    expected=_expected,
    bytes_moved=products.bytes_moved,
    flops=products.flops,
    shape=products.square,
    keywords=lambda case: {},
    setting=_setting,
    on_demand=products.ON_DEMAND,
    takes=lambda case: products.is_product(case) and case.options.keys() <= {"layout"},
    bars=[
        Bar(
            "speed over cuBLAS, large",
            _is_large,
            speed_over_torch,
            products.by_language(0.97, 0.95),
            mean=products.by_language(1.03, 1.00),
        ),
        Bar(
            "speed over the faster of cuBLAS and QuACK, large",
            _is_large,
            products.speed_over_libraries,
            products.by_language(0.97, 0.95),
            mean=products.by_language(1.00, 1.00),
        ),
        Bar(
            "speed over cuBLAS, few rows",
            lambda row: _few_rows(row) is not None,
            speed_over_torch,
            lambda row: products.by_language(*(_few_rows(row) or ()))(row),
        ),
        Bar(
            "speed over cuBLAS, K or a leading dimension odd",
            _is_odd,
            speed_over_torch,
            products.by_language(0.85, 0.80),
        ),
        Bar(
            "speed over own aligned operands, K or a leading dimension odd",
            _is_odd,
            products.over(ALIGNED),
            products.by_language(0.70, 0.65),
        ),
        Bar(
            "speed over cuBLAS, TF32",
            lambda row: _has_layout(row, TF32, is_k_major=True),
            speed_over_torch,
            products.by_language(0.97, 0.92),
        ),
        Bar(
            "speed over own K-major operands, TF32",
            lambda row: _has_layout(row, TF32, is_k_major=False),
            products.over(OF_K_MAJOR),
            products.by_language(0.85, 0.80),
        ),
        Bar(
            "speed over cuBLAS, float32 (IEEE)",
            lambda row: _is_of(row, "float32"),
            speed_over_torch,
            products.by_language(0.85, 0.75),
        ),
        Bar(
            "speed over cuBLAS, float64",
            lambda row: _is_of(row, "float64"),
            speed_over_torch,
            products.by_language(0.5, 0.4),
        ),
        Bar(
            "speed of batch_invariant over the default, 512 rows or more",
            lambda row: _is_invariant(row["dtype"], row["shape"], row["options"]),
            products.of_way(INVARIANT),
            products.by_language(0.85, 0.85),
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours({"forward": diglot.matmul})


def _aligned(backend: str, case: Case, tensors: Tensors) -> Call | None:
    """Lines that begin at multiples of 16 bytes: behind an odd K are zeros."""
    more = -case.shape[-1] % 8
    if not (more or "lines" in case.options):
        return None
    a, b = F.pad(tensors[0], (0, more)), F.pad(tensors[1], (0, 0, 0, more))
    a, b = products.laid_out(case.options["layout"], a, b)
    return lambda: diglot.matmul(a, b, backend=backend)


def _k_major(backend: str, case: Case, tensors: Tensors) -> Call | None:
    if not _is_tf32(case) or case.options["layout"] == K_MAJOR:
        return None
    a, b = products.laid_out(K_MAJOR, *tensors)
    return lambda: diglot.matmul(a, b, backend=backend)


def _invariant(backend: str, case: Case, tensors: Tensors) -> Call | None:
    if not _is_invariant(dtype_name(case.dtype), case.shape, case.options):
        return None
    return lambda: diglot.matmul(*tensors, batch_invariant=True, backend=backend)


for _way, _make in ((ALIGNED, _aligned), (OF_K_MAJOR, _k_major), (INVARIANT, _invariant)):
    products.other_way(benchmark, _way, _make)

FUNCTIONS: dict[str, Function] = {"forward": torch.matmul}
benchmark.way("torch", FUNCTIONS, code=[torch.matmul])


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What `torch.compile` compiles."""
    return a @ b


benchmark.compiled({"forward": _product})
benchmark.way("formula", {"forward": _product})
products.quack(
    benchmark,
    lambda case: case.dtype == BF16 and case.shape in LARGE and "lines" not in case.options,
)
