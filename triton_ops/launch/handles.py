"""Handles to compiled kernels on a GPU, and their start: all the work of a warm call is here."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from diglot.backends.driver import driver, relaxed_capture
from diglot.backends.plans import Plan, Scratch

# Relative, because mypy finds this folder under its name in the tree.
from .descriptors import Descriptor, describe_addresses, needs_room, start_with_room
from .plan import SCRATCH_BYTES, Device, Launch, Operand, Part, Specialization, value_of

_handles: dict[tuple[Any, ...], Any] = {}


def find_handle(specialization: Specialization, index: int) -> Any:
    """The handle to a compiled kernel on the current device."""
    # A JITFunction hashes its source.
    key = (specialization.kernel.fn, index, *list(vars(specialization).values())[1:])
    handle = _handles.get(key)
    if handle is None:
        handle = specialization.compile(triton.runtime.driver.active.get_current_target())
        with relaxed_capture():
            handle._init_handles()
        _handles[key] = handle
    return handle


def occupancy(handle: Any, device: Device) -> int:
    """How many programs a multiprocessor runs at once."""
    if not device.multiprocessors:
        raise RuntimeError(
            "this device launches no kernel co-operatively, so that programs could wait for each "
            "other"
        )
    blocks = ctypes.c_int()
    status = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks),
        ctypes.c_void_p(handle.function),
        32 * handle.metadata.num_warps,
        ctypes.c_size_t(handle.metadata.shared),
    )
    if status != 0:
        raise RuntimeError(f"asking for a kernel's occupancy: CUDA error {status}")
    return blocks.value


def runner_of(made: Plan, handles: list[Any], index: int) -> Callable[..., str | Scratch]:
    """The function that runs a plan on the GPU with this index."""
    parts = _parts(made)
    offsets = [part.offset for part in parts]
    starts = [
        _starter(launch, handle, parts)
        for launch, handle in zip(made.launches, handles, strict=True)
    ]
    variant, scratch_needed = made.variant, made.scratch
    current_device, current_stream = (
        torch._C._cuda_getDevice,
        torch._C._cuda_getCurrentRawStream,
    )

    def run(
        addresses: tuple[int | None, ...], scratch: Tensor | None, unseen: tuple[Any, ...]
    ) -> str | Scratch:
        if scratch_needed is not None:
            if scratch is None:
                return scratch_needed
            first = check_scratch(scratch, scratch_needed, SCRATCH_BYTES)
            addresses = (*addresses, *[first + offset for offset in offsets])
        if current_device() != index:
            with torch.cuda.device(index):
                stream = current_stream(index)
                for start in starts:
                    start(addresses, stream, unseen)
        else:
            stream = current_stream(index)
            for start in starts:
                start(addresses, stream, unseen)
        return variant

    return run


def _parts(made: Plan) -> list[Part]:
    """The parts of scratch that a plan's launches use."""
    pointers = [p for launch in made.launches for p in (*launch.pointers, launch.room)]
    parts = [p.part if isinstance(p, Descriptor) else p for p in pointers]
    return list(dict.fromkeys(part for part in parts if isinstance(part, Part)))


def check_scratch(scratch: Tensor, needed: Scratch, alignment: int) -> int:
    """The address of scratch; an error if it is too small or misaligned."""
    address = scratch.data_ptr()
    if scratch.numel() < needed.bytes or address % alignment:
        raise ValueError(
            f"scratch has {scratch.numel()} bytes from address {address} on; {needed.bytes} are "
            f"needed, from a multiple of {alignment} on"
        )
    return address


def _starter(launch: Launch, handle: Any, parts: list[Part]) -> Callable[..., None]:
    """The function that starts a launch with the addresses of operands and parts of scratch."""
    runtime = knobs.runtime
    start, function, metadata = handle.run, handle.function, handle.packed_metadata
    x, y, z = launch.axes
    places = [_place(pointer, parts) for pointer in launch.pointers]
    # A getter of one item makes no tuple.
    pick: Any = operator.itemgetter(*places) if len(places) > 1 else lambda a: (a[places[0]],)
    pick = describe_addresses(pick, launch)
    make = launch.numbers
    scalars = tuple(map(value_of, launch.scalars))
    constants = launch.all_constants()
    fixed = scalars + constants

    def run(addresses: tuple[int | None, ...], stream: int, unseen: tuple[Any, ...]) -> None:
        # A chain is empty unless a profiler has added a hook, and then not worth a call.
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            rest = fixed if make is None else (*scalars, *make(*unseen), *constants)
            arguments = (*pick(addresses), *rest)
            described = handle.launch_metadata((x, y, z), stream, *arguments)
            start(x, y, z, stream, function, metadata, described, enter, leave, *arguments)
        elif make is None:
            start(x, y, z, stream, function, metadata, None, None, None, *pick(addresses), *fixed)
        else:
            start(
                x, y, z, stream, function, metadata, None, None, None,
                *pick(addresses), *scalars, *make(*unseen), *constants,
            )  # fmt: skip

    if not needs_room(launch, handle.metadata):
        return run
    room = _place(launch.room, parts)
    return lambda addresses, *rest: start_with_room(run, addresses[room], addresses, *rest)


def _place(pointer: Operand | Part | Descriptor | None, parts: list[Part]) -> int:
    """The index of a pointer's address among the addresses. The first one, for absent pointers, is
    None.
    """
    if pointer is None:
        return 0
    if isinstance(pointer, Descriptor):
        pointer = pointer.part or pointer.operand
    if isinstance(pointer, Part):
        return parts.index(pointer) - len(parts)
    return pointer.position + 1
