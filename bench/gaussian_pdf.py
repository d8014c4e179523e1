"""gaussian_pdf: cases, providers, bars."""

from __future__ import annotations

from collections.abc import Callable

import torch

import diglot
from bench.harness import Bar, Benchmark, Call, Case, Tensors
from diglot.reference.gaussian_pdf import SPEC, gaussian_pdf_backward, gaussian_pdf_forward
from diglot.tools.specs import Expected, nbytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BIG, SMALL = (8192, 8192), (4096,)
OPTIONS = {"terms": 22}
# What a copy to or from the host moves in a second over PCIe of the fifth generation. The kernel is
# to work through an array at twice that, for copies to hide it.
HOST_COPY_TB_PER_S = 0.05


def _inputs(case: Case) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(0)
    count = 2 if case.direction == "backward" else 1
    return tuple(
        torch.randn(case.shape, generator=generator, device="cuda").to(case.dtype)
        for _ in range(count)
    )


def _expected(case: Case, tensors: Tensors) -> Expected:
    if case.direction == "backward":
        return SPEC.backward(*tensors, **case.options)["input"]
    return SPEC.forward(*tensors, **case.options)


benchmark = Benchmark(
    op="gaussian_pdf",
    cases=[
        *(
            Case(direction, dtype, BIG, OPTIONS)
            for direction in ("forward", "backward")
            for dtype in DTYPES
        ),
        Case("forward", torch.float32, SMALL, OPTIONS, timer="graph"),
        Case("forward", torch.float32, SMALL, OPTIONS, timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=lambda case, tensors: sum(map(nbytes, tensors)) + nbytes(tensors[0]),
    bars=[
        Bar(
            "TB/s of the input",
            lambda row: row["timer"] == "device" and row["direction"] == "forward",
            lambda row, _: row["tb_per_s"] / 2,
            lambda row: 2 * HOST_COPY_TB_PER_S,
        ),
    ],
)


def _ours(backend: str, case: Case, tensors: Tensors) -> Call:
    if case.direction == "backward":
        backward = torch.ops.diglot.gaussian_pdf_backward
        return lambda: backward(*tensors, 0.0, 1.0, case.options["terms"], backend)
    (x,) = tensors
    return lambda: diglot.gaussian_pdf(x, **case.options, backend=backend)


@benchmark.provider("cuda")
def cuda(case: Case, tensors: Tensors) -> Call:
    return _ours("cuda", case, tensors)


@benchmark.provider("triton")
def triton(case: Case, tensors: Tensors) -> Call:
    return _ours("triton", case, tensors)


@benchmark.provider("torch")
def eager(case: Case, tensors: Tensors) -> Call:
    """The formula, a kernel per operation."""
    return _ours("torch", case, tensors)


@benchmark.provider("torch.compile")
def compiled(case: Case, tensors: Tensors) -> Call | None:
    """The same formula in one kernel."""
    if case.shape != BIG:
        return None
    launcher: Callable[..., str] = (
        gaussian_pdf_backward if case.direction == "backward" else gaussian_pdf_forward
    )

    def formula(*tensors: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(tensors[0])
        launcher(*tensors, 0.0, 1.0, case.options["terms"], out)
        return out

    function = torch.compile(formula, dynamic=False)
    return lambda: function(*tensors)
