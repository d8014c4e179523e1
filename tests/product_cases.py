"""Operands of products for tests, and how a product is judged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from backends import DEVICE, spacing

from diglot.reference.matmul import expected_product

Function = Callable[..., torch.Tensor]
# Whether rows or columns of A, and of B, are contiguous: as BLAS names layouts.
LAYOUTS = ("NN", "NT", "TN", "TT")


def integers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Small ones: products and their sums are exact, in any order and in every dtype."""
    return torch.randint(-3, 4, shape, device=DEVICE).to(dtype)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)


def laid_out(matrix: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """The same values, with contiguous columns where `is_transposed`."""
    return matrix.mT.contiguous().mT if is_transposed else matrix.contiguous()


def operands(m, n, k, layout, dtype, draw=normal) -> tuple[torch.Tensor, torch.Tensor]:
    """A (m, k) and B (k, n) in a layout."""
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype)
    return laid_out(a, layout[0] == "T"), laid_out(b, layout[1] == "T")


def surrounded(matrix: torch.Tensor, rows: int = 3, columns: int = 5) -> torch.Tensor:
    """The same values, as a part of a larger matrix whose other elements are NaN."""
    shape = (*matrix.shape[:-2], matrix.shape[-2] + 2 * rows, matrix.shape[-1] + 2 * columns)
    whole = torch.full(shape, torch.nan, dtype=matrix.dtype, device=matrix.device)
    part = whole[..., rows : rows + matrix.shape[-2], columns : columns + matrix.shape[-1]]
    return part.copy_(matrix)


def assert_derivatives(own: Function, theirs: Function, tensors: list[torch.Tensor]) -> None:
    """Asserts that two functions of float64 agree in values, and in two derivatives."""
    directions = [torch.randn_like(t) for t in tensors]
    made = []
    for function in (own, theirs):
        result = function(*tensors)
        grad = torch.linspace(-1, 2, result.numel(), dtype=result.dtype, device=DEVICE)
        grads = torch.autograd.grad(result, tensors, grad.view_as(result), create_graph=True)
        total = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
        seconds = torch.autograd.grad(total, tensors, materialize_grads=True)
        made.append((result, *grads, *seconds))
    torch.testing.assert_close(*made)


def assert_product(
    result: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """Asserts that a product is within the rounding of its sums, and of the result."""
    expected = expected_product(a, b, bias, result.dtype)
    (right,) = expected.tensors
    assert result.shape == right.shape and result.dtype == a.dtype
    if result.numel() == 0:
        return
    allowed = expected.allowance + 0.5 * spacing(right, result.dtype)
    error = (result.detach().double() - right).abs()
    worst = int((error / allowed).argmax())
    assert (error <= allowed).all(), (
        f"element {worst} is {result.reshape(-1)[worst].item()!r} instead of "
        f"{right.reshape(-1)[worst].item()!r}; {(error > allowed).double().mean().item():.2%} fail"
    )
