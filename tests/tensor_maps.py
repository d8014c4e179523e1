"""Tensor maps through ctypes: planted/tensor_maps.cu, and a NumPy oracle of what it moves."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from planted.library import ROOT, build_interpreted

TYPES = [
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float32_ftz",
    "tfloat32",
    "tfloat32_ftz",
]
SPANS = {0: 0, 32: 1, 64: 2, 128: 3}
MOVES = ["load", "store", "add", "min", "max", "and", "or", "xor"]
MOST = 6


class Description(ctypes.Structure):
    """As in planted/tensor_maps.cu."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("strides_given", ctypes.c_uint32),
        ("box_rank", ctypes.c_uint32),
        ("element_strides_given", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
        ("shape", ctypes.c_uint64 * MOST),
        ("strides", ctypes.c_uint64 * MOST),
        ("box", ctypes.c_uint32 * MOST),
        ("element_strides", ctypes.c_uint32 * MOST),
        ("swizzle", ctypes.c_uint32),
        ("l2_promotion", ctypes.c_uint32),
        ("fill", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
    )


@dataclass
class Tensor:
    """What a map is encoded from, innermost dimension first, as in TensorDescription."""

    type: str
    address: int
    shape: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    element_strides: Sequence[int] = field(default_factory=tuple)
    swizzle: int = 0
    fill_nan: bool = False
    bytes: int = 0

    def description(self) -> Description:
        return Description(
            TYPES.index(self.type),
            len(self.shape),
            len(self.strides),
            len(self.box),
            len(self.element_strides),
            self.address,
            tuple(self.shape),
            tuple(self.strides),
            tuple(self.box),
            tuple(self.element_strides),
            SPANS[self.swizzle],
            0,
            self.fill_nan,
            self.bytes,
        )


class Library:
    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.functions.encode.restype = ctypes.c_char_p
        self.functions.move.restype = ctypes.c_char_p
        self.functions.is_decoded.restype = ctypes.c_bool

    def encode(self, tensor: Tensor, argument_bytes: int = 0) -> tuple[str, ctypes.Array]:
        """What went wrong, or "", and the map."""
        encoded = (ctypes.c_char * 128)()
        message = self.functions.encode(
            ctypes.byref(tensor.description()), ctypes.c_uint64(argument_bytes), encoded
        )
        return message.decode(), encoded

    def is_decoded(self, tensor: Tensor, encoded: ctypes.Array) -> bool:
        """Whether a map is decoded to what it was encoded from."""
        return self.functions.is_decoded(ctypes.byref(tensor.description()), encoded)

    def move(
        self,
        encoded: ctypes.Array,
        what: str,
        begin: Sequence[int],
        shared: int,
        window: np.ndarray,
    ) -> tuple[str, int]:
        """What went wrong, or "", and how many bytes were moved."""
        moved = ctypes.c_uint32()
        message = self.functions.move(
            encoded,
            (ctypes.c_int32 * len(begin))(*begin),
            len(begin),
            ctypes.c_uint32(shared),
            MOVES.index(what),
            window.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(moved),
        )
        return message.decode(), moved.value


def build() -> Library:
    return Library(build_interpreted(ROOT / "tests/planted/tensor_maps.cu"))


def swizzled(address: int, span: int) -> int:
    """CuTe's Swizzle<N, 4, 3>: the N bits from bit 4 are combined with those from bit 7."""
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[span]
    return address ^ ((address >> 7) & ((1 << bits) - 1)) << 4


def places(
    array: np.ndarray,
    begin: Sequence[int],
    box: Sequence[int],
    steps: Sequence[int],
    shared: int,
    span: int,
) -> list[tuple[tuple[int, ...] | None, int]]:
    """For each element of a box its index in the array, or None, and its shared address."""
    rank = array.ndim
    taken = [box[0], *(-(-box[d] // steps[d]) for d in range(1, rank))]
    result = []
    outer = [range(count) for count in reversed(taken)]
    for number, index in enumerate(itertools.product(*outer)):
        at = tuple(
            begin[d] + index[-1 - d] * (steps[d] if d > 0 else 1) for d in reversed(range(rank))
        )
        inside = all(0 <= at[i] < array.shape[i] for i in range(rank))
        result.append((at if inside else None, swizzled(shared + number * array.itemsize, span)))
    return result
