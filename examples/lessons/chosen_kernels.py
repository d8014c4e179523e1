"""What torch.compile chooses: one fused kernel for a formula, and the fastest of many products.

    python examples/lessons/chosen_kernels.py

By itself `torch.compile` fuses a formula into a Triton kernel, whose name in a profile lists its
operators. A product stays cuBLAS's. In the mode "max-autotune" it also generates Triton kernels for
products, measures them beside cuBLAS, and keeps the fastest. The name in the profile says which
won. How much that gains depends on the shape, and is measured here. Last comes a whole block: two
layers with a GELU between them. There a compiler that fuses formulas cannot finish a product of
cuBLAS in the same kernel. `diglot.mlp` has two kernels. Without a GPU the formula's operators are
listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fusion import formula
from lesson import DEVICE, ON_GPU, Row, Table, add_times, check_equal, show

# isort: split
import torch
import torch.nn.functional as F

import diglot

BLOCK = (8192, 1024, 4096)  # tokens, width, hidden
SHAPES = ((4096, 4096, 4096), (16, 8192, 8192), (2048, 1152, 1024))  # M, N, K
MODES = {"PyTorch": None, "default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def in_mode(function: Callable[..., torch.Tensor], mode: str | None) -> Callable[..., torch.Tensor]:
    """A function as it is, or compiled in a mode."""
    return function if mode is None else torch.compile(function, mode=mode, dynamic=False)


def block(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
    """Two layers of weights and biases, with a GELU between them."""
    weight1, bias1, weight2, bias2 = layers
    return F.linear(F.gelu(F.linear(x, weight1, bias1)), weight2, bias2)


def block_rows(tokens: int, width: int, hidden: int) -> list[Row]:
    """A row for each way to compute the block, in bfloat16."""
    shapes = (tokens, width), (hidden, width), (hidden,), (width, hidden), (width,)
    given = [torch.randn(s, device=DEVICE, dtype=torch.bfloat16) / s[-1] ** 0.5 for s in shapes]
    modes = MODES if ON_GPU else {"PyTorch": None}
    calls = {by: partial(in_mode(block, mode), *given) for by, mode in modes.items()}
    for language in ("cuda", "triton"):
        calls[f"diglot, {language}"] = partial(diglot.mlp, *given, backend=language)
    for call in calls.values():
        check_equal(call().float(), block(*given).float(), 2e-2)
    rows: list[Row] = [{"by": by, **row_of(call)} for by, call in calls.items()]
    add_times(rows, list(calls.values()))
    for row in rows:
        row["speed over PyTorch"] = row["µs"] and rows[0]["µs"] / row["µs"]
    return rows


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return a @ b


def kernels_of(call: Callable[[], object]) -> dict[str, int]:
    """The kernels that a call launches, without a GPU its operators; and how many of each."""
    done = diglot.profile_call(call, warmup=1, repeat=1, frames=False)
    counts: dict[str, int] = {}
    for of in done.kernels_by_op().values():
        for name, count in of.kernels.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def row_of(call: Callable[[], object]) -> Row:
    """How many kernels a call launches, and the name of the one that it launches most."""
    kernels = kernels_of(call)
    # cuBLAS may clear its counters before.
    name = max(kernels, key=lambda each: (not each.startswith("Memset"), kernels[each]))
    return {"kernels": sum(kernels.values()), "kernel": name[:60]}


def main() -> Iterator[Table]:
    """The formula; then on a GPU products of several shapes."""
    x = torch.randn(4096, 4096, device="cuda") if ON_GPU else torch.randn(128, 128)
    modes = dict(list(MODES.items())[: 2 if ON_GPU else 1])
    calls = [partial(in_mode(formula, mode), x) for mode in modes.values()]
    rows: list[Row] = [{"by": by, **row_of(call)} for by, call in zip(modes, calls, strict=True)]
    check_equal(calls[-1](), formula(x), 1e-5)
    add_times(rows, calls)
    yield Table(f"GELU's formula of {len(x)} x {len(x)} numbers", rows)
    for m, n, k in SHAPES if ON_GPU else ():
        a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
        calls = [partial(in_mode(product, mode), a, b) for mode in MODES.values()]
        for call in calls:
            check_equal(call().float() / k**0.5, product(a, b).float() / k**0.5, 1e-2)
        rows = [{"by": by, **row_of(call)} for by, call in zip(MODES, calls, strict=True)]
        add_times(rows, calls)
        for row in rows:
            row["speed over PyTorch"] = rows[0]["µs"] / row["µs"]
        torch.compiler.reset()
        yield Table(f"A product of {m} x {k} by {k} x {n}, bfloat16", rows)
    if ON_GPU:
        yield Table(f"Two layers with a GELU, {' x '.join(map(str, BLOCK))}", block_rows(*BLOCK))


if __name__ == "__main__":
    show(main)
