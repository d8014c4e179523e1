"""Tensor descriptors, with which the GPU's copy engine (TMA) loads and stores tiles.

The host makes a descriptor and passes it to a kernel: a `Descriptor` among a launch's pointers. Or
each program makes its own by `tl.make_tensor_descriptor`: `Launch.descriptors` says how many, and
the launcher makes room for them in the plan's scratch.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from diglot.backends.plans import CALL, Plan, Scratch

# Relative, because mypy finds this folder under its name in the tree.
from .plan import ACCESS_BYTES, TYPE_NAMES, Launch, Operand, Part

DESCRIPTOR_BYTES = 128
MOST_DIMENSIONS = 5
MOST_BLOCK_ELEMENTS = 1 << 20  # Triton's limit
MOST_SIZE = (1 << 31) - 1  # kernels take sizes as 32-bit integers
MOST_STRIDE_BYTES = (1 << 40) - 1


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor that the host makes at each launch: a kernel's `tl.tensor_descriptor`.

    The hardware needs an address and strides that are multiples of 16 bytes, and a last stride of
    1. It takes one to five dimensions. A row of a block must have at least 16 bytes. A planner asks
    `Descriptor.fits`, and plans another kernel where it is False. It is False while a graph is
    compiled: addresses are unknown there, and PyTorch's `wrap_triton` takes no descriptors.

    Attributes:
        operand: the tensor. Its shape and strides are those of the descriptor.
        block_shape: sizes of the tile, powers of two.
        padding: the value of elements out of bounds: "zero", or "nan" for floating dtypes.
        part: where in scratch the tensor lies; None: where the operand does.

    Raises:
        ValueError: the operand or the padding does not fit.
    """

    operand: Operand
    block_shape: tuple[int, ...]
    padding: str = "zero"
    part: Part | None = None

    def __post_init__(self) -> None:
        reason = _why_not(self.operand, self.block_shape)
        if reason is not None:
            raise ValueError(f"a tensor descriptor of operand {self.operand.position}: {reason}")
        paddings = ("zero", "nan") if self.operand.dtype.is_floating_point else ("zero",)
        if self.padding not in paddings:
            raise ValueError(
                f"a tensor descriptor of {self.operand.dtype}: padding is {self.padding!r}, "
                f"must be one of {paddings}"
            )

    @staticmethod
    def fits(operand: Operand, block_shape: tuple[int, ...]) -> bool:
        """Whether the hardware takes a descriptor of this operand and tile."""
        return _why_not(operand, block_shape) is None

    @property
    def type_name(self) -> str:
        """Its type in a kernel's signature."""
        return f"tensordesc<{TYPE_NAMES[self.operand.dtype]}{list(self.block_shape)}>"

    def argument(self) -> Callable[[int], Any]:
        """The function that turns an address into an argument for Triton's launcher."""
        fixed = {
            "__slots__": (),
            "shape": self.operand.shape,
            "strides": self.operand.strides,
            "padding": self.padding,
        }
        return type("LaunchDescriptor", (_LaunchDescriptor,), fixed)

    def of_tensor(self, tensor: Tensor) -> TensorDescriptor:
        """The descriptor as Triton's interpreter takes it."""
        shape, strides = list(self.operand.shape), list(self.operand.strides)
        return TensorDescriptor(tensor, shape, strides, list(self.block_shape), self.padding)


def _why_not(operand: Operand, block_shape: tuple[int, ...]) -> str | None:
    """Why the hardware takes no descriptor of an operand; None if it does."""
    shape, strides, item = operand.shape, operand.strides, operand.element_size()
    if operand.address is None:
        return "its address is unknown, as while a graph is compiled; plan another kernel there"
    if not operand.is_aligned:
        return f"its address must be a multiple of {ACCESS_BYTES} bytes"
    if operand.dtype not in TYPE_NAMES or operand.dtype == torch.bool:
        return f"its dtype is {operand.dtype}"
    if not 1 <= len(shape) <= MOST_DIMENSIONS or len(block_shape) != len(shape):
        return (
            f"it has {len(shape)} dimensions and its block {len(block_shape)}; both must have the "
            f"same number, 1 to {MOST_DIMENSIONS}"
        )
    if not all(1 <= size <= MOST_SIZE for size in shape):
        return f"its shape is {shape}; sizes must be 1 to {MOST_SIZE}"
    steps = [stride * item for stride in strides[:-1]]
    if strides[-1] != 1 or any(s % ACCESS_BYTES or not 0 < s <= MOST_STRIDE_BYTES for s in steps):
        return (
            f"its strides are {strides}; the last must be 1, others a multiple of {ACCESS_BYTES} "
            "bytes, positive and below 2^40 bytes"
        )
    if any(size < 1 or size & (size - 1) for size in block_shape):
        return f"its block is {block_shape}; sizes must be powers of two"
    if block_shape[-1] * item < ACCESS_BYTES or math.prod(block_shape) > MOST_BLOCK_ELEMENTS:
        return (
            f"its block is {block_shape}; a row must have at least {ACCESS_BYTES} bytes, and the "
            f"block at most {MOST_BLOCK_ELEMENTS} elements"
        )
    return None


class _LaunchDescriptor:
    """A descriptor at an address, with the attributes of a `TensorDescriptor` that launchers read.

    That class needs a tensor, and checks it at each call; a plan was checked once.
    """

    __slots__ = ("address",)
    round_f32_to_tf32 = False

    def __init__(self, address: int) -> None:
        self.address = address

    @property
    def base(self) -> _LaunchDescriptor:
        return self

    def data_ptr(self) -> int:
        return self.address


def describe_addresses(pick: Callable[..., Any], launch: Launch) -> Callable[..., Any]:
    """Extends the function that picks a launch's addresses: it also turns them into descriptors."""
    makers = [
        (place, pointer.argument())
        for place, pointer in enumerate(launch.pointers)
        if isinstance(pointer, Descriptor)
    ]
    if not makers:
        return pick

    def pick_described(addresses: tuple[int | None, ...]) -> list[Any]:
        arguments = list(pick(addresses))
        for place, make in makers:
            arguments[place] = make(arguments[place])
        return arguments

    return pick_described


# --- descriptors that programs make ---------------------------------------------------------------


def with_room(made: Plan) -> Plan:
    """A plan whose scratch has room for the descriptors that its kernels make.

    Launches follow each other on one stream, so they share it.
    """
    room = max((_room_bytes(launch) for launch in made.launches), default=0)
    if not room:
        return made
    before = made.scratch or Scratch(0, 0, CALL)
    part = Part(torch.uint8, room).after(Part(torch.uint8, before.bytes))
    launches = tuple(
        dataclasses.replace(launch, room=part) if launch.descriptors else launch
        for launch in made.launches
    )
    return made._replace(launches=launches, scratch=before._replace(bytes=part.end))


def _room_bytes(launch: Launch) -> int:
    return launch.count * launch.num_ctas * launch.descriptors * DESCRIPTOR_BYTES


def needs_room(launch: Launch, metadata: Any) -> bool:
    """Whether a compiled kernel needs the room for descriptors that its launch has.

    Raises:
        ValueError: it takes more.
    """
    needed = metadata.global_scratch_size
    if needed > launch.descriptors * DESCRIPTOR_BYTES:
        raise ValueError(
            f"launching {launch.kernel.fn.__name__}: each program needs {needed} bytes of global "
            f"scratch, and its launch has room for {launch.descriptors} descriptors of "
            f"{DESCRIPTOR_BYTES} bytes; plan Launch(descriptors={-(-needed // DESCRIPTOR_BYTES)})"
        )
    return bool(needed)


def start_with_room(start: Callable[..., None], address: int, *arguments: Any) -> None:
    """Starts a kernel with room for its descriptors at an address.

    Triton's launcher takes global scratch from Triton's allocator alone. The allocator is a context
    variable. So the launch runs in a copy of the context that has an allocator of its own: the
    caller's allocator, and those of other threads, stay as they are.
    """
    contextvars.copy_context().run(_start_with_room, start, address, arguments)


def _start_with_room(start: Callable[..., None], address: int, arguments: tuple[Any, ...]) -> None:
    triton.set_allocator(lambda size, alignment, stream: address)
    start(*arguments)
