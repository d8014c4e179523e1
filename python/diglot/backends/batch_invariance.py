"""Products whose rows have the same bits however many there are: `batch_invariant=True` for a call,
`use_plans("invariant")` for all.

Their launchers are told, and plan as if there were many rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diglot.backends.aligned_rows import in_even_rows
from diglot.backends.choosing import INVARIANT, mode
from diglot.backends.compiled_order import order
from diglot.backends.needs import prefer
from diglot.backends.selection import BackendUnavailable, choose

_NAME = "{}, batch-invariant"  # an op's, where a call must be


def declare_invariant(op: str) -> None:
    """Declares an op that takes `batch_invariant`. "auto" then tries PyTorch last."""
    prefer(_NAME.format(op), ("cuda", "triton", "torch"))


def choose_invariant(
    op: str, device: torch.device, backend: str | None, batch_invariant: bool
) -> str:
    """The backend that runs a call, as `choose`. With `batch_invariant` it is not PyTorch. Within
    `use_plans("invariant")` "auto" takes PyTorch only where no kernel of ours can run.
    """
    name = _NAME.format(op) if batch_invariant or order.is_held else op
    chosen = choose(name, device, backend)
    if batch_invariant and chosen == "torch" and device.type != "meta":
        raise BackendUnavailable(
            f"{op}: batch_invariant=True needs the backend 'cuda' or 'triton', which sum every row "
            f"in one order; PyTorch's products promise none"
        )
    return chosen


def hold_rows(input: Tensor, batch_invariant: bool, backend: str) -> tuple[Tensor, bool]:
    """A product's first operand, and whether a row's bits must not depend on how many there are.
    Then the operand is one whose rows all lie alike.
    """
    is_held = backend != "torch" and (batch_invariant or mode() == INVARIANT)
    return (in_even_rows(input) if is_held else input), is_held
