"""Small calls of every kernel variant: what compute-sanitizer watches.

compute-sanitizer --tool memcheck python tests/exercise.py cuda maps sums
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

import diglot

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
ALL_DTYPES = (*DTYPES, torch.float16)


def maps(backend: str) -> None:
    """Sizes and offsets such that whole blocks, heads, tails and masks all occur."""
    for dtype in DTYPES:
        for size in (1, 7, 4099, (1 << 17) + 5, (1 << 21) + 3):
            buffer = torch.randn(size + 3, device="cuda").to(dtype)
            for x in (buffer[:size], buffer[3:], buffer[::3]):
                x = x.detach().requires_grad_()
                y = diglot.gelu(x, "tanh", backend=backend)
                z = diglot.add(y, x, alpha=2, backend=backend)
                z = diglot.dropout(z, 0.1, backend=backend)
                diglot.gaussian_pdf(x, 0.5, 2.0, terms=5, backend=backend).sum().backward()
                # The gradient of a sum, one element for all, comes to this one and to dropout.
                z = diglot.add(z, diglot.dropout(x, 0.1, backend=backend), alpha=2, backend=backend)
                diglot.add(z, 2.5, backend=backend).sum().backward()
    whole = torch.randint(0, 100, (999,), device="cuda")
    diglot.add(whole, whole[:1].to(torch.int8), backend=backend)


def clips(backend: str) -> None:
    """Heads, whole chunks and tails, of several tensors; every norm."""
    for norm_type in (1, 2, float("inf")):
        for dtype in DTYPES:
            parameters = []
            for size, offset in ((1, 0), (7, 1), (100_003, 3), (300_000, 0)):
                parameter = torch.zeros(size, device="cuda", dtype=dtype)
                parameter.grad = torch.randn(size + offset, device="cuda").to(dtype)[offset:]
                parameters.append(parameter)
            diglot.clip_grad_norm_(parameters, 0.5, norm_type, backend=backend)


def sums(backend: str) -> None:
    """The same for broadcast operands and the sums of their gradients."""
    for dtype in DTYPES:
        for rows, columns in ((3, 5), (1000, 64), (65, 4099), (4099, 65), (70000, 3)):
            wide = torch.randn(rows, columns + 1, device="cuda").to(dtype)
            for x in (wide, wide[:, 1:], wide.T):
                for shape in (x.shape[1:], (x.shape[0], 1), ()):
                    row = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
                    diglot.add(x, row, backend=backend).sum().backward()


def barriers(backend: str) -> None:
    """Blocks that wait for each other, a few and as many as there are multiprocessors."""
    for blocks in (1, 3, None):
        assert not diglot.grid_barrier_check(5, blocks, backend=backend).mismatches.any()


# Every number of accesses, cut short or not.
WHOLE = (1, 4099, 1 << 17, (1 << 19) + 5, (1 << 21) + 3, 1 << 23)


# Of float64, and long enough that blocks have several tiles.
PARKED = 1_200_003


def whole(backend: str, sizes: tuple[int, ...]) -> None:
    """Ops that reduce whole arrays, aligned or not."""
    for dtype in DTYPES:
        for size in (*sizes, PARKED) if dtype == torch.float64 else sizes:
            buffer = torch.randn(size + 3, device="cuda").to(dtype)
            for x in (buffer[:size], buffer[3:]):
                x = x.detach().requires_grad_()
                diglot.global_softmax(x, backend=backend).sum().backward()
                diglot.standardize(x, backend=backend).sum().backward()


def rows(backend: str, dtypes: Sequence[torch.dtype] = ALL_DTYPES) -> None:
    """Rows of every length, in lanes, blocks and clusters, as columns, and element by element."""
    for dtype in dtypes:
        for shape, dim in (
            ((5, 7), 1),
            ((300, 128), 1),
            ((70, 1000), 1),
            ((33, 4099), 1),
            ((9, 8192), 1),
            ((7, 40_000), 1),
            ((3, 300_000), 1),
            ((3, 300_001), 1),
            ((70, 96), 0),
            ((5, 19, 33), 1),
            ((9000, 72), 0),
            ((20_000, 37), 0),
        ):
            x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
            for function in (diglot.softmax, diglot.log_softmax):
                function(x, dim, backend=backend).sum().backward()
                function(x[..., 1:], dim, backend=backend)
            if dtype in (torch.bfloat16, torch.float16):
                diglot.softmax(x, dim, torch.float32, backend=backend).sum().backward()


def norms(backend: str, dtypes: Sequence[torch.dtype] = ALL_DTYPES) -> None:
    """Rows of every length, with parameters and without, of the input and of a sum."""
    for dtype in dtypes:
        for shape in ((5, 7), (700, 128), (70, 1000), (33, 4099), (300, 8192), (7, 40_000),
                      (3, 300_000), (3, 300_001)):  # fmt: skip
            x, residual = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
            x, n = x.requires_grad_(), shape[-1]
            weight, bias = (torch.randn(n, device="cuda").to(dtype) for _ in range(2))
            weight, bias = weight.requires_grad_(), bias.requires_grad_()
            diglot.layer_norm(x, n, weight, bias, backend=backend).sum().backward()
            diglot.rms_norm(x, n, weight, backend=backend).sum().backward()
            for out, total in (
                diglot.add_layer_norm(x, residual, n, weight, bias, backend=backend),
                diglot.add_rms_norm(x, residual, n, weight, backend=backend),
            ):
                (out + total).sum().backward()
            diglot.layer_norm(x[..., 1:], n - 1, backend=backend).sum().backward()
            if dtype in (torch.bfloat16, torch.float16):
                wide = weight.detach().float().requires_grad_()
                diglot.rms_norm(x, n, wide, backend=backend).sum().backward()


PARTS = {
    "maps": maps,
    "rows": rows,
    "norms": norms,
    "sums": sums,
    "clips": clips,
    "whole": lambda backend: whole(backend, WHOLE),
    "small": lambda backend: whole(backend, WHOLE[:4]),
    "barriers": barriers,
    # The longest, by types: each of Triton's kernels is a module, which a tool takes its time for.
    **{
        f"{part.__name__}-{dtype}".replace("torch.", ""): functools.partial(part, dtypes=(dtype,))
        for part in (rows, norms)
        for dtype in ALL_DTYPES
    },
}


def exercise(backend: str, *parts: str) -> list[str]:
    """Runs some parts; returns the names of the launchers and variants that ran."""
    with diglot.record_runs() as runs:
        for part in parts:
            PARTS[part](backend)
    torch.cuda.synchronize()
    return sorted({f"{run.launcher}: {run.variant}" for run in runs})


@triton.jit
def add_planted(pointer):
    tl.store(pointer + 1024, 1.0)


def plant() -> None:
    """A write beyond the end of a tensor, to see that it would be found."""
    add_planted[(1,)](torch.empty(1024, device="cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    backend, *parts = sys.argv[1:]
    if parts == ["planted"]:
        plant()
    else:
        print("\n".join(exercise(backend, *parts)))
