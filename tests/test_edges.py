"""The edges of what a kernel touches: heads, tails, what lies around an output, far offsets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, CUDA, DEVICE, GPU, KERNELS, launched

import diglot
from diglot.backends.tunables import tunables, use_tunables
from diglot.reference.gaussian_pdf import gaussian_pdf_oracle

# Where CUDA's launcher takes other kernels. Interpreted, arrays of a few blocks count as large.
TINY, SMALL = "elementwise.cuda.tiny_elements", "elementwise.cuda.small_vectors"
LIMITS = {name: tunables(GPU).read(name) for name in (TINY, SMALL)}
if DEVICE == "cpu":
    LIMITS = {TINY: 4096, SMALL: 3000}


@pytest.fixture
def no_array_is_tiny():
    """In Triton, small arrays run as large ones do: with 16-byte accesses, after a head."""
    triton = {"tiny_elements": 16, "small_elements": 0}  # no head is longer
    with use_tunables({f"elementwise.triton.{name}": n for name, n in triton.items()} | LIMITS):
        yield


def sizes(backend: str, dtype: torch.dtype) -> list[int]:
    """Around a block, and just above where CUDA's launcher takes 16-byte accesses."""
    if backend == "triton":
        block = 4096 // dtype.itemsize
        return [1, 7, block - 1, block, block + 15]
    return [1, 7, 127, 128, 129, LIMITS[TINY] + 519]


def expected_variant(name: str, backend: str, dtype: torch.dtype, n: int, is_aligned: bool) -> str:
    """How the variant begins that runs where one head aligns every array, or none does."""
    if backend == "triton":
        ending = ", 16-byte accesses" if is_aligned and n > 16 else ""
        large = 512 if name.startswith("gaussian_pdf") else 4096 // dtype.itemsize
        return f"flat, blocks of {256 if n <= 16 else large}{ending}"
    if n <= LIMITS[TINY]:
        return "flat, 1 element per thread"
    if not is_aligned:
        return "strided, 32-bit offsets"
    is_large = n > LIMITS[SMALL] * 16 // dtype.itemsize
    most = 8 if name.startswith("gelu") and dtype == torch.float32 else 16
    return f"flat, {f'{most} elements' if is_large else '1 access'} per thread"


def guarded(n: int, offset: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An output of n elements that starts `offset` elements into memory, and that memory."""
    memory = torch.full((n + 64,), 77.0, device=DEVICE).to(dtype)
    return memory[offset : offset + n], memory


def check_edges(backend: str, dtype: torch.dtype, n: int, offset: int, own_offset: int) -> None:
    """Runs the ops' flat kernels on inputs, and into an output, so far into their memory."""
    x, y = (torch.randn(n + offset, device=DEVICE).to(dtype)[offset:] for _ in range(2))
    wide_x, wide_y = x.float().requires_grad_(), y.float()
    gelu = F.gelu(wide_x, approximate="tanh")
    (slope,) = torch.autograd.grad(gelu, wide_x, wide_y)
    density = gaussian_pdf_oracle(wide_x, 0.5, 2.0, 3)
    (density_slope,) = torch.autograd.grad(density, wide_x, wide_y)
    for name, inputs, expected in [
        ("gelu_forward", (x, "tanh"), gelu.detach()),
        ("gelu_backward", (y, x, "tanh"), slope),
        ("gaussian_pdf_forward", (x, 0.5, 2.0, 3), density.detach()),
        ("gaussian_pdf_backward", (y, x, 0.5, 2.0, 3), density_slope),
        ("add_forward", (x, y, 2), x.float() + 2 * y.float()),
        ("add_forward", (x, None, 2), x.float() + 2),
        ("add_backward", (y, 3), 3 * y.float()),
    ]:
        out, memory = guarded(n, own_offset, dtype)
        variant = launched(backend, name, *inputs, out)
        expected_one = expected_variant(name, backend, dtype, n, own_offset == offset)
        assert variant == expected_one, name
        torch.testing.assert_close(out, expected.to(dtype))
        rest = torch.cat([memory[:own_offset], memory[own_offset + n :]])
        assert (rest == 77).all(), (name, n, own_offset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_every_element_is_written_and_no_other(backend, offset, dtype, no_array_is_tiny):
    """Aligned, behind a head, and not to be aligned together."""
    for n in sizes(backend, dtype):
        check_edges(backend, dtype, n, offset, offset)
        check_edges(backend, dtype, n, offset, offset + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("backend", [CUDA])
def test_edges_of_large_arrays(backend, offset, dtype, no_array_is_tiny):
    """Where a thread makes several accesses, which in Triton those of the other test do."""
    check_edges(backend, dtype, LIMITS[SMALL] * 16 // dtype.itemsize + 519, offset, offset)


@pytest.mark.parametrize(
    ("step", "variant"),
    [(1, "strided, 16-byte accesses, 64-bit offsets"), (2, "strided, 64-bit offsets")],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_beyond_31_bits(backend, step, variant):
    """Three rows 2^30 elements apart; of the memory in between nothing is touched."""
    memory = torch.empty(2**31 + 64, dtype=torch.int8, device=DEVICE)
    x = memory.as_strided((3, 32), (2**30, step))
    x.copy_(torch.arange(96, device=DEVICE).reshape(3, 32))
    y = torch.arange(32, dtype=torch.int8, device=DEVICE)
    assert torch.equal(diglot.add(x, y, backend=backend), torch.add(x, y))
    if backend != "torch":
        assert diglot.last_run().variant == variant
