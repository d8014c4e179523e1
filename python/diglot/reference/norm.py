"""What the references of the norms of rows share: the rows' derivatives, and what is expected."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the type that is computed in."""
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
    def of(input: torch.Tensor, count: int, eps: float, centered: bool) -> Normalized:
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
        """Of each row."""
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
        """Over all rows, of the shape of one."""
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
    out = Normalized.of(input.double(), 1, eps, centered).values
    if weight is not None:
        out = out * weight.double()
    return out if bias is None else out + bias.double()
