"""Shared by the references of the norms of rows: the rows' derivatives and expected results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from diglot.reference.compute_eps import compute_eps
from diglot.reference.specs import Expected, OpSpec, Option, nbytes

PIECE_ELEMENTS = 1 << 24  # a few float64 copies of a piece exist at a time


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Converted to the type of the computation."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@dataclass(frozen=True)
class Normalized:
    """Rows y = (x - mean) · rstd, or x · rstd where nothing is centered, and their derivatives.

    Every function is made of PyTorch's operators, and differentiable to any order.

    Attributes:
        values: y.
        rstd: 1 / sqrt(variance + eps), or of the mean square; 1 long along a row.
        dims: the dimensions of a row, from the last.
        centered: whether the mean was subtracted.
    """

    values: torch.Tensor
    rstd: torch.Tensor
    dims: tuple[int, ...]
    centered: bool

    @staticmethod
    def compute(input: torch.Tensor, count: int, eps: float, centered: bool) -> Normalized:
        """The rows of `input` over its last `count` dimensions, in the type of `wide`."""
        dims = tuple(range(-count, 0))
        x = wide(input)
        if centered:
            variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
            x = x - mean
        else:
            variance = x.square().mean(dims, True)
        rstd = torch.rsqrt(variance + eps)
        return Normalized(x * rstd, rstd, dims, centered)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of each row."""
        return values.mean(self.dims, True)

    def project(self, direction: torch.Tensor) -> torch.Tensor:
        """rstd (d - mean(d) - y mean(d y)): the derivative of y by x, which is symmetric."""
        rest = direction - self.values * self.mean(direction * self.values)
        return self.rstd * (rest - self.mean(direction) if self.centered else rest)

    def bend(self, grad: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """The derivative of project(grad) by x along a direction; it is symmetric.

        With a and c the means of d·y and g·y,
        -rstd · y · rstd · (mean(d·g) - mean(d) mean(g) - a c) - rstd (c P d + a P g).
        """
        a, c = self.mean(direction * self.values), self.mean(grad * self.values)
        curvature = self.mean(direction * grad) - a * c
        if self.centered:
            curvature = curvature - self.mean(direction) * self.mean(grad)
        bent = self.rstd * self.values * curvature
        return -self.rstd * (bent + c * self.project(direction) + a * self.project(grad))

    def sum_rows(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all rows, of the shape of one."""
        outer = tuple(range(values.dim() - len(self.dims)))
        return values.sum(outer) if outer else values


def oracle(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    centered: bool,
) -> torch.Tensor:
    """The norm of the last dimension, in float64."""
    out = Normalized.compute(input.double(), 1, eps, centered).values
    if weight is not None:
        out = out * weight.double()
    return out if bias is None else out + bias.double()


class Exact:
    """A norm and its gradients in float64, and how far off kernels may be, for the tools.

    The input is taken as rows by elements, in pieces that fit in memory: a few float64 copies of
    PIECE_ELEMENTS exist at a time.

    Args:
        input: (*outer, *row).
        weight: (*row), or None.
        bias: likewise.
        dims: how many dimensions a row has.
        eps: added to the variance or the mean square.
        centered: whether it is the layer norm.
    """

    def __init__(
        self,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        dims: int,
        eps: float,
        centered: bool,
    ) -> None:
        self.input, self.rank, self.centered = input.detach(), input.dim() - dims, centered
        self.row = input.shape[self.rank :]
        n = math.prod(self.row)
        self.rows = self.input.reshape(-1, n) if input.numel() else input.new_empty((0, n))
        self.weight, self.bias = (None if p is None else p.detach() for p in (weight, bias))
        self.unit = compute_eps(input.dtype, float64=0.5)
        self.mean, self.rstd = (self._per_row() for _ in range(2))
        for piece in self._pieces():
            x = self.rows[piece].double()
            if centered:
                self.mean[piece] = x.mean(1, True)
            square = (x - self.mean[piece]).square().mean(1, True)
            self.rstd[piece] = torch.rsqrt(square + eps)

    def output(self) -> Expected:
        """The right value of the norm."""

        def value(x: torch.Tensor, *of: torch.Tensor) -> torch.Tensor:
            mean, rstd, weight, bias = of
            return (x.double() - mean) * rstd * weight.double() + bias.double()

        allowance = self._per_element()
        weight, bias = self._parameter(self.weight, 1), self._parameter(self.bias, 0)
        for piece in self._pieces():
            y, offset = self._normalized(piece)
            size = (y.abs() + offset) * weight.flatten().abs() + bias.flatten().abs()
            allowance[piece] = 4 * self.unit * size
        mean, rstd = self._shaped(self.mean), self._shaped(self.rstd)
        return self._expected((self.input, mean, rstd, weight, bias), value, allowance)

    def gradients(
        self, grad_output: torch.Tensor, grad_sum: torch.Tensor | None = None
    ) -> dict[str, Expected]:
        """The right gradients of "input", and of "weight" and "bias" if there are such."""
        grads = grad_output.detach().reshape(self.rows.shape)
        parameter = self._parameter(self.weight, 1)
        weight = parameter.double().flatten()
        by_mean, by_slope = (self._per_row() for _ in range(2))
        allowance = self._per_element()
        made = {name: self.rows.new_zeros((2, self.rows.shape[1]), dtype=torch.float64)
                for name in ("weight", "bias")}  # fmt: skip
        for piece in self._pieces():
            g, (y, offset) = grads[piece].double(), self._normalized(piece)
            made["weight"] += torch.stack([(g * y).sum(0), (g.abs() * (y.abs() + offset)).sum(0)])
            made["bias"] += torch.stack([g.sum(0), g.abs().sum(0)])
            h = g * weight
            if self.centered:
                by_mean[piece] = h.mean(1, True)
            by_slope[piece] = (h * y).mean(1, True)
            # The rounding of a mean, and that of y twice: by itself, and in its mean with h.
            mean, slope = h.abs().mean(1, True), (h * y).abs().mean(1, True)
            size = h.abs() + mean + (offset + y.abs()) * slope + y.abs() * offset * mean
            allowance[piece] = 8 * self.unit * self.rstd[piece] * size

        def value(
            grad: torch.Tensor, more: torch.Tensor, x: torch.Tensor, *of: torch.Tensor
        ) -> torch.Tensor:
            mean, rstd, by_mean, by_slope, weight = of
            h, y = grad.double() * weight.double(), (x.double() - mean) * rstd
            return rstd * (h - by_mean - y * by_slope) + more.double()

        more = self.input.new_zeros(()) if grad_sum is None else grad_sum.detach()
        of_rows = [self._shaped(of) for of in (self.mean, self.rstd, by_mean, by_slope)]
        tensors = (grad_output.detach(), more, self.input, *of_rows, parameter)
        shown = {"input": self.input, "grad_output": grad_output}
        results = {"input": self._expected(tensors, value, allowance, shown)}
        for name, of in (("weight", self.weight), ("bias", self.bias)):
            if of is not None:
                total, size = made[name].unflatten(1, self.row).unbind()
                results[name] = Expected(
                    lambda total: total, (total,), {}, of.dtype, 4 * self.unit * size
                )
        return results

    def _pieces(self) -> Iterator[slice]:
        count, n = self.rows.shape
        step = max(PIECE_ELEMENTS // max(n, 1), 1)
        return (slice(i, i + step) for i in range(0, count, step))

    def _per_row(self) -> torch.Tensor:
        return self.rows.new_zeros((self.rows.shape[0], 1), dtype=torch.float64)

    def _per_element(self) -> torch.Tensor:
        return torch.empty(
            self.rows.shape,
            dtype=torch.promote_types(self.input.dtype, torch.float32),
            device=self.input.device,
        )

    def _normalized(self, piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The normalized rows, and how many units their centering is off."""
        mean, rstd = self.mean[piece], self.rstd[piece]
        return (self.rows[piece].double() - mean) * rstd, (mean * rstd).abs() + 1

    def _shaped(self, of_rows: torch.Tensor) -> torch.Tensor:
        outer = self.input.shape[: self.rank]
        return (
            of_rows.view(*outer, *(1,) * len(self.row))
            if self.input.numel()
            else of_rows.new_zeros(())
        )

    def _parameter(self, tensor: torch.Tensor | None, default: float) -> torch.Tensor:
        return self.input.new_full((), default) if tensor is None else tensor

    def _expected(
        self,
        tensors: tuple[torch.Tensor, ...],
        value: Callable[..., torch.Tensor],
        allowance: torch.Tensor,
        shown: Any = None,
    ) -> Expected:
        shape = self.input.shape
        allowance = (
            allowance.nan_to_num_(0.0).view(shape)
            if self.input.numel()
            else self.input.new_zeros(shape)
        )
        return Expected(value, tensors, shown or {"input": self.input}, self.input.dtype, allowance)


def norm_spec(
    name: str, default_eps: Callable[[torch.dtype], float], eps: Option, centered: bool, fused: bool
) -> OpSpec:
    """The record of a norm, for the tools: of the last dimension, with weight and bias.

    Args:
        name: of the op.
        default_eps: the value of an eps of None.
        eps: the option.
        centered: whether it is the layer norm.
        fused: whether a residual is added first, and the sum returned too.
    """
    arrays = 1 + fused

    def exact(*tensors: torch.Tensor, eps: float | None = eps.default) -> Exact:
        input, weight, bias = tensors[0], tensors[arrays], (*tensors[arrays + 1 :], None)[0]
        if fused:
            input = input + tensors[1]
        eps = default_eps(input.dtype) if eps is None else eps
        return Exact(input, weight, bias, weight.dim(), eps, centered)

    def forward(*tensors: torch.Tensor, **options: Any) -> Any:
        output, sums = exact(*tensors, **options).output(), tensors[:arrays]
        if not fused:
            return output
        shown = dict(zip(("input", "residual"), sums, strict=True))
        dtype = tensors[0].dtype
        return output, Expected(lambda x, y: x.double() + y.double(), sums, shown, dtype)

    def backward(*given: torch.Tensor, **options: Any) -> dict[str, Expected]:
        results = exact(*given[arrays:], **options).gradients(*given[:arrays])
        return {**results, "residual": results["input"]}

    def backward_bytes(*given: torch.Tensor, **_: Any) -> int:
        # The gradients of the outputs, the input or the sum, and its gradient; of a weight the
        # gradient too.
        read = [*given[: arrays + 1], *given[2 * arrays :]]
        return sum(map(nbytes, read)) + sum(map(nbytes, read[arrays:]))

    def call(function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> Any:
        parameters = tensors[arrays:]
        return function(*tensors[:arrays], parameters[0].shape, *parameters, **options)

    parameters = ("weight", "bias")[: 1 + centered]
    return OpSpec(
        name=name,
        inputs=("input", "residual")[:arrays] + parameters,
        outputs=("output", "sum")[:arrays],
        options={"eps": eps},
        floating_only=True,
        forward=forward,
        backward=backward,
        backward_bytes=backward_bytes,
        call=call,
        shapes=lambda shape: (*[shape] * arrays, *[shape[-1:]] * len(parameters)),
    )
