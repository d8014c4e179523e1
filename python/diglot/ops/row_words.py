"""Memory for what the programs of Triton's kernels that share a row tell each other, and, in both
languages, for what the first of two launches finds out about tall columns.
"""

from __future__ import annotations

import torch

FEW = 128  # elements of a row, so few that it is never shared
# Columns of more elements take two launches; in CUDA C++, of one input, those of more than twice as
# many. Where only the first of two inputs is reduced, shorter ones, too. Measured on an H200.
TALL, TALL_OF_FIRST = 8192, 4096
# Of columns that take two launches: the fewest elements of a chunk, which has a state for each, and
# the most chunks; numbers of a state, at most. Constants: no result depends on the device.
CHUNK_ELEMENTS, CHUNK_BLOCKS = 256, 384
CHUNK_FIELDS = 2


def row_words(
    backend: str, dim: int, out: torch.Tensor, *inputs: torch.Tensor, tall: int = TALL
) -> torch.Tensor | None:
    """The words that a launcher takes: room for the states of columns of more than `tall` elements,
    or zeros for rows that programs share; None where there are neither.

    That is so with PyTorch's backend, and for short rows. In a graph that is being compiled no rows
    are shared, since its kernels are not launched so that they could wait for each other; where its
    sizes are symbols, it is not asked how tall columns are.
    """
    if backend == "torch" or out.dim() == 0:
        return None
    n = out.shape[dim]
    if type(out) is not torch.Tensor and any(type(size) is not int for size in out.shape):
        return None
    if n > tall and _are_columns(out, dim):
        chunks = min(n // CHUNK_ELEMENTS, CHUNK_BLOCKS)
        count = chunks * (out.numel() // n) * CHUNK_FIELDS
        return torch.empty(count, dtype=_word(out), device=out.device)
    if backend != "triton" or type(out) is not torch.Tensor or n <= FEW:
        return None
    from diglot.triton_ops.row_launch import count_words

    return words_of(count_words((out, *inputs), dim), out)


def _are_columns(out: torch.Tensor, dim: int) -> bool:
    """Whether neighbours along another dimension are nearer than along this one."""
    step = out.stride(dim)
    others = zip(out.shape, out.stride(), strict=True)
    return any(size != 1 and stride < step for size, stride in others)


def words_of(count: int, like: torch.Tensor) -> torch.Tensor | None:
    """So many zeros, of the size of what is computed in for a dtype; of none, None."""
    return None if count == 0 else torch.zeros(count, dtype=_word(like), device=like.device)


def _word(like: torch.Tensor) -> torch.dtype:
    return torch.int64 if like.dtype == torch.float64 else torch.int32
