"""Modules, with the names and arguments of `torch.nn`."""

from __future__ import annotations

import torch

from diglot.backends.selection import check_name
from diglot.ops import dropout, gelu
from diglot.ops.gelu import APPROXIMATIONS


class GELU(torch.nn.Module):
    """Applies `diglot.gelu` to every element.

    Args:
        approximate: "none" or "tanh".
        backend: as in `diglot.gelu`.
    """

    def __init__(self, approximate: str = "none", *, backend: str | None = None) -> None:
        super().__init__()
        if approximate not in APPROXIMATIONS:
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', not {approximate!r}")
        if backend is not None:
            check_name(backend)
        self.approximate = approximate
        self.backend = backend

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return gelu(input, self.approximate, backend=self.backend)

    def extra_repr(self) -> str:
        backend = "" if self.backend is None else f", backend={self.backend!r}"
        return f"approximate={self.approximate!r}{backend}"


class Dropout(torch.nn.Module):
    """Applies `diglot.dropout` to its input while training.

    Args:
        p: probability of an element to be zeroed.
        inplace: whether the result is written over the input.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self, p: float = 0.5, inplace: bool = False, *, backend: str | None = None
    ) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be from 0 to 1, not {p}")
        if backend is not None:
            check_name(backend)
        self.p = p
        self.inplace = inplace
        self.backend = backend

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropout(input, self.p, self.training, self.inplace, backend=self.backend)

    def extra_repr(self) -> str:
        backend = "" if self.backend is None else f", backend={self.backend!r}"
        return f"p={self.p}, inplace={self.inplace}{backend}"
