"""Operands of every kind, as Hypothesis draws them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from backends import DEVICE
from hypothesis import strategies as st


class Subclass(torch.Tensor):
    pass


def draw(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, device=DEVICE).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, device=DEVICE).to(dtype)


def sliced(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return draw([2 * size + 1 for size in shape], dtype)[
        tuple(slice(1, 2 * size + 1, 2) for size in shape)
    ]


def expanded(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return draw([1 if d % 2 else size for d, size in enumerate(shape)], dtype).expand(shape)


def overlapping(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    strides = range(1, len(shape) + 1)
    memory = 1 + sum(max(size - 1, 0) * s for size, s in zip(shape, strides, strict=True))
    return draw([memory], dtype).as_strided(shape, tuple(strides))


def odd_strides(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    x = draw(shape, dtype)
    strides = [77 if size == 1 else s for size, s in zip(shape, x.stride(), strict=True)]
    return x.as_strided(shape, strides)


def negative_bit(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype not in (torch.float32, torch.float64):
        return draw(shape, dtype)
    x = torch.complex(draw(shape, dtype), draw(shape, dtype)).conj().imag
    assert x.is_neg()
    return x


def zeros_without_memory(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:  # torch.add of one and a float would be of type float64
        return draw(shape, dtype)
    return torch._efficientzerotensor(shape, dtype=dtype, device=DEVICE)


def of_inference(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode():
        return draw(shape, dtype)


KINDS: dict[str, Callable[[list[int], torch.dtype], torch.Tensor]] = {
    "dense": draw,
    "transposed": lambda shape, dtype: draw(shape[::-1], dtype).permute(
        tuple(range(len(shape)))[::-1]
    ),
    "sliced": sliced,
    "expanded": expanded,
    "overlapping": overlapping,
    "odd strides": odd_strides,
    "negative bit": negative_bit,
    "zeros without memory": zeros_without_memory,
    "subclass": lambda shape, dtype: draw(shape, dtype).as_subclass(Subclass),
    "inference": of_inference,
}


def operands(
    data: st.DataObject, count: int, dtypes: Any, kinds: Any = tuple(KINDS)
) -> list[torch.Tensor]:
    """Tensors that broadcast with each other; some want a gradient, as leaves or not."""
    shape = data.draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5]), max_size=4), label="shape")
    made = []
    for i in range(count):
        own = list(shape)
        if count > 1:
            own = [data.draw(st.sampled_from([size, size, 1])) for size in own]
            own = own[data.draw(st.sampled_from([0, 0, 1])) :]
            own = data.draw(st.sampled_from([own, own, []]))
        dtype = data.draw(st.sampled_from(dtypes), label=f"dtype {i}")
        kind = data.draw(st.sampled_from(kinds), label=f"kind {i}")
        x = KINDS[kind](own, dtype)
        if dtype.is_floating_point and kind != "inference":
            history = data.draw(st.sampled_from(["none", "leaf", "not a leaf"]), label=f"grad {i}")
            if history != "none":
                x = x.requires_grad_()
            if history == "not a leaf":
                x = x * 1
        made.append(x)
    return made
