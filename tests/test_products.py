"""The interpreter's arithmetic of wgmma against NumPy: layouts, descriptors, numbers, products."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import subprocess

import numpy as np
import pytest
import torch
from planted.library import ROOT

BF16, FP16, TF32, E4M3, E5M2 = range(5)
K_MAJOR, MN_MAJOR = range(2)
TORCH_TYPES = {
    BF16: torch.bfloat16,
    FP16: torch.float16,
    TF32: torch.float32,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
BYTES = {BF16: 2, FP16: 2, TF32: 4, E4M3: 1, E5M2: 1}
SWIZZLES = range(4)  # none, 32, 64, 128 bytes
EXTENTS = [8, 16, 64, 96, 128, 256]
WINDOW = 1 << 18


@pytest.fixture(scope="module")
def library():
    """Compiled alone: the arithmetic needs nothing else of the interpreter."""
    sources = [ROOT / "tests/planted/products.cpp", ROOT / "csrc/interpreter/products.cpp"]
    headers = [
        ROOT / "csrc/interpreter/products.h",
        *(ROOT / "csrc/include/diglot/mma").glob("*.h"),
    ]
    path = ROOT / "build/planted/products.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(file.stat().st_mtime for file in [*sources, *headers])
        if not path.exists() or path.stat().st_mtime < newest:
            flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared"]
            includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/include'}"]
            subprocess.run(["g++", *flags, *includes, *sources, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    library.tile_descriptor.restype = ctypes.c_uint64
    library.descriptor_fault.restype = ctypes.c_char_p
    return library


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def tile_offsets(library, type_, major, swizzle, extent):
    """The tile's bytes, and where its elements lie, by index of M or N and of K."""
    offsets = np.empty((extent, 4 * 32 // BYTES[type_]), np.uint32)
    size = library.tile_offsets(type_, major, swizzle, extent, pointer(offsets))
    return size, offsets


def descriptor_of(library, type_, major, swizzle, extent, address, k):
    return library.tile_descriptor(type_, major, swizzle, extent, address, 0, k)


def coordinates(shape, strides, size):
    """CuTe's layout of one dimension: an index counts through the shape, first part first."""
    index, result = np.arange(size), 0
    for length, stride in zip(shape, strides, strict=False):
        length = length or size
        result = result + index % length * stride
        index = index // length
    return result


def canonical(bits, major, size, extent, depth):
    """Addresses by PTX's canonical layouts, as CUTLASS writes them (mma_traits_sm90_gmma.hpp)."""
    start, leading, stride = ((bits >> at & 0x3FFF) * 16 for at in (0, 16, 32))
    width = {0: 1, 1: 8, 2: 4, 3: 2}[bits >> 62]
    chunk = 16 // size
    if major == K_MAJOR:
        lines = coordinates((8, None), (width * 16, stride), extent)
        columns = coordinates((chunk, 2), (size, leading if width == 1 else 16), depth)
        address = start + lines[:, None] + columns[None, :]
    else:
        if width == 1:
            lines = coordinates((chunk, None), (size, stride), extent)
            columns = coordinates((8, None), (16, leading), depth)
        else:
            lines = coordinates((chunk, width, None), (size, 16, leading), extent)
            columns = coordinates((8, None), (width * 16, stride), depth)
        address = start + lines[:, None] + columns[None, :]
    mask = (width - 1) << 7  # Swizzle<log2(width), 4, 3>
    return address ^ (address & mask) >> 3


def forms():
    for type_, major in [(t, K_MAJOR) for t in range(5)] + [(BF16, MN_MAJOR), (FP16, MN_MAJOR)]:
        yield from itertools.product([type_], [major], SWIZZLES, EXTENTS)


@pytest.mark.parametrize(("type_", "major", "swizzle", "extent"), list(forms()))
def test_tiles_and_descriptors_have_the_canonical_layouts(library, type_, major, swizzle, extent):
    size, offsets = tile_offsets(library, type_, major, swizzle, extent)
    assert len(np.unique(offsets)) == offsets.size
    assert offsets.max() + BYTES[type_] <= size
    depth = 32 // BYTES[type_]
    for k in range(0, offsets.shape[1], depth):
        bits = descriptor_of(library, type_, major, swizzle, extent, 3072, k)
        assert library.descriptor_fault(ctypes.c_uint64(bits)) == b""
        expected = canonical(bits, major, BYTES[type_], extent, depth)
        np.testing.assert_array_equal(3072 + offsets[:, k : k + depth], expected)
        for mn, inner in [(0, 0), (extent - 1, depth - 1), (extent // 2, depth // 2)]:
            address = library.element_address(ctypes.c_uint64(bits), major, BYTES[type_], mn, inner)
            assert address == expected[mn, inner]


def test_a_base_offset_moves_the_pattern(library):
    """The layout of a tile whose pattern begins at 1024, seen from 1024 + 3 * 128."""
    moved = 1024 + 3 * 128
    at_0, at_3 = (
        library.tile_descriptor(BF16, K_MAJOR, 3, 64, address, 0, 0) for address in (1024, moved)
    )
    assert b"base offset" in library.descriptor_fault(ctypes.c_uint64(at_3))
    at_3 |= 3 << 49
    assert library.descriptor_fault(ctypes.c_uint64(at_3)) == b""
    for mn, k in itertools.product(range(64), range(16)):
        first, second = (
            library.element_address(ctypes.c_uint64(bits), K_MAJOR, 2, mn, k)
            for bits in (at_0, at_3)
        )
        assert second - first == moved - 1024


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1 << 14, b"reserved bits"),
        (1 << 30, b"reserved bits"),
        (1 << 47, b"reserved bits"),
        (1 << 55, b"reserved bits"),
        (1 << 62 | 1152 >> 4, b"0x480, is not in the first line"),
        (2 << 62 | 1024 + 64 >> 4, b"multiple of 512"),
        (3 << 62 | 1024 + 32 >> 4, b"multiple of 256"),
        (1 << 62 | 1024 + 96 >> 4, b""),
        (1152 >> 4, b""),
    ],
)
def test_faults_of_descriptors(library, bits, message):
    answer = library.descriptor_fault(ctypes.c_uint64(bits))
    assert answer == message if message == b"" else message in answer


@pytest.mark.parametrize("type_", range(5))
def test_numbers(library, type_):
    """Every bit pattern of 8 and 16 bits; of TF32 random ones, where 13 bits are ignored."""
    size = BYTES[type_]
    if size == 4:
        bits = np.random.default_rng(0).integers(0, 1 << 32, 10_000, np.uint32)
        expected = (bits & 0xFFFFE000).view(np.float32)
    else:
        bits = np.arange(1 << 8 * size, dtype=np.uint8 if size == 1 else np.uint16)
        signed = torch.from_numpy(bits.view(np.int8 if size == 1 else np.int16))
        expected = signed.view(TORCH_TYPES[type_]).float().numpy()
    numbers = np.empty(len(bits), np.float32)
    library.decode_numbers(type_, pointer(bits), len(bits), pointer(numbers))
    np.testing.assert_array_equal(numbers, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(numbers)[is_number], np.signbit(expected)[is_number])


# CuTe's layouts of threads and values: an index of the matrix, of 64 rows, by both.
FRAGMENTS = {
    "sums": (FP16, (2, 2, None), (64, 8, 512), 128, 128),
    "16 bits": (BF16, (2, 2, 2), (64, 8, 512), 128, 8),
    "8 bits": (E4M3, (4, 2, 2), (64, 8, 1024), 256, 16),
    "32 bits": (TF32, (2, 2), (8, 256), 64, 4),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments(library, name):
    type_, shape, strides, lane_stride, values = FRAGMENTS[name]
    threads = coordinates((4, 8, 4), (lane_stride, 1, 16), 128)
    expected = threads[:, None] + coordinates(shape, strides, values)[None, :]
    assert len(np.unique(expected)) == expected.size
    row, column = ctypes.c_int(), ctypes.c_int()
    for thread, i in itertools.product(range(128), range(values)):
        library.place_in_fragment(type_, thread, i, ctypes.byref(row), ctypes.byref(column))
        assert row.value + 64 * column.value == expected[thread, i]


def fragment_of(matrix, shape, strides, lane_stride, values):
    threads = coordinates((4, 8, 4), (lane_stride, 1, 16), 128)
    places = threads[:, None] + coordinates(shape, strides, values)[None, :]
    return np.ascontiguousarray(matrix[places % 64, places // 64])


def bits_of(numbers, type_):
    """A float32 array's numbers in another type: their bits, and what they are then."""
    rounded = torch.from_numpy(numbers).to(TORCH_TYPES[type_])
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[BYTES[type_]]
    return rounded.view(integers).numpy(), rounded.float().numpy()


def multiply(
    library,
    type_a,
    type_b,
    n,
    a,
    b,
    d,
    *,
    majors=(0, 0),
    swizzle=3,
    signs=(0, 0),
    in_registers=False,
    accumulate=True,
    truncates=False,
):
    """A product of 64 x K and K x n by as many instructions as it takes; `b` is n x K."""
    window = np.random.default_rng(1).integers(0, 256, WINDOW, np.uint8)
    addresses = 1024, 1024 + 64 * 1024
    for matrix, type_, major, address in zip(
        (a, b), (type_a, type_b), majors, addresses, strict=False
    ):
        _, offsets = tile_offsets(library, type_, major, swizzle, matrix.shape[0])
        window.view(matrix.dtype)[(address + offsets) // BYTES[type_]] = matrix
    depth = 32 // BYTES[type_a]
    fragments = fragment_of(d, (2, 2, None), (64, 8, 512), 128, n // 2)
    form = np.array([type_a, type_b, *majors, *signs], np.int32)
    for k in range(0, a.shape[1], depth):
        registers = None
        if in_registers:
            name = {1: "8 bits", 2: "16 bits", 4: "32 bits"}[BYTES[type_a]]
            held = fragment_of(a[:, k : k + depth], *FRAGMENTS[name][1:])
            registers = pointer(held)
        library.multiply(
            pointer(form), n, registers,
            ctypes.c_uint64(descriptor_of(library, type_a, majors[0], swizzle, 64, 1024, k)),
            ctypes.c_uint64(descriptor_of(library, type_b, majors[1], swizzle, n, addresses[1], k)),
            pointer(window), int(accumulate or k > 0), int(truncates), pointer(fragments),
        )  # fmt: skip
    result = np.empty((64, n), np.float32)
    threads = coordinates((4, 8, 4), (128, 1, 16), 128)
    places = threads[:, None] + coordinates((2, 2, None), (64, 8, 512), n // 2)[None, :]
    result[places % 64, places // 64] = fragments
    return result


def operands(type_a, type_b, n, low=-8, high=9):
    """Small integers, whose sums are exact."""
    generator = np.random.default_rng(n + 7 * type_a)
    depth = 4 * 32 // BYTES[type_a]
    draw = lambda *shape: generator.integers(low, high, shape).astype(np.float32)  # noqa: E731
    return draw(64, depth), draw(n, depth), draw(64, n)


PRODUCTS = [
    *((t, t, majors) for t in (BF16, FP16) for majors in itertools.product((0, 1), repeat=2)),
    *((t, t, (0, 0)) for t in (TF32, E4M3, E5M2)),
    (E4M3, E5M2, (0, 0)),
    (E5M2, E4M3, (0, 0)),
]


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize(("type_a", "type_b", "majors"), PRODUCTS)
def test_products_of_integers_are_exact(library, type_a, type_b, majors, n):
    a, b, d = operands(type_a, type_b, n)
    (bits_a, a), (bits_b, b) = bits_of(a, type_a), bits_of(b, type_b)
    for swizzle in SWIZZLES:
        result = multiply(
            library, type_a, type_b, n, bits_a, bits_b, d, majors=majors, swizzle=swizzle
        )
        np.testing.assert_array_equal(result, a @ b.T + d)
    if majors[0] == K_MAJOR:
        result = multiply(
            library, type_a, type_b, n, bits_a, bits_b, d, majors=majors, in_registers=True
        )
        np.testing.assert_array_equal(result, a @ b.T + d)


def test_signs_and_the_first_product(library):
    a, b, d = operands(BF16, BF16, 64)
    d[:] = np.nan
    bits_a, bits_b = bits_of(a, BF16)[0], bits_of(b, BF16)[0]
    for signs in itertools.product((0, 1), repeat=2):
        result = multiply(library, BF16, BF16, 64, bits_a, bits_b, d, signs=signs, accumulate=False)
        np.testing.assert_array_equal(result, (a @ b.T) * (-1) ** sum(signs))


@pytest.mark.parametrize("type_", [BF16, FP16, TF32, E4M3])
def test_products_of_random_numbers(library, type_):
    """Of exact products, with sums in float32. TF32 reads operands that are cut, not rounded."""
    generator = np.random.default_rng(type_)
    depth = 4 * 32 // BYTES[type_]
    a, b = generator.standard_normal((2, 64, depth)).astype(np.float32)
    (bits_a, a), (bits_b, b) = bits_of(a, type_), bits_of(b, type_)
    if type_ == TF32:
        a, b = ((bits.view(np.uint32) & 0xFFFFE000).view(np.float32) for bits in (bits_a, bits_b))
    result = multiply(library, type_, type_, 64, bits_a, bits_b, np.zeros((64, 64), np.float32))
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.T.astype(np.float64)) * depth * 2.0**-24
    assert (np.abs(result - exact) <= bound).all()


def test_infinity_and_nan(library):
    """As in sums of float32: one NaN makes a row of them."""
    a, b, d = operands(E5M2, E5M2, 8, 1, 2)
    a[3, 5], a[7, 9], a[7, 10], a[9, 0] = np.inf, np.inf, -np.inf, np.nan
    bits_a, bits_b = bits_of(a, E5M2)[0], bits_of(b, E5M2)[0]
    result = multiply(library, E5M2, E5M2, 8, bits_a, bits_b, d)
    assert np.isposinf(result[3]).all()
    assert np.isnan(result[[7, 9]]).all()
    assert np.isfinite(np.delete(result, [3, 7, 9], 0)).all()


def test_truncated_sums_keep_14_bits(library):
    """1 + 2^-13 stays; of 1 + 32 * 2^-14 nothing but the 1 does."""
    a, b, d = np.zeros((64, 128), np.float32), np.ones((8, 128), np.float32), np.ones((64, 8))
    a[0, 0], a[1, :32], a[2, :32] = 2.0**-6, 2.0**-7, -(2.0**-7)
    b[:] = 2.0**-7
    bits = bits_of(a, E4M3)[0], bits_of(b, E4M3)[0]
    exact, cut = (
        multiply(library, E4M3, E4M3, 8, *bits, d.astype(np.float32), truncates=truncates)
        for truncates in (False, True)
    )
    np.testing.assert_array_equal(exact[:4, 0], [1 + 2**-13, 1 + 2**-9, 1 - 2**-9, 1])
    np.testing.assert_array_equal(cut[:4, 0], [1 + 2**-13, 1, 1, 1])
