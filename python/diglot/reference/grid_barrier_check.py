"""The launcher of the backend "torch", with which the grid barrier is compared.

Its phases are separate launches, and each launch is a barrier across blocks.
"""

from __future__ import annotations

import torch

from diglot.reference.specs import CallSpec


def grid_barrier_check(
    slots: torch.Tensor,
    barrier: str,
    run: str,
    mismatches: torch.Tensor,
    scratch: torch.Tensor | None,
) -> str:
    """Runs mismatches.numel() phases, each of them launches; `run` is "check" or "wait"."""
    words = slots[0].numel()
    own = torch.arange(1, words + 1, device=slots.device).view_as(slots[0])
    for phase in range(mismatches.numel()):
        if run == "check":
            expected = (own + phase * words).to(torch.int32)
            slots[phase % 2] = expected
            mismatches[phase] = (slots[phase % 2] != expected).sum()
        else:
            mismatches[phase].zero_()
    return "launches"


SPEC = CallSpec(
    name="grid_barrier_check",
    inputs=(),
    directions=("forward",),
    call=lambda function, **options: function(1, device="cpu", **options).mismatches,
)
