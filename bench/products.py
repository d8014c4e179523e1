"""What the benchmarks of products share: bytes, operations, layouts, speed beside other ways.

A case's shape is (M, N, K). PyTorch's product is cuBLAS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

import diglot
from diglot.backends.choosing import use_plans
from diglot.bench.harness import (
    OURS,
    Bar,
    Benchmark,
    Call,
    Case,
    Function,
    Row,
    Rows,
    Tensors,
    host_bar,
    normal,
)
from diglot.reference.specs import find_spec, nbytes
from diglot.tools import measure

# A product that is compiled or written out is PyTorch's product again. A ranking asks for them.
ON_DEMAND = ("torch.compile", "formula")


def bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, and the product once."""
    m, n, _ = case.shape
    return sum(map(nbytes, tensors)) + m * n * case.dtype.itemsize


def flops(case: Case, tensors: Tensors) -> int:
    """A multiplication and an addition for each term of a sum."""
    m, n, k = case.shape
    return 2 * m * n * k * int(case.options.get("batch", 1))


def square(elements: int) -> tuple[int, int, int]:
    """Square matrices of at most this number of elements. Sides are powers of two."""
    side = 1 << (max(1, elements).bit_length() - 1) // 2
    return side, side, side


def is_product(case: Case) -> bool:
    """Whether a case's shape has three sizes."""
    return len(case.shape) == 3


def laid_out(layout: str, *matrices: torch.Tensor) -> Tensors:
    """The same values, each by rows (N) or by columns (T), as BLAS names layouts."""
    pairs = zip(layout, matrices, strict=True)
    return tuple(t.mT.contiguous().mT if of == "T" else t.contiguous() for of, t in pairs)


# --- bars ----------------------------------------------------------------------------------------


def by_language(cuda: float, triton: float) -> Callable[[Row], float]:
    """A bound of each language."""
    bounds = {"cuda": cuda, "triton": triton}
    return lambda row: bounds[row["provider"]]


def over(way: str) -> Callable[[Row, Rows], float]:
    """Speed as a multiple of that of another way of the same language."""
    return lambda row, rows: rows[f"{row['provider']}, {way}"]["time_us"] / row["time_us"]


def of_way(way: str) -> Callable[[Row, Rows], float]:
    """Speed of another way of the same language as a multiple of the row's."""
    return lambda row, rows: row["time_us"] / rows[f"{row['provider']}, {way}"]["time_us"]


def speed_over_libraries(row: Row, rows: Rows) -> float:
    """Speed as a multiple of that of the faster library: cuBLAS, and QuACK where it is there."""
    times = [rows[of]["time_us"] for of in ("torch", "quack") if "time_us" in rows.get(of, {})]
    return min(times) / row["time_us"]


# No case is recorded by autograd yet, so the second bounds are not used.
HOST_BAR: Bar = host_bar(cuda=(6, 6), triton=(20, 20))


# --- providers -----------------------------------------------------------------------------------


def other_way(
    benchmark: Benchmark, way: str, make: Callable[[str, Case, Tensors], Call | None]
) -> None:
    """Adds another way of ours to compare with, in both languages, such as "cuda, aligned".

    Args:
        make: from the backend, a case and its tensors to the call, or None.
    """
    for backend in OURS:
        benchmark.provider(f"{backend}, {way}", make)(functools.partial(make, backend))


def quack(
    benchmark: Benchmark,
    takes: Callable[[Case], bool],
    operands: Callable[[Case, Tensors], tuple[Any, ...]] | None = None,
) -> None:
    """Adds QuACK's product. Its tuner would compile dozens of kernels for each case."""
    add = benchmark.peer("quack", "quack.gemm_interface", takes=takes, operands=operands)
    add(lambda library: {"forward": functools.partial(library.gemm, tuned=False)})
    benchmark.how["quack"] = "not tuned: QuACK's default configuration"


def with_plans(numbers: Mapping[str, int], call: Call) -> Call:
    """A call whose plans have these numbers.

    Plans belong to the process. So the call is captured in a CUDA graph; without a GPU, each call
    is planned again.
    """
    if not torch.cuda.is_available():

        def planned() -> Any:
            with use_plans(numbers):
                return call()

        return planned
    results: list[Any] = []

    def keep() -> None:
        results[:] = [call()]

    with use_plans(numbers):
        replay = measure.captured(keep)

    def replayed(_: Call = call) -> Any:  # the graph reads the operands of the call
        replay()
        return results[0]

    return replayed


def around(
    op: str,
    torch_function: Function,
    formula: Function,
    shapes: Callable[..., list[tuple[int, ...]]],
    side: int,
    batch: int | None,
) -> Benchmark:
    """The declaration of an op that is a product with something around it.

    Args:
        torch_function: PyTorch's own.
        formula: the definition, a kernel for each operation in eager PyTorch.
        shapes: of tensors, from M, N, K and the products of a batch.
        side: of the matrices of its case on the device.
        batch: how many there are; None: the op takes no batch.
    """
    spec = find_spec(op)
    options: list[dict[str, int]] = [{}, {}] if batch is None else [{"batch": batch}, {"batch": 1}]
    made = Benchmark(
        op=op,
        cases=[
            Case("forward", torch.bfloat16, (side, side, side), options[0]),
            Case("forward", torch.float32, (64, 64, 64), options[1], timer="host"),
        ],
        inputs=lambda case: normal(shapes(*case.shape, case.options.get("batch", 1)), case.dtype),
        expected=lambda case, tensors: spec.forward(*tensors),
        bytes_moved=lambda case, tensors: sum(map(nbytes, tensors)) + nbytes(tensors[0]),
        flops=flops,
        shape=square,
        keywords=lambda case: {},
        takes=is_product,
        on_demand=ON_DEMAND,
        bars=[HOST_BAR],
    )
    made.ours({"forward": getattr(diglot, op)})
    made.way("torch", {"forward": torch_function}, code=[torch_function])
    made.compiled({"forward": formula})
    made.way("formula", {"forward": formula})
    return made
