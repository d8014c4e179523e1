"""How the rows of a norm's backward pass are shared out, and the memory for what each share sums.

The gradients of a weight and a bias are sums over all rows. Groups of threads each sum theirs into
a slice of a workspace, and a second launch sums over the slices, in order: the result is
deterministic and depends on shapes alone.
"""

from __future__ import annotations

import torch

from diglot.ops.row_words import row_words, words_of

Table = tuple[tuple[int, int], ...]

# The greatest row length for which that many groups share the rows: two for each of an H200's 132
# multiprocessors while one of them holds a row, then fewer, since several work on one row.
# Constants, so that a result does not depend on the device.
GROUPS: Table = ((8192, 264), (16384, 132), (32768, 64), (65536, 32), (131072, 16))
FEWEST_GROUPS = 8


# In CUDA C++ a multiprocessor's registers hold the sums of this many bytes of a row, and a longer
# row is shared by a cluster: so many clusters run at once for each number of bytes, in kibibytes.
# (Of the longest rows a fifth of them: devices without clusters have a block for each group.)
CUDA_GROUPS: Table = ((32, 132), (64, 66), (128, 30), (256, 15), (512, 7))
FEWEST_CUDA_GROUPS = 35


def groups_of(rows: int, n: int, element_size: int, backend: str = "") -> int:
    """How many groups share `rows` rows of `n` elements of so many bytes: at least one."""
    if backend == "cuda":
        table, length, otherwise = CUDA_GROUPS, -(-n * element_size // 1024), FEWEST_CUDA_GROUPS
    else:
        table, length, otherwise = GROUPS, n, FEWEST_GROUPS
    groups = next((groups for most, groups in table if length <= most), otherwise)
    return max(1, min(groups, rows))


def workspace_of(
    rows: torch.Tensor, fields: int, dtype: torch.dtype, backend: str = ""
) -> torch.Tensor | None:
    """Memory for the groups' sums of `fields` gradients: (fields, groups, n), of `dtype`.

    Args:
        rows: (*outer, n).
        fields: how many gradients are sums over rows.
        dtype: that sums are computed in.
        backend: that computes them.
    """
    if fields == 0:
        return None
    n = rows.shape[-1]
    groups = groups_of(rows.numel() // n, n, rows.element_size(), backend)
    return rows.new_empty((fields, groups, n), dtype=dtype)


def forward_words(
    backend: str, out: torch.Tensor, *inputs: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The words that Triton's launchers take beside the others' arguments, as `row_words`."""
    return (row_words(backend, out.dim() - 1, out, *inputs),) if backend == "triton" else ()


def backward_words(backend: str, rows: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Likewise of the backward pass of rows (*outer, n)."""
    if backend != "triton":
        return ()
    if type(rows) is not torch.Tensor:
        return (None,)
    from diglot.triton_ops.norm_launch import count_words

    return (words_of(count_words(rows), rows),)
