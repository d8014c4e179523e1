"""Programmatic dependent launch (PDL): a kernel's blocks start while the kernel before still ends.

    python examples/lessons/pdl.py

Kernels of a stream follow each other: the GPU drains, then fills again. From compute capability 9.0
on, a kernel that is launched so may start early. It does what needs no result of the kernel before,
here reading its weights, and then waits for that kernel (`griddepcontrol.wait`). By
`griddepcontrol.launch_dependents` a kernel says that the next may come. A chain of small kernels
should gain the most; it is timed in a CUDA graph, so that the host does not count. Without a GPU
one sees the instructions in both languages' code and runs the chain; the interpreters know no early
start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from lesson import DEVICE, INTERPRETED, Row, Table, call, check_equal, compiled, cuda_listing, show

# isort: split
import torch
import triton
import triton.language as tl

SIZE, KERNELS, BLOCK = (1000, 4, 256) if INTERPRETED else (1 << 16, 16, 256)


@triton.jit
def scale_kernel(n, source, weight, out, PDL: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    added = tl.load(weight + i, i < n)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tl.store(out + i, 2 * tl.load(source + i, i < n) + added, i < n)


def chain(language: str, uses_pdl: bool, weight: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """The result of KERNELS kernels after each other."""
    buffers, n = [a * 1, torch.empty_like(a)], a.numel()  # a kernel, unlike `clone`
    if language == "cuda":
        call("pdl", "chain", int(uses_pdl), KERNELS, n, weight, *buffers)
        return buffers[KERNELS % 2]
    options = {"launch_pdl": True} if uses_pdl else {}
    for _ in range(KERNELS):
        scale_kernel[(triton.cdiv(n, BLOCK),)](
            n, *[buffers[0], weight, buffers[1]], uses_pdl, BLOCK, num_warps=8, **options
        )
        buffers.reverse()
    return buffers[0]


def triton_instructions() -> list[str]:
    """The instructions of PDL in the Triton kernel's PTX."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict.fromkeys(("source", "weight", "out"), "*fp32")
    types = {"n": "i32", **types, "PDL": "constexpr", "BLOCK": "constexpr"}
    source = ASTSource(scale_kernel, types, {"PDL": True, "BLOCK": BLOCK})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    return [line.split(";")[0].strip() for line in ptx.splitlines() if "griddepcontrol" in line]


def cuda_instructions() -> list[str]:
    """The instructions of PDL in the CUDA kernel's machine code."""
    return re.findall(r"\b(?:PREEXIT|ACQBULK)\b", cuda_listing("pdl").get("scale_kernel", ""))


def main() -> Iterator[Table]:
    """The instructions, then a row for each chain."""
    yield Table(
        "Compiled for sm_90",
        [
            {"language": "CUDA C++ (SASS)", "instructions": ", ".join(cuda_instructions())},
            {"language": "Triton (PTX)", "instructions": ", ".join(compiled(triton_instructions))},
        ],
    )
    a, weight = torch.randn(2, SIZE, device=DEVICE)
    expected = a
    for _ in range(KERNELS):
        expected = 2 * expected + weight
    rows, calls = list[Row](), {}
    for language in ("cuda", "triton"):
        for uses_pdl in (False,) if INTERPRETED else (False, True):
            run = partial(chain, language, uses_pdl, weight, a)
            check_equal(run(), expected)
            rows.append({"language": language, "PDL": "yes" if uses_pdl else "no"})
            calls[f"{language} {uses_pdl}"] = run
    if not INTERPRETED:
        from diglot.tools import measure

        for row, timing in zip(rows, measure.graphed(calls).values(), strict=True):
            row["µs a kernel"] = timing.median_us / (KERNELS + 1)  # and that of `a * 1`
    yield Table(f"A chain of {KERNELS} kernels over {SIZE} numbers, in a CUDA graph", rows)


if __name__ == "__main__":
    show(main)
