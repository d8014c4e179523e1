"""The mean of a normal density at neighbouring points: the contract of the op."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch

from diglot.backends.selection import choose
from diglot.define.batching import elementwise
from diglot.define.pair import DifferentiablePair, pointwise
from diglot.ops.checks import check_floating
from diglot.ops.numbers import Number, check_number, fixed
from diglot.reference.gaussian_pdf import TERMS, gaussian_pdf_second_derivative

MOST_TERMS = 2**22  # float32 cannot distinguish more
# Bounds of std, within which no constant of the computation overflows.
FLOAT32_RANGE, FLOAT64_RANGE = (1e-30, 1e30), (1e-150, 1e150)
FLOAT32_MOST = torch.finfo(torch.float32).max


def gaussian_pdf(
    input: torch.Tensor,
    mean: Number = 0.0,
    std: Number = 1.0,
    *,
    terms: int = TERMS,
    backend: str | None = None,
) -> torch.Tensor:
    r"""Computes the mean of a normal density at `terms` points around every element.

    1/terms · Σ φ(x + (i - terms // 2) / 100) over i < terms, where φ(y) = exp(-((y - mean) / std)²
    / 2) / (std · √(2π)). With 22 terms the offsets run from -0.11 to 0.10. (This is the arithmetic
    of homework 7 of the CUDA training series of OLCF, NERSC and NVIDIA,
    https://github.com/olcf/cuda-training-series. There, copies hide behind it.) The computation is
    in float32 (float64 for float64) and rounds once. The far tail keeps its relative accuracy; in
    float32 the formula loses it by rounding its exponent.

    Args:
        input: tensor of any shape and strides; float32, float16, bfloat16 or float64.
        mean: of the distribution, in the range of the computation's type. For an infinite mean, the
            density of finite elements is 0.
        std: its standard deviation, from 1e-30 to 1e30; for float64 from 1e-150 to 1e150.
        terms: the number of points, from 1 to 2²².
        backend: as in `diglot.gelu`.

    Returns:
        A tensor of the shape, dtype and memory format of `input`. At infinities it and all its
        derivatives are 0. NaN elements, or a NaN mean, give NaN. Differentiable with respect to
        `input`, twice and more. The first derivative runs on the same backend; PyTorch's operators
        compute later ones.

    Raises:
        TypeError: `input` is not a dense floating-point tensor, `mean` or `std` not a number, or
            `terms` not an integer.
        ValueError: `mean`, `std` or `terms` is out of range, or `backend` is unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensor's device.
    """
    kind = _gaussian_pdf.known(input) or _gaussian_pdf.learn(input)
    if type(mean) is not float or type(std) is not float:
        mean = float(fixed(check_number("gaussian_pdf", "mean", mean)))
        std = float(fixed(check_number("gaussian_pdf", "std", std)))
    _check_range(input.dtype, mean, std)
    if type(terms) is not int:
        terms = _integer(terms)
    if not 1 <= terms <= MOST_TERMS:
        raise ValueError(f"gaussian_pdf: terms must be from 1 to {MOST_TERMS}, not {terms}")
    return kind.call(input, mean, std, terms, choose("gaussian_pdf", kind.device, backend))


def _check_range(dtype: torch.dtype, mean: float, std: float) -> None:
    """Raises ValueError unless these are parameters of a distribution, which the kernels can take.

    `mean` may be infinite or NaN.
    """
    if not (std > 0 and math.isfinite(std)):
        raise ValueError(f"gaussian_pdf: std must be positive and finite, not {std}")
    least, greatest = FLOAT64_RANGE if dtype == torch.float64 else FLOAT32_RANGE
    if not least <= std <= greatest:
        raise ValueError(
            f"gaussian_pdf: std must be from {least} to {greatest} where the input is {dtype}, "
            f"not {std}"
        )
    if abs(mean) > FLOAT32_MOST and dtype != torch.float64:
        if not math.isinf(mean):
            raise ValueError(
                f"gaussian_pdf: mean must be in the range of float32 where the input is {dtype}, "
                f"not {mean}"
            )


def _integer(terms: Any) -> int:
    if isinstance(terms, bool) or not hasattr(terms, "__index__"):
        raise TypeError(f"gaussian_pdf: terms must be an integer, not {type(terms).__name__}")
    if isinstance(terms, torch.Tensor) and (terms.is_floating_point() or terms.dim() > 0):
        raise TypeError("gaussian_pdf: terms must be an integer, not a tensor of other numbers")
    return operator.index(terms)


_gaussian_pdf = DifferentiablePair(
    "gaussian_pdf(Tensor input, float mean, float std, int terms, str backend) -> Tensor",
    "gaussian_pdf_backward(Tensor grad_output, Tensor input, float mean, float std, int terms, "
    "str backend) -> Tensor",
    slope=pointwise(gaussian_pdf_second_derivative),
    vmap=elementwise,
    check=partial(check_floating, "gaussian_pdf", "input"),
)
