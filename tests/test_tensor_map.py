"""Tensor maps in the interpreter: boxes are compared with NumPy, and every rule is broken once."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_maps import Tensor, build, places

WINDOW = 64 * 1024


@pytest.fixture(scope="module")
def library():
    return build()


def aligned(shape, dtype, generator, outer_padding=0):
    """An array at a multiple of 16 bytes, whose strides but the innermost are multiples of 16."""
    itemsize = np.dtype(dtype).itemsize
    row = -(-shape[-1] * itemsize // 16) * 16 + 16 * outer_padding
    strides, step = [itemsize], row
    for extent in reversed(shape[:-1]):
        strides.append(step)
        step *= extent
    memory = np.empty(step + 32, np.uint8)
    memory[:] = generator.integers(0, 256, memory.size)
    start = -memory.ctypes.data % 16
    array = np.ndarray(shape, dtype, memory, start, tuple(reversed(strides)))
    array[...] = generator.integers(0, 200, shape)
    return array, tuple(strides[1:]), memory


# Type, shape with the outermost dimension first; box, element strides and coordinates with the
# innermost first; swizzle.
CASES = [
    ("uint8", (40,), (16,), (1,), (16,), 0),
    ("uint8", (40,), (256,), (1,), (-96,), 0),
    ("float32", (9, 30), (8, 4), (1, 1), (-4, -2), 32),
    ("float32", (9, 30), (32, 5), (1, 1), (4, 6), 128),
    ("uint16", (20, 64), (64, 16), (1, 1), (0, 0), 128),
    ("uint16", (20, 70), (64, 16), (1, 1), (16, -5), 128),
    ("uint16", (20, 70), (32, 16), (1, 1), (48, 12), 64),
    ("uint16", (20, 70), (16, 24), (1, 1), (56, 0), 32),
    ("float64", (3, 5, 12), (8, 3, 2), (1, 1, 1), (-2, 3, 2), 64),
    ("int32", (4, 7, 9), (12, 5, 3), (1, 2, 3), (4, 1, 0), 0),
    ("uint16", (2, 3, 6, 40), (32, 4, 2, 2), (1, 3, 1, 2), (16, -2, 2, 1), 64),
    ("int64", (2, 3, 2, 4, 6), (4, 3, 2, 2, 2), (1, 1, 2, 1, 1), (2, -1, 1, 2, -1), 32),
    ("uint8", (2, 3, 2, 4, 200), (128, 3, 2, 2, 2), (1, 8, 1, 2, 1), (96, 1, 0, -1, 1), 128),
    ("uint32", (6, 8), (4, 2), (1, 1), (2**31 - 4, 2**31 - 2), 0),
    ("uint32", (6, 8), (4, 2), (1, 1), (-(2**31), -(2**31)), 0),
]


def encoded(library, case, generator):
    kind, shape, box, steps, begin, span = case
    array, strides, memory = aligned(shape, kind, generator, outer_padding=1)
    tensor = Tensor(kind, array.ctypes.data, shape[::-1], strides, box, steps, span)
    message, map_ = library.encode(tensor)
    assert message == ""
    assert library.is_decoded(tensor, map_)
    where = places(array, begin, box, steps, 2048, span)
    assert library.functions.box_bytes(map_) == len(where) * array.itemsize
    return array, memory, map_, begin, where


@pytest.mark.parametrize("case", CASES)
def test_load(library, case):
    generator = np.random.default_rng(0)
    array, _, map_, begin, where = encoded(library, case, generator)
    window = generator.integers(0, 256, WINDOW, np.uint8)
    expected = window.copy()
    for index, address in where:
        value = np.zeros((), array.dtype) if index is None else array[index]
        expected[address : address + array.itemsize] = np.frombuffer(value.tobytes(), np.uint8)
    message, moved = library.move(map_, "load", begin, 2048, window)
    assert message == ""
    assert moved == len(where) * array.itemsize  # of the whole box, wherever it lies
    assert np.array_equal(window, expected)


@pytest.mark.parametrize("case", CASES)
def test_store(library, case):
    generator = np.random.default_rng(0)
    array, memory, map_, begin, where = encoded(library, case, generator)
    window = generator.integers(0, 256, WINDOW, np.uint8)
    before, kept = memory.copy(), window.copy()
    message, moved = library.move(map_, "store", begin, 2048, window)
    if min(begin) < 0:  # PTX allows it only for loads
        assert "only a load may begin at a negative one" in message
        return
    assert message == ""
    assert moved == len(where) * array.itemsize
    after = memory.copy()
    memory[:] = before
    for index, address in where:
        if index is not None:
            array[index] = window[address : address + array.itemsize].view(array.dtype)[0]
    assert np.array_equal(after, memory)
    assert np.array_equal(window, kept)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", "tfloat32"])
def test_fill_with_nan(library, kind):
    held = {"bfloat16": "uint16", "tfloat32": "float32"}.get(kind, kind)
    array, strides, _ = aligned((4, 16), held, np.random.default_rng(0))
    array[...] = 1
    width = 32 // array.itemsize
    tensor = Tensor(kind, array.ctypes.data, (16, 4), strides, (width, 2), fill_nan=True)
    message, map_ = library.encode(tensor)
    assert message == ""
    window = np.zeros(WINDOW, np.uint8)
    assert library.move(map_, "load", (16 - width // 2, 3), 128, window) == ("", 64)
    values = window[128 : 128 + 64].view(held).reshape(2, width)
    if kind == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    is_outside = np.ones((2, width), bool)
    is_outside[0, : width // 2] = False
    assert np.array_equal(np.isnan(values), is_outside)


REDUCED = {
    "add": ["uint32", "int32", "uint64", "float16", "bfloat16", "float32"],
    "min": ["uint32", "int32", "uint64", "int64", "float16", "bfloat16"],
    "max": ["uint32", "int32", "uint64", "int64", "float16", "bfloat16"],
    "and": ["uint32", "int32", "uint64", "int64"],
    "or": ["uint32", "int32", "uint64", "int64"],
    "xor": ["uint32", "int32", "uint64", "int64"],
}
COMBINE = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@pytest.mark.parametrize("operation", REDUCED)
@pytest.mark.parametrize("kind", ["uint16", "float64", "int64", *REDUCED["add"]])
def test_reductions(library, operation, kind):
    generator = np.random.default_rng(0)
    held = "uint16" if kind == "bfloat16" else kind
    array, strides, memory = aligned((6, 32), held, generator)
    is_float = kind in ("float16", "float32", "bfloat16")
    span = 128 if array.itemsize == 8 else 64
    width = span // array.itemsize

    def values(count):
        if not is_float:
            return generator.integers(0, 2**63, count, np.uint64).astype(held)
        normal = generator.standard_normal(count).astype(np.float32)
        bits = (normal.view(np.uint32) >> 16).astype(np.uint16)
        return bits if kind == "bfloat16" else normal.astype(held)

    def numbers(bits):
        return (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else bits

    array[...] = values(array.size).reshape(array.shape)
    window = np.zeros(WINDOW, np.uint8)
    window.view(held)[:] = values(window.size // array.itemsize)
    tensor = Tensor(kind, array.ctypes.data, (32, 6), strides, (width, 4), swizzle=span)
    message, map_ = library.encode(tensor)
    assert message == ""
    begin = (32 - width // 2, 4)
    expected = array.copy()
    message, _ = library.move(map_, operation, begin, 1024, window)
    if kind not in REDUCED[operation]:
        assert message == f'no reduction "{operation}" is of type {kind}'
        assert np.array_equal(array, expected)
        return
    assert message == ""
    for index, address in places(array, begin, (width, 4), (1, 1), 1024, span):
        if index is None:
            continue
        other = window[address : address + array.itemsize].view(held)
        with np.errstate(over="ignore"):
            combined = COMBINE[operation](numbers(expected[index][None]), numbers(other))[0]
        if kind == "bfloat16":  # to nearest, ties to even
            bits = int(np.float32(combined).view(np.uint32))
            combined = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        expected[index] = combined
    assert np.array_equal(array, expected)
    assert memory is not None


def test_what_is_no_map(library):
    array, strides, _ = aligned((8, 32), "float32", np.random.default_rng(0))
    window = np.zeros(WINDOW, np.uint8)
    nothing = type(library.encode(Tensor("uint8", 16, (16,), (), (16,)))[1])()
    assert library.move(nothing, "load", (0, 0), 0, window)[0] == "it is no tensor map"
    _, map_ = library.encode(Tensor("float32", array.ctypes.data, (32, 8), strides, (32, 8)))
    for position in range(16, 96, 7):
        changed = type(map_).from_buffer_copy(map_)
        changed[position] = bytes([changed[position][0] ^ 1])
        assert library.move(changed, "load", (0, 0), 0, window)[0] == "it is no tensor map"


@pytest.mark.parametrize(
    ("span", "shared", "says"),
    [
        (0, 64, "the destination is at shared address 64, no multiple of 128"),
        (32, 128, "no multiple of 256, after which a 32-byte swizzle repeats"),
        (64, 256, "no multiple of 512, after which a 64-byte swizzle repeats"),
        (128, 512, "no multiple of 1024, after which a 128-byte swizzle repeats"),
    ],
)
def test_misaligned_boxes(library, span, shared, says):
    array, strides, _ = aligned((8, 32), "float32", np.random.default_rng(0))
    box = ((span or 128) // 4, 8)
    tensor = Tensor("float32", array.ctypes.data, (32, 8), strides, box, swizzle=span)
    message, map_ = library.encode(tensor)
    assert message == ""
    window = np.zeros(WINDOW, np.uint8)
    assert says in library.move(map_, "load", (0, 0), shared, window)[0]
    assert library.move(map_, "load", (0, 0), 8 * span, window)[0] == ""
    wrong_rank = library.move(map_, "load", (0, 0, 0), 8 * span, window)[0]
    assert wrong_rank == "3 coordinates are given, and the tensor map has 2 dimensions"


def test_a_box_narrower_than_its_swizzle(library):
    array, strides, _ = aligned((8, 32), "float32", np.random.default_rng(0))
    tensor = Tensor("float32", array.ctypes.data, (32, 8), strides, (16, 8), swizzle=128)
    message, map_ = library.encode(tensor)
    assert message == ""
    said = library.move(map_, "load", (0, 0), 0, np.zeros(WINDOW, np.uint8))[0]
    assert said.startswith(
        "the box is 64 bytes wide in the innermost dimension, and its swizzle 128"
    )


GOOD = {"type": "float32", "address": 4096, "shape": (32, 8), "strides": (128,), "box": (32, 8)}
BAD = [
    ({"shape": (), "strides": (), "box": ()}, "the shape has 0 dimensions, and must have 1 to 5"),
    (
        {"shape": (4,) * 6, "strides": (16,) * 5, "box": (4,) * 6},
        "the shape has 6 dimensions, and must have 1 to 5",
    ),
    ({"strides": ()}, "0 strides are given for 2 dimensions"),
    ({"box": (32,)}, "the box has 1 dimensions, and the shape 2"),
    ({"element_strides": (1,)}, "1 element strides are given for 2 dimensions"),
    ({"address": 0}, "the address is null"),
    ({"address": 4104}, "the address 4104 is no multiple of 16"),
    ({"shape": (32, 0)}, "the shape has 0 elements in dimension 1, and must have 1 to 2^32"),
    ({"shape": (2**32 + 1, 8)}, "the shape has 4294967297 elements in dimension 0"),
    ({"strides": (120,)}, "the stride is 120 bytes in dimension 1, no multiple of 16"),
    ({"strides": (2**40,)}, "the stride is 1099511627776 bytes in dimension 1, and must be less"),
    ({"box": (0, 8)}, "the box has 0 elements in dimension 0, and must have 1 to 256"),
    ({"box": (32, 257)}, "the box has 257 elements in dimension 1, and must have 1 to 256"),
    ({"box": (3, 8)}, "the box is 12 bytes wide in the innermost dimension, no multiple of 16"),
    (
        {"swizzle": 64},
        "the box is 128 bytes wide in the innermost dimension, and a 64-byte swizzle allows 64",
    ),
    ({"element_strides": (1, 0)}, "the element stride is 0 in dimension 1, and must be 1 to 8"),
    ({"element_strides": (1, 9)}, "the element stride is 9 in dimension 1, and must be 1 to 8"),
    ({"type": "int32", "fill_nan": True}, "elements of type int32 cannot be filled with NaN"),
    (
        {"bytes": 1020},
        "the buffer has 1020 bytes from the address on, and the shape needs 1024",
    ),
    (
        {"shape": (2**32, 2**32), "strides": (2**40 - 16,), "bytes": 1024},
        "the buffer has 1024 bytes from the address on, and the shape needs more than 2^64",
    ),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_bad_maps(library, change, says):
    message, _ = library.encode(Tensor(**(GOOD | change)))
    assert message.startswith(f"encoding a tensor map: {says}"), message


@pytest.mark.parametrize(
    ("member", "number", "says"),
    [
        ("type", 13, "type of number 13"),
        ("type", 77, "type of number 77"),
        ("swizzle", 4, "swizzle of number 4"),
        ("l2_promotion", 4, "L2 promotion of number 4"),
        ("fill", 2, "fill of number 2"),
    ],
)
def test_a_number_that_names_nothing(library, member, number, says):
    description = Tensor(**GOOD).description()
    setattr(description, member, number)
    message, _ = library.encode_description(description)
    assert message == f"encoding a tensor map: there is no {says}"


def test_limits_that_are_allowed(library):
    for change in (
        {"shape": (2**32, 8)},
        {"strides": (2**40 - 16,)},
        {"box": (4, 256)},
        {"element_strides": (8, 8)},
        {"bytes": 1024},
        {"shape": (30, 8), "bytes": 1016},  # the last row ends before its stride
    ):
        assert library.encode(Tensor(**(GOOD | change)))[0] == ""


def test_a_launch_s_arguments_tell_the_size(library):
    tensor = Tensor(**GOOD)
    assert library.encode(tensor, argument_bytes=1024)[0] == ""
    assert "has 1008 bytes from the address on" in library.encode(tensor, argument_bytes=1008)[0]
    assert library.encode(tensor)[0] == ""


def test_maps_are_kept_by_all_that_decides_them(library):
    """More than are kept, and each differs from the last in one number."""
    seen = {}
    for turn in range(2):
        for change in (
            *({"address": 4096 + 16 * i} for i in range(300)),
            {"shape": (31, 8)},
            {"strides": (144,)},
            {"box": (16, 8)},
            {"element_strides": (1, 2)},
            {"swizzle": 128},
            {"fill_nan": True},
            {"type": "int32"},
        ):
            tensor = Tensor(**(GOOD | change))
            message, map_ = library.encode(tensor)
            assert message == ""
            assert library.is_decoded(tensor, map_)
            assert seen.setdefault(str(change), map_.raw) == map_.raw, turn
    assert len(set(seen.values())) == len(seen)
