"""Modules, with the names and arguments of `torch.nn`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diglot.backends.selection import check_name
from diglot.ops import dropout, gelu, layer_norm, log_softmax, rms_norm, softmax
from diglot.ops.gelu import APPROXIMATIONS
from diglot.reference.layer_norm import EPS


class _Module(torch.nn.Module):
    """A module whose forward pass calls an op, on a backend."""

    def __init__(self, backend: str | None) -> None:
        super().__init__()
        self.backend = _checked(backend)

    def _said_of_backend(self) -> str:
        return _said_of(self.backend)


def _checked(backend: str | None) -> str | None:
    if backend is not None:
        check_name(backend)
    return backend


def _said_of(backend: str | None) -> str:
    return "" if backend is None else f", backend={backend!r}"


class GELU(_Module):
    """Applies `diglot.gelu` to every element.

    Args:
        approximate: "none" or "tanh".
        backend: as in `diglot.gelu`.
    """

    def __init__(self, approximate: str = "none", *, backend: str | None = None) -> None:
        super().__init__(backend)
        if approximate not in APPROXIMATIONS:
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', not {approximate!r}")
        self.approximate = approximate

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return gelu(input, self.approximate, backend=self.backend)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}{self._said_of_backend()}"


class Softmax(_Module):
    """Applies `diglot.softmax` along a dimension.

    Args:
        dim: the dimension.
        backend: as in `diglot.gelu`.
    """

    def __init__(self, dim: int = -1, *, backend: str | None = None) -> None:
        super().__init__(backend)
        self.dim = dim

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return softmax(input, self.dim, backend=self.backend)

    def extra_repr(self) -> str:
        return f"dim={self.dim}{self._said_of_backend()}"


class LogSoftmax(Softmax):
    """Applies `diglot.log_softmax` along a dimension. Arguments are those of `Softmax`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return log_softmax(input, self.dim, backend=self.backend)


class Dropout(_Module):
    """Applies `diglot.dropout` to its input while training.

    Args:
        p: the probability that an element is zeroed.
        inplace: whether to write the result over the input.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self, p: float = 0.5, inplace: bool = False, *, backend: str | None = None
    ) -> None:
        super().__init__(backend)
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be from 0 to 1, not {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropout(input, self.p, self.training, self.inplace, backend=self.backend)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}{self._said_of_backend()}"


class LayerNorm(torch.nn.LayerNorm):
    """Applies `diglot.layer_norm` to the last dimensions: PyTorch's module with another forward.

    Args:
        normalized_shape: the shape of a row.
        eps: added to the variance.
        elementwise_affine: whether there is a weight, initially ones.
        bias: whether there is a bias too, initially zeros.
        device: of both.
        dtype: of both: the input's, or float32 for an input of 16 bits.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = EPS,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        shape = _as_list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape, backend = self.normalized_shape, self.backend
        return layer_norm(input, shape, self.weight, self.bias, self.eps, backend=backend)

    def extra_repr(self) -> str:
        return super().extra_repr() + _said_of(self.backend)


class RMSNorm(torch.nn.RMSNorm):
    """Applies `diglot.rms_norm` to the last dimensions: PyTorch's module with another forward.

    Args:
        normalized_shape: the shape of a row.
        eps: added to the mean square; the default is that of `diglot.rms_norm`.
        elementwise_affine: whether there is a weight, initially ones.
        device: of the weight.
        dtype: of the weight: the input's, or float32 for an input of 16 bits.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(_as_list(normalized_shape), eps, elementwise_affine, device, dtype)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, backend=self.backend)

    def extra_repr(self) -> str:
        return super().extra_repr() + _said_of(self.backend)


def _as_list(shape: int | Sequence[int]) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)
