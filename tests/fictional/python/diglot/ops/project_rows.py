"""Rows times a vector, and each product's share of them all: the contract of the op."""

from __future__ import annotations

import torch

from diglot.backends.needs import Call, Needs, require
from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.checks import check_dtype, check_tensor

MOST_COLUMNS = 1024  # of the kernels' tiles


def _check_tile(call: Call) -> str | None:
    assert call.shapes is not None
    columns = call.shapes[1][0]
    return f"rows of {columns} > {MOST_COLUMNS} elements" if columns > MOST_COLUMNS else None


for _backend in ("cuda", "triton"):
    require("project_rows", _backend, Needs(architecture=90, call=_check_tile))


def project_rows(
    input: torch.Tensor, weight: torch.Tensor, *, backend: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input @ weight, each product's share of their sum, and the sum.

    Args:
        input: float32 [rows, n].
        weight: float32 [n].
        backend: as in `diglot.gelu`.

    Raises:
        diglot.BackendUnavailable: the backend asked for cannot run such rows.
    """
    for name, tensor in (("input", input), ("weight", weight)):
        check_tensor("project_rows", name, tensor)
        check_dtype("project_rows", name, tensor, (torch.float32,))
    chosen = choose("project_rows", input.device, backend, input, weight)
    input, weight = input.contiguous(), weight.contiguous()
    dots = input.new_empty(input.shape[0])
    shares, total = torch.empty_like(dots), input.new_empty(())
    run(chosen, "project_rows", "project_rows_forward", input, weight, dots, shares, total)
    return dots, shares, total
