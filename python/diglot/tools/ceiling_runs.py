"""Measures the ceilings of a machine: device memory, matrix products, copies from and to the host.

All of it is of random data, because power draw and therefore clocks depend on the bits, and each
result is checked. Kernels are PyTorch's: what it does not reach is no ceiling here.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from diglot.bench.evidence import versions
from diglot.tools import device as devices
from diglot.tools import measure, transfer
from diglot.tools.ceilings import Ceiling, Ceilings
from diglot.tools.inputs import is_out_of_memory

GIB, MIB = 1 << 30, 1 << 20
MEMORY_SIZES = (GIB // 4, GIB, 4 * GIB)
SIDE = 8192  # of matrices
LINK_BYTES, LINK_ROUNDS = GIB, 10
BUDGET_MS = 300  # of each thing measured
PIECE = 1 << 24  # elements that are checked at a time
CHECKED_ROWS = 16
FLOAT8 = torch.float8_e4m3fn
# Matrix products, by the name of the arithmetic: type of the matrices, and the largest relative
# root mean square of the error. That is the result's rounding, or the factors' (of TF32, 10 bits).
# float32's bar is below what TF32 reaches, so that the one cannot pass for the other.
PRODUCTS: dict[str, tuple[torch.dtype, float]] = {
    "bfloat16": (torch.bfloat16, 1e-2),
    "float16": (torch.float16, 2e-3),
    "tf32": (torch.float32, 2e-3),
    "float32": (torch.float32, 1e-5),
    "float8": (FLOAT8, 1e-2),
}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """Something to be measured: the row without its times, the call, what says if it was right."""

    row: Ceiling
    work: float  # bytes or operations
    call: Callable[[], torch.Tensor]
    is_right: Callable[[torch.Tensor], bool]  # of what a call returned


def measure_all(
    device: torch.device | str = "cuda",
    tell: Tell = lambda message: None,
) -> Ceilings:
    """Measures the ceilings of a GPU and of its links to the host.

    Raises:
        RuntimeError: there is no GPU, or kernels are interpreted.
    """
    measure.check()
    rows: list[Ceiling] = []
    with torch.cuda.device(device):
        facts = devices.query(device)
        parts: tuple[tuple[str, Callable[[torch.device | str], Iterable[Ceiling]]], ...] = (
            ("device memory", memory),
            ("matrix products", products),
            ("copies from and to the host", links),
        )
        for name, part in parts:
            tell(f"measuring {name}")
            rows += part(device)
            torch.cuda.empty_cache()
    return describe(facts, rows)


def describe(facts: devices.DeviceFacts, rows: Iterable[Ceiling]) -> Ceilings:
    """Rows with what they were measured on, and when."""
    return Ceilings(
        gpu=facts.name,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        versions=versions() | {"driver": facts.driver},
        device=dataclasses.asdict(facts),
        rows=tuple(rows),
    )


def memory(
    device: torch.device | str = "cuda", sizes: tuple[int, ...] = MEMORY_SIZES
) -> Iterator[Ceiling]:
    """Copies within device memory; each moves `sizes` bytes, read and written together, if they
    fit.
    """
    for size in sizes:
        try:
            yield from _timed([_copy(device, size)])
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return


def _copy(device: torch.device | str, size: int) -> Run:
    source = torch.randn(size // 8, device=device)
    target = torch.empty_like(source)

    def is_copied(_: torch.Tensor) -> bool:
        pieces = zip(target.split(PIECE), source.split(PIECE), strict=True)
        return all(torch.equal(a, b) for a, b in pieces)

    row = Ceiling("copy", "Tensor.copy_", "float32", "GB/s", bytes=size)
    return Run(row, size, lambda: target.copy_(source), is_copied)


def products(device: torch.device | str = "cuda", side: int = SIDE) -> Iterator[Ceiling]:
    """Matrix products of side × side matrices, of each type that the GPU multiplies."""
    for name in PRODUCTS:
        try:
            run = _product(device, side, name)
            run.call()  # what the GPU lacks fails here
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
            yield Ceiling(
                "matrix product", _how(name), name, "TFLOP/s", None, (side,) * 3, reason=reason
            )
            continue
        yield from _timed([run])


def _how(name: str) -> str:
    return "torch._scaled_mm" if name == "float8" else "torch.mm"


def _product(device: torch.device | str, side: int, name: str) -> Run:
    dtype, tolerance = PRODUCTS[name]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    one = torch.ones((), device=device)
    # The second factor of float8 must be column-major.
    columns = b.t().contiguous().t() if dtype == FLOAT8 else b

    def call() -> torch.Tensor:
        if dtype == FLOAT8:
            return torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        with float32_products("tf32" if name == "tf32" else "ieee"):
            return torch.mm(a, b)

    def is_right(out: torch.Tensor) -> bool:
        chosen = torch.randperm(side, device=device)[:CHECKED_ROWS]
        exact = a.float()[chosen].double() @ b.double()
        error = out[chosen].double() - exact
        return bool(error.square().mean().sqrt() <= tolerance * exact.square().mean().sqrt())

    row = Ceiling("matrix product", _how(name), name, "TFLOP/s", shape=(side, side, side))
    return Run(row, 2.0 * side**3, call, is_right)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Has PyTorch's switch ask for "tf32" or "ieee" products of float32, for a while."""
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def _timed(runs: list[Run]) -> Iterator[Ceiling]:
    """Checks what the calls leave, times in turns those that are right, and checks again."""
    right = {number: run.is_right(run.call()) for number, run in enumerate(runs)}
    calls = {str(number): runs[number].call for number, of in right.items() if of}
    timings = measure.interleaved(calls, budget_ms=BUDGET_MS) if calls else {}
    for number, run in enumerate(runs):
        if not right[number] or not run.is_right(run.call()):
            yield dataclasses.replace(run.row, reason="the result was wrong")
            continue
        yield with_timing(run.row, run.work, timings[str(number)])


def with_timing(row: Ceiling, work: float, timing: measure.Timing) -> Ceiling:
    """A row that was right, with its times and its rate."""
    units = {"GB/s": 1e9, "TFLOP/s": 1e12}
    return dataclasses.replace(
        row,
        verified=True,
        rate=work / (timing.median_us * 1e-6) / units[row.unit],
        **timing.figures(),
    )


def links(device: torch.device | str = "cuda", size: int = LINK_BYTES) -> Iterator[Ceiling]:
    """Copies between pinned memory and the GPU, in chunks, each way alone and both at once."""
    source, target = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    source.copy_(torch.randint(256, (size,), dtype=torch.uint8, device=device))
    copies = transfer.Copies(device, source, target)
    how = f"Tensor.copy_, pinned, {transfer.CHUNK_BYTES // MIB} MiB chunks"
    for what, directions in (
        ("host to device", {"d2h": False}),
        ("device to host", {"h2d": False}),
        ("both ways", {}),
    ):
        row = Ceiling(what, how, "uint8", "GB/s", bytes=size)
        target.zero_()
        source.bitwise_not_()  # what the copies before left on the GPU is not it
        timing = copies.timing(**directions, rounds=LINK_ROUNDS)
        if copies.is_right(**directions):
            yield with_timing(row, size, timing)
        else:
            yield dataclasses.replace(row, reason="the result was wrong")
