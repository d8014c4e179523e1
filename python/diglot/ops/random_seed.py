"""The source of an op's randomness: a seed in a tensor on the device.

A kernel of PyTorch's generator draws it, so the draw is a part of every graph. Each replay of a
CUDA graph draws again, compilers know that it is random, and checkpointing restores the generator
first. Reserving the generator's counters on the host would save this launch, but not during a
capture or a trace: there the host does not know the generator's state. And a replay draws what an
eager call would, which needs one way to draw.

So a capture draws a seed for each call, too. If its first call drew a block of seeds for the next
ones, replays would differ from eager calls. And a part that is computed again in the capture, from
a state that `Generator.graphsafe_set_state` brought back, would take a later seed: another mask
than before, and wrong gradients.
"""

from __future__ import annotations

from typing import Any

import torch

MOST = 2**63 - 1  # the largest int64


def check_source(
    op: str, device: torch.device, generator: torch.Generator | None, seed: Any
) -> None:
    """Checks the source of a seed on `device`.

    Raises:
        TypeError: `generator` is no generator, or `seed` neither an integer nor an int64 tensor.
        ValueError: both are given, one is on another device, or the seed has more than 64 bits or
            several elements.
    """
    if generator is not None:
        if seed is not None:
            raise ValueError(f"{op}: give generator or seed, not both")
        if not isinstance(generator, torch.Generator):
            raise TypeError(
                f"{op}: generator must be a torch.Generator, not {type(generator).__name__}"
            )
        _check_device(op, "generator", generator.device, device)
    elif isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64:
            raise TypeError(f"{op}: seed must be an integer or an int64 tensor, not {seed.dtype}")
        if seed.numel() != 1:
            raise ValueError(f"{op}: seed must have one element, not {seed.numel()}")
        _check_device(op, "seed", seed.device, device)
    elif seed is not None:
        if not isinstance(seed, (int, torch.SymInt)) or isinstance(seed, bool):
            raise TypeError(
                f"{op}: seed must be an integer or an int64 tensor, not {type(seed).__name__}"
            )
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"{op}: seed must be an integer of at most 64 bits, not {seed}")


def _check_device(op: str, name: str, found: torch.device, device: torch.device) -> None:
    if found.type == device.type and found.index in (None, device.index):
        return
    if device.type != "meta":  # nothing is drawn
        raise ValueError(f"{op}: {name} must be on input's device, {device}, not on {found}")


def seed_tensor(device: torch.device, generator: torch.Generator | None, seed: Any) -> torch.Tensor:
    """The seed, from a checked source: an int64 tensor of one element on `device`."""
    if seed is None and generator is None:  # PyTorch parses fewer arguments faster
        return torch.randint(MOST, (), device=device)
    if seed is None:
        return torch.randint(MOST, (), dtype=torch.int64, device=device, generator=generator)
    if isinstance(seed, torch.Tensor):
        return seed
    if seed > MOST:
        seed -= 2**64
    return torch.full((), seed, dtype=torch.int64, device=device)
