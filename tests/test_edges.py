"""The edges of what a kernel touches: heads, tails, what lies around an output, far offsets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, KERNELS

import diglot
from diglot.backends.registry import BACKENDS as REGISTRY

# Around a block of 256 (the interpreted kernels') and around one of 16-byte accesses by hand.
SIZES = [1, 7, 255, 256, 257, 1023, 2047, 2048, 2049, 2063]


@pytest.fixture
def no_array_is_tiny(monkeypatch):
    """Small arrays run as large ones do: with 16-byte accesses, after a head."""
    from diglot.triton_ops import elementwise_launch

    monkeypatch.setattr(elementwise_launch, "TINY_ELEMENTS", 16)  # no head is longer


def guarded(n: int, offset: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An output of n elements that starts `offset` elements into memory, and that memory."""
    memory = torch.full((n + 64,), 77.0, device=DEVICE).to(dtype)
    return memory[offset : offset + n], memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("backend", KERNELS)
def test_every_element_is_written_and_no_other(backend, offset, dtype, no_array_is_tiny):
    """The flat kernels of both ops: aligned, behind a head, and not to be aligned together."""
    for n in SIZES:
        x, y = (
            torch.randn(n + offset, device=DEVICE).to(dtype)[o : o + n] for o in (offset, offset)
        )
        wide_x, wide_y = x.float().requires_grad_(), y.float()
        (slope,) = torch.autograd.grad(F.gelu(wide_x, approximate="tanh"), wide_x, wide_y)
        for name, inputs, expected in [
            ("gelu_forward", (x, "tanh"), F.gelu(x.float(), approximate="tanh")),
            ("gelu_backward", (y, x, "tanh"), slope),
            ("add_forward", (x, y, 2), x.float() + 2 * y.float()),
            ("add_forward", (x, None, 2), x.float() + 2),
            ("add_backward", (y, 3, None), 3 * y.float()),
        ]:
            for own_offset in (offset, offset + 1):
                out, memory = guarded(n, own_offset, dtype)
                launcher = getattr(REGISTRY[backend].module(name[: name.index("_")]), name)
                variant = launcher(*inputs, out)
                if backend == "triton":  # promised only where one head serves all arrays
                    is_aligned = n > 16 and own_offset == offset
                    assert ("16-byte" in variant) == is_aligned, (name, n, own_offset)
                torch.testing.assert_close(out, expected.to(dtype), rtol=2e-2, atol=1e-3)
                rest = torch.cat([memory[:own_offset], memory[own_offset + n :]])
                assert (rest == 77).all(), (name, n, own_offset)


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_beyond_31_bits(backend):
    """Three columns 2^30 elements apart; of the memory in between nothing is touched."""
    memory = torch.empty(2**31 + 8, dtype=torch.int8, device=DEVICE)
    x = memory.as_strided((3, 4), (2**30, 2))
    x.copy_(torch.arange(12, device=DEVICE).reshape(3, 4))
    y = torch.arange(4, dtype=torch.int8, device=DEVICE)
    assert torch.equal(diglot.add(x, y, backend=backend), torch.add(x, y))
    if backend == "triton":
        assert diglot.last_run().variant == "strided, 64-bit offsets"
