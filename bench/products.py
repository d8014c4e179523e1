"""What the benchmarks of products share: bytes, operations, sizes, speed beside cuBLAS.

A case's shape is (M, N, K). PyTorch's product is cuBLAS.
"""

from __future__ import annotations

from diglot.bench.harness import Bar, Case, Row, Rows, Tensors, host_bar
from diglot.reference.specs import nbytes


def bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, and the product once."""
    m, n, _ = case.shape
    return sum(map(nbytes, tensors)) + m * n * case.dtype.itemsize


def flops(case: Case, tensors: Tensors) -> int:
    """A multiplication and an addition for each term of a sum."""
    m, n, k = case.shape
    return 2 * m * n * k


def square(elements: int) -> tuple[int, int, int]:
    """Square matrices of at most so many elements, with sides that are powers of two."""
    side = 1 << (max(1, elements).bit_length() - 1) // 2
    return side, side, side


def is_product(case: Case) -> bool:
    """Whether a case's shape has three sizes."""
    return len(case.shape) == 3


def speed_over_torch(row: Row, rows: Rows) -> float:
    """Speed as a multiple of PyTorch's, for the same operands."""
    return float(rows["torch"]["time_us"] / row["time_us"])


# No case is recorded by autograd yet, so the second bounds are not used.
HOST_BAR: Bar = host_bar(cuda=(6, 6), triton=(20, 20))
