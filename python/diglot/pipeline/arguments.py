"""Checks of the arguments of `stream_map` and `stream_reduce`, before work starts."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from diglot.backends.registry import INTERPRET
from diglot.pipeline.host import HostArray


def is_array(given: Any) -> bool:
    """Whether a value is a NumPy array; NumPy need not be installed."""
    return not isinstance(given, torch.Tensor) and any(
        kind.__module__ == "numpy" and kind.__name__ == "ndarray" for kind in type(given).__mro__
    )


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> Any:
    """The same dtype in NumPy; None if it lacks one."""
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except TypeError:
        return None


def tensor_of(name: str, what: str, given: Any, writable: bool = False) -> torch.Tensor:
    """An input or output as a CPU tensor that shares its memory."""
    if isinstance(given, torch.Tensor):
        tensor = given
    elif is_array(given):
        if writable and not given.flags.writeable:
            raise ValueError(f"{name}: {what} is read-only")
        if any(kind.__name__ == "MaskedArray" for kind in type(given).__mro__):
            raise TypeError(f"{name}: {what} is a masked array, and its mask would be lost")
        if any(stride < 0 for stride in given.strides):
            raise ValueError(f"{name}: {what} has a negative stride: copy it first")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # read-only: nothing writes to inputs
            try:
                tensor = torch.from_numpy(given)
            except TypeError as error:
                raise TypeError(
                    f"{name}: {what} has a dtype that tensors lack, {given.dtype}"
                ) from error
            except ValueError as error:  # bytes in the other order, steps of parts of an element
                reason = str(error).partition("\n")[0]
                raise ValueError(f"{name}: {what} cannot be used: {reason}") from error
    else:
        raise TypeError(
            f"{name}: {what} must be a CPU tensor or a NumPy array, not a {type(given).__name__}"
        )
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: {what} must be in host memory, not on {tensor.device}")
    if tensor.is_nested or tensor.is_quantized:
        raise TypeError(f"{name}: {what} must have rows of numbers, and is nested or quantized")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: {what} must be dense, not {tensor.layout}")
    if tensor.dim() == 0:
        raise ValueError(f"{name}: {what} has no dimension 0 to cut into chunks")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name}: {what} requires grad, and nothing is differentiated here: detach it"
        )
    return tensor.detach()


def find_devices(name: str, given: Sequence[Any] | None) -> list[torch.device]:
    """The devices for the chunks."""
    if given is None:
        if INTERPRET or not torch.cuda.is_available():
            return [torch.device("cpu")]
        return [torch.device("cuda", torch.cuda.current_device())]
    if isinstance(given, (str, int, torch.device)):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}: devices must be a list of devices, not {given!r}")
    devices = []
    for one in given:
        try:
            device = torch.device("cuda", one) if isinstance(one, int) else torch.device(one)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{name}: {one!r} is no device: {error}") from None
        if device.type == "cuda":
            count = torch.cuda.device_count()
            current = torch.cuda.current_device() if count else 0
            index = current if device.index is None else device.index
            if index >= count:
                raise ValueError(f"{name}: there is no {device}: GPUs found: {count}")
            device = torch.device("cuda", index)
        elif device.type != "cpu":
            raise ValueError(f"{name}: devices are GPUs, or the CPU, not {device}")
        devices.append(device)
    if not devices:
        raise ValueError(f"{name}: devices must name at least one")
    if len(set(devices)) < len(devices):
        raise ValueError(f"{name}: a device is named twice: {list(map(str, devices))}")
    return devices


def check_outputs(
    name: str, rows: int, arrays: Sequence[HostArray], inputs: Sequence[HostArray]
) -> None:
    """Checks that outputs have a row for each row of the inputs, and memory of their own."""
    for i, array in enumerate(arrays):
        what = "out" if len(arrays) == 1 else f"out {i}"
        if array.rows != rows:
            raise ValueError(
                f"{name}: {what} must have a row for each of the inputs' {rows}, not {array.rows}"
            )
        if array.kind == "strided":
            raise ValueError(f"{name}: {what} must be contiguous")
        if array.is_read_only:
            raise ValueError(f"{name}: {what} is read-only: it is a map that cannot be written")
        for j, other in enumerate([*inputs, *arrays[:i]]):
            if overlap(array, other):
                which = f"input {j}" if j < len(inputs) else f"out {j - len(inputs)}"
                raise ValueError(
                    f"{name}: {what} shares memory with {which}: give it memory of its own"
                )


def check_fit(name: str, arrays: Sequence[HostArray], results: Sequence[Any]) -> None:
    """Checks that outputs are like the results of a chunk."""
    if len(arrays) != len(results):
        raise ValueError(f"{name}: fn returns {len(results)} tensors, and out has {len(arrays)}")
    for i, (array, result) in enumerate(zip(arrays, results, strict=True)):
        what = "out" if len(arrays) == 1 else f"out {i}"
        if array.row_shape != tuple(result.shape[1:]) or array.tensor.dtype != result.dtype:
            raise ValueError(
                f"{name}: {what} must have the result's shape and dtype, "
                f"{(array.rows, *result.shape[1:])} and {result.dtype}, not "
                f"{tuple(array.tensor.shape)} and {array.tensor.dtype}"
            )


def overlap(output: HostArray, other: HostArray) -> bool:
    """Whether an output may share memory with another array, or write a part of its file. Only
    begins and ends are compared, not gaps in between.
    """
    size, size_of_other = extent(output), extent(other)
    if size == 0 or size_of_other == 0:
        return False

    def meet(first: int, first_of_other: int) -> bool:
        return first < first_of_other + size_of_other and first_of_other < first + size

    if meet(output.address, other.address):
        return True
    a, b = output.place, other.place
    if a is None or b is None or not a.is_shared or a.identity != b.identity:
        return False
    return meet(a.offset, b.offset)


def extent(array: HostArray) -> int:
    """Bytes from an array's first element to its last."""
    if array.kind != "strided":
        return array.rows * array.row_bytes
    tensor = array.tensor
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
