"""The memory from which graphs read their arguments: one buffer, with views for each bucket."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from diglot.graphs.arguments import Places, places_of
from diglot.graphs.buckets import Buckets, Sizes
from diglot.graphs.errors import GraphError
from diglot.graphs.watch import library

ALIGNMENT = 256  # bytes; what PyTorch's allocator gives is aligned so


@dataclass(frozen=True)
class Slot:
    """A tensor argument.

    Attributes:
        name: in messages.
        dtype, device, shape: the example's.
        order: its dimensions, from the largest stride to the smallest.
        dims: for each padded dimension, which of the names it has.
        padding: what lies beyond the valid elements; None if the function does not read it.
        requires_grad: whether the graph has a gradient of it.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dims: dict[int, int]
    padding: float | None
    requires_grad: bool

    def shape_for(self, sizes: Sizes) -> tuple[int, ...]:
        """Its shape where the named dimensions have these sizes."""
        shape = list(self.shape)
        for dim, name in self.dims.items():
            shape[dim] = sizes[name]
        return tuple(shape)

    def bytes_for(self, sizes: Sizes) -> int:
        """Of a tensor of that shape."""
        return math.prod(self.shape_for(sizes)) * self.dtype.itemsize

    def sizes_in(self, shape: Sequence[int]) -> dict[int, int]:
        """The sizes of the named dimensions, by name.

        Raises:
            ValueError: the shape differs from the example's in another dimension.
        """
        fits = len(shape) == len(self.shape) and all(
            size == expected or dim in self.dims
            for dim, (size, expected) in enumerate(zip(shape, self.shape, strict=True))
        )
        if not fits:
            padded = f"; dims lets dimensions {sorted(self.dims)} differ" if self.dims else ""
            raise ValueError(
                f"{self.name} has shape {tuple(shape)}, and was captured with {self.shape}{padded}"
            )
        return {name: shape[dim] for dim, name in self.dims.items()}


def make_slot(
    name: str, example: Tensor, dims: dict[int, int], padding: float | None, requires_grad: bool
) -> Slot:
    """The slot of an argument that is like an example."""
    strides = example.stride()
    order = sorted(range(example.dim()), key=lambda dim: (-strides[dim], dim))
    return Slot(
        name,
        example.dtype,
        example.device,
        tuple(example.shape),
        tuple(order),
        dims,
        padding,
        requires_grad,
    )


def check_types(who: str, slots: Sequence[Slot], tensors: Sequence[Tensor]) -> None:
    """Checks that a call's tensors have the dtypes and devices of those that were captured.

    Args:
        who: the function's name, in messages.

    Raises:
        TypeError, ValueError, GraphError: one has not; the message names it.
    """
    for slot, tensor in zip(slots, tensors, strict=True):
        name = f"{who}: {slot.name}"
        if tensor.dtype != slot.dtype:
            raise TypeError(
                f"{name} is {tensor.dtype}, and was captured as {slot.dtype}: convert it, or "
                "capture another callable for it"
            )
        if tensor.device != slot.device:
            raise ValueError(
                f"{name} is on {tensor.device}, and was captured on {slot.device}: copy it there"
            )
        if tensor.requires_grad and not slot.requires_grad and torch.is_grad_enabled():
            raise GraphError(
                f"{name} requires grad, and the captured one did not, so the graph has no gradient "
                "of it: detach it, or capture anew with an example that requires grad"
            )


@dataclass
class Load:
    """How arguments of certain sizes get into a bucket's views.

    Attributes:
        bucket: it.
        valid: of each argument, the elements that are copied.
        places: their addresses and strides, one by one.
        all_places: what `places_of` says of all of them.
        native: what the CUDA library knows of them; None if PyTorch copies.
        shapes: theirs.
        beyond: for each argument the views that make up its padding.
    """

    bucket: Sizes
    valid: list[Tensor]
    places: list[tuple[int, tuple[int, ...]]]
    all_places: Places
    native: Any
    shapes: list[tuple[int, ...]]
    beyond: list[list[Tensor]]


class StaticInputs:
    """The memory of all arguments, in all buckets.

    Args:
        slots: the arguments.
        buckets: the sizes.
        device: where.

    Attributes:
        buffer: all of it.
        stream_handles: of streams that have used it.
    """

    def __init__(self, slots: Sequence[Slot], buckets: Buckets, device: torch.device) -> None:
        self.stream_handles: set[int] = set()
        self._library: Any = library()
        self.slots = list(slots)
        self._offsets = []
        end = 0
        for slot in self.slots:
            self._offsets.append(end)
            most = max(slot.bytes_for(sizes) for sizes in buckets.smallest_first)
            end += -(-most // ALIGNMENT) * ALIGNMENT
        with torch.inference_mode(False):
            self.buffer = torch.zeros(end, dtype=torch.uint8, device=device)
        self._begin, self._end = self.buffer.data_ptr(), self.buffer.data_ptr() + end
        self._views: dict[Sizes, list[Tensor]] = {}
        self._loads: dict[tuple[Sizes, Sizes], Load] = {}
        # What the buffer holds; None if nobody knows. Views of another bucket lie otherwise in the
        # same memory, so that all their padding must be filled.
        self._held: Load | None = None

    def views(self, sizes: Sizes) -> list[Tensor]:
        """The arguments in a bucket of these sizes."""
        if sizes not in self._views:
            with torch.inference_mode(False):
                self._views[sizes] = [
                    self._view(slot, offset, sizes)
                    for slot, offset in zip(self.slots, self._offsets, strict=True)
                ]
        return self._views[sizes]

    def _view(self, slot: Slot, offset: int, sizes: Sizes) -> Tensor:
        shape = slot.shape_for(sizes)
        flat = self.buffer[offset : offset + slot.bytes_for(sizes)].view(slot.dtype)
        in_order = flat.view([shape[dim] for dim in slot.order])
        return in_order.permute([slot.order.index(dim) for dim in range(len(shape))])

    def valid(self, bucket: Sizes, sizes: Sizes) -> list[Tensor]:
        """The arguments of these sizes, within a bucket. Who has them may write into them."""
        self._held = None
        return [view.detach() for view in self.prepare(bucket, sizes).valid]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager: afterwards the memory holds what it held before."""
        before, held = self.buffer.clone(), self._held
        try:
            yield
        finally:
            self.buffer.copy_(before)
            self._held = held

    def load(
        self, tensors: Sequence[Tensor], load: Load, places: Places = None, stream: int = 0
    ) -> None:
        """Copies arguments into a bucket's views, and clears what an earlier call left beyond them.

        Arguments that are the views of these sizes already are not copied.

        Args:
            tensors: the arguments.
            load: how they get into the views.
            places: where the arguments are, if that is known.
            stream: with `places`, the current stream's handle.
        """
        targets: list[Tensor] = []
        if places is None or places != load.all_places:
            if not self._copy_natively(tensors, load, places, stream):
                targets, sources = self._to_copy(tensors, load)
        if load is not self._held:
            self._clear(load)
        if len(targets) == 1:
            targets[0].copy_(sources[0])
        elif targets:
            for same in _by_dtype(targets, sources):
                torch._foreach_copy_(*same)

    def _copy_natively(
        self, tensors: Sequence[Tensor], load: Load, places: Places, stream: int
    ) -> bool:
        """Copies by the CUDA library, if it can. PyTorch's dispatcher takes longer than a copy."""
        if load.native is None or places is None or any([tensor.is_neg() for tensor in tensors]):
            return False
        if not self._library.copy_into(load.native, places, stream):
            return False
        increment_version([self.buffer])  # as PyTorch's copies do
        return True

    def _to_copy(self, tensors: Sequence[Tensor], load: Load) -> tuple[list[Tensor], list[Tensor]]:
        """Where to copy to, and what."""
        if torch.is_grad_enabled():  # a copy is not recorded
            tensors = [tensor.detach() for tensor in tensors]
        if not any([self._begin <= tensor.data_ptr() < self._end for tensor in tensors]):
            return load.valid, list(tensors)
        targets, sources = [], []
        for target, place, source in zip(load.valid, load.places, tensors, strict=True):
            address = source.data_ptr()
            if self._begin <= address < self._end:
                if (address, source.stride()) == place and not (
                    source.is_conj() or source.is_neg()
                ):
                    continue
                source = source.clone()  # another part of the same buffer
            targets.append(target)
            sources.append(source)
        return targets, sources

    def _clear(self, load: Load) -> None:
        """Fills the padding, unless it still is as an earlier call left it."""
        held, self._held = self._held, None
        before = held.shapes if held is not None and held.bucket == load.bucket else None
        for i, (slot, beyond) in enumerate(zip(self.slots, load.beyond, strict=True)):
            if slot.padding is None or not beyond:
                continue
            if before is None or any(map(operator.gt, before[i], load.shapes[i])):
                for view in beyond:
                    view.fill_(slot.padding)
        self._held = load

    def prepare(self, bucket: Sizes, sizes: Sizes) -> Load:
        """How arguments of these sizes get into a bucket's views."""
        load = self._loads.get((bucket, sizes))
        if load is None:
            views = self.views(bucket)
            shapes = [slot.shape_for(sizes) for slot in self.slots]
            with torch.inference_mode(False):
                valid = list(map(_narrowed, views, shapes))
                beyond = list(map(_beyond, views, shapes))
            places = [(view.data_ptr(), view.stride()) for view in valid]
            all_places = places_of(valid)
            native = None if all_places is None else self._make_native(valid)
            load = Load(bucket, valid, places, all_places, native, shapes, beyond)
            self._loads[bucket, sizes] = load
        return load

    def _make_native(self, valid: Sequence[Tensor]) -> Any:
        targets = tuple(
            [
                (view.data_ptr(), view.itemsize, tuple(view.shape), tuple(view.stride()))
                for view in valid
            ]
        )
        index = self.buffer.device.index if self.buffer.is_cuda else -1
        return self._library.make_load(index, self._begin, self._end, targets)


def _narrowed(view: Tensor, shape: Sequence[int]) -> Tensor:
    for dim, size in enumerate(shape):
        view = view.narrow(dim, 0, size)
    return view


def _beyond(view: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """Views that together cover what lies beyond a shape, each element once."""
    found = []
    for dim, size in enumerate(shape):
        if size < view.shape[dim]:
            found.append(view.narrow(dim, size, view.shape[dim] - size))
            view = view.narrow(dim, 0, size)
    return found


def _by_dtype(
    targets: list[Tensor], sources: list[Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pairs of lists of one dtype each: a fused copy takes no others."""
    first = targets[0].dtype
    if all([target.dtype == first for target in targets]):
        return [(targets, sources)]
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = pairs.setdefault(target.dtype, ([], []))
        into.append(target)
        out_of.append(source)
    return list(pairs.values())
