"""Tensor cores: which instruction `tl.dot` becomes, how exact it is, and how fast.

    python examples/lessons/dot_types.py

Nothing in the kernel asks for tensor cores: the types of the tiles decide. Products of float32 may
be TF32 (which ignores 13 bits of each operand), three products in TF32, or IEEE arithmetic, which
no tensor core has. The kernel is the smallest product of docs/tensor_cores.md. A second table asks
`diglot.matmul` for TF32 and for IEEE products, in both languages. Without a GPU all kernels are
interpreted, and the first one is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lesson import DEVICE, INTERPRETED, Row, Table, add_times, compiled, show

sys.path.append(str(Path(__file__).resolve().parent.parent / "tensor_cores"))

# isort: split
import torch
from forms_triton import FORMS, Call

import diglot

CASES = (
    ("float16", ""),
    ("bfloat16", ""),
    ("float32", "tf32"),
    ("float32", "tf32x3"),
    ("float32", "ieee"),
)
SIZE = 128 if INTERPRETED else 4096
LANGUAGES = ("cuda", "triton")


def call_of(
    dtype: str, precision: str, a: torch.Tensor, b: torch.Tensor
) -> tuple[Call, torch.Tensor]:
    """The launch of a product in a type, and where its result will be."""
    left, right = (matrix.to(getattr(torch, dtype)) for matrix in (a, b))
    c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=left.dtype)
    return FORMS["descriptors"](left, right, c, precision or "tf32"), c


def instructions() -> list[str]:
    """What each case multiplies by on sm_90: tensor cores' instruction, and how many."""
    from diglot.tools.resources import read_compiled

    a = torch.empty(4096, 4096)
    made = [call_of(*case, a, a)[0].compile() for case in CASES]
    products = [read_compiled(each).resources.products for each in made]
    return [" and ".join(f"{count} {name}" for name, count in of) or "none" for of in products]


def error_of(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str:
    """How far c is from a @ b, relative to its norm."""
    right = a.double() @ b.double()
    return f"{((c.double() - right).norm() / right.norm()).item():.0e}"


def ours(a: torch.Tensor, b: torch.Tensor) -> list[Row]:
    """A row for each language and precision of this package's product."""
    rows, calls = list[Row](), []
    for language in LANGUAGES:
        for precision in ("tf32", "ieee"):
            call = partial(diglot.matmul, a, b, precision=precision, backend=language)
            row: Row = {"language": language, "precision": precision}
            row["relative error"] = error_of(call(), a, b)
            run = diglot.last_run()
            rows.append({**row, "plan": run and run.variant})
            calls.append(call)
    return with_speed(rows, calls)


def with_speed(rows: list[Row], calls: Sequence[Callable[[], object]]) -> list[Row]:
    add_times(rows, calls)
    for row in rows:
        row["TFLOP/s"] = row["µs"] and 2e-6 * SIZE**3 / row["µs"]
    return rows


def main() -> Iterator[Table]:
    """A row for each type and precision."""
    a, b = torch.randn(2, SIZE, SIZE, device=DEVICE)
    rows, calls = list[Row](), []
    for case, instruction in zip(CASES, compiled(instructions), strict=True):
        call, c = call_of(*case, a, b)
        call.run()
        rows.append({"type": " ".join(filter(None, case)), "tensor cores by": instruction,
                     "relative error": error_of(c, a.to(c.dtype), b.to(c.dtype))})  # fmt: skip
        calls.append(call.run)
    yield Table(f"Products of {SIZE} x {SIZE} matrices by `tl.dot`", with_speed(rows, calls))
    yield Table(f"Of float32, by `diglot.matmul(precision=...)`, {SIZE} x {SIZE}", ours(a, b))


if __name__ == "__main__":
    show(main)
