"""Batching rules, for torch.vmap: how an operator treats tensors with one more dimension.

A rule takes the operator, torch.vmap's information, the batch dimension of each argument (None
without one), and the arguments. It returns the results and their batch dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from diglot.define.operator import Operator


def one_by_one(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """A call for each sample: the rule of an operator whose kernels know no batches."""
    samples = [
        [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]
        for i in range(info.batch_size)
    ]
    if samples:
        results = [operator(*sample) for sample in samples]
    else:  # a fake call gives the shapes of results
        sample = [
            a if d is None else a.new_empty([size for i, size in enumerate(a.shape) if i != d])
            for a, d in zip(args, in_dims, strict=True)
        ]
        results = [operator.fake(*sample)]
    is_single = isinstance(results[0], Tensor)
    stacked = [
        torch.stack(outputs)[: info.batch_size]
        for outputs in zip(*([r] if is_single else r for r in results), strict=True)
    ]
    return (stacked[0], 0) if is_single else (tuple(stacked), (0,) * len(stacked))


def elementwise(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """One call, which treats the batch like any other dimension."""
    count = operator.signature.tensors
    return operator(*batch_first(info, in_dims, args[:count]), *args[count:]), 0


def batch_first(info: Any, in_dims: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Tensors with the batch as their first dimension, expanded where they have none."""
    return [
        None if tensor is None else batch_at(0, info, dim, tensor)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    ]


def batch_at(place: int, info: Any, dim: int | None, tensor: Tensor) -> Tensor:
    """A tensor with the batch as its dimension `place`."""
    if dim is None:
        tensor, dim = tensor.expand(info.batch_size, *tensor.shape), 0
    return tensor.movedim(dim, place)
