"""Modules, with the names and arguments of `torch.nn`."""

from __future__ import annotations

import torch

from diglot.backends.selection import check_name
from diglot.ops import dropout, gelu, log_softmax, softmax
from diglot.ops.gelu import APPROXIMATIONS


class _Module(torch.nn.Module):
    """A module whose forward pass is an op, on a backend."""

    def __init__(self, backend: str | None) -> None:
        super().__init__()
        if backend is not None:
            check_name(backend)
        self.backend = backend

    def _said_of_backend(self) -> str:
        return "" if self.backend is None else f", backend={self.backend!r}"


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
    """Applies `diglot.log_softmax` along a dimension. Arguments as of `Softmax`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return log_softmax(input, self.dim, backend=self.backend)


class Dropout(_Module):
    """Applies `diglot.dropout` to its input while training.

    Args:
        p: probability of an element to be zeroed.
        inplace: whether the result is written over the input.
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
