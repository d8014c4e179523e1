"""Where the randomness of an op comes from: a seed in a tensor on the device.

It is drawn by PyTorch's generator, as a kernel of its own, so that it is a part of every graph: a
replay of a CUDA graph draws anew, compilers know it for random, and checkpointing restores the
generator before it. Reserving counters of the generator on the host would save that launch, but
only where nothing is captured or traced: there the generator's state is not known to the host.
"""

from __future__ import annotations

from typing import Any

import torch

MOST = 2**63 - 1  # of an int64


def check_source(
    op: str, device: torch.device, generator: torch.Generator | None, seed: Any
) -> None:
    """Checks where a seed on `device` is to come from.

    Raises:
        TypeError: the generator is none, or the seed neither an integer nor an int64 tensor.
        ValueError: both are given, either is of another device, or the seed is more than 64 bits,
            or a tensor of several elements.
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
        raise ValueError(f"{op}: {name} must be of input's device, {device}, not {found}")


def seed_tensor(device: torch.device, generator: torch.Generator | None, seed: Any) -> torch.Tensor:
    """The seed: an int64 tensor of one element on `device`. What it comes from has been checked."""
    if seed is None and generator is None:  # PyTorch parses fewer arguments faster
        return torch.randint(MOST, (), device=device)
    if seed is None:
        return torch.randint(MOST, (), dtype=torch.int64, device=device, generator=generator)
    if isinstance(seed, torch.Tensor):
        return seed
    if seed > MOST:
        seed -= 2**64
    return torch.full((), seed, dtype=torch.int64, device=device)
