"""Memory for what the programs of Triton's kernels that share a row tell each other."""

from __future__ import annotations

import torch

FEW = 128  # elements of a row, so few that it is never shared


def row_words(
    backend: str, dim: int, out: torch.Tensor, *inputs: torch.Tensor
) -> torch.Tensor | None:
    """The words that a launcher takes, zeros; None where no rows are shared.

    That is so with the other backends, for short rows, and in a graph that is being compiled, whose
    kernels are not launched so that they could wait for each other.
    """
    if backend != "triton" or type(out) is not torch.Tensor or out.dim() == 0:
        return None
    if out.shape[dim] <= FEW:
        return None
    from diglot.triton_ops.row_launch import count_words

    return words_of(count_words((out, *inputs), dim), out)


def words_of(count: int, like: torch.Tensor) -> torch.Tensor | None:
    """So many zeros, of the size of what is computed in for a dtype; of none, None."""
    if count == 0:
        return None
    wide = like.dtype == torch.float64
    return torch.zeros(count, dtype=torch.int64 if wide else torch.int32, device=like.device)
