"""Operands of every layout, in both elementwise ops: values, gradients, and the accesses made."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from backends import (
    BACKENDS,
    CUDA,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_TRITON,
    ULP,
    assert_close,
    assert_same,
    draw,
    examples,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, PAIRS, in_order

import diglot
from diglot.backends import runs
from diglot.ops.add import DTYPES
from diglot.ops.broadcasting import empty_broadcast
from diglot.reference.gelu import gelu_oracle


def slope(x: torch.Tensor, grad: torch.Tensor, backend: str) -> torch.Tensor:
    """gelu's gradient."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(diglot.gelu(x, backend=backend), x, grad)[0]


@pytest.mark.parametrize("layout", [*LAYOUTS, "negative bit"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu(backend, layout):
    make = LAYOUTS.get(layout, lambda x: torch.complex(x, x).conj().imag)
    x, grad = (make(torch.randn(32, 32, device=DEVICE)) for _ in range(2))
    result, expected = diglot.gelu(x, "tanh", backend=backend), F.gelu(x, approximate="tanh")
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected)
    own, theirs = (x.detach().clone(memory_format=torch.preserve_format) for _ in range(2))
    own.requires_grad_(), theirs.requires_grad_()
    diglot.gelu(own, "tanh", backend=backend).backward(grad)
    F.gelu(theirs, approximate="tanh").backward(grad)
    torch.testing.assert_close(own.grad, theirs.grad)


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_add(backend, layout, dtype):
    x, y = PAIRS[layout](draw((64, 64), dtype), draw((64, 64), dtype))
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_add(backend, layout):
    """The gradient of `other`, multiplied by alpha and summed where need be, of any strides."""
    grad, _ = PAIRS[layout](draw((64, 64), torch.float32), draw((64, 64), torch.float32))
    x = torch.zeros(grad.shape, device=DEVICE)
    for shape in (grad.shape, grad.shape[1:], (*grad.shape[:-1], 1)):
        y = torch.zeros(shape, device=DEVICE, requires_grad=True)
        out = diglot.add(x, y, alpha=-3, backend=backend)
        (own,) = torch.autograd.grad(out, y, grad)
        torch.testing.assert_close(own, -3 * grad.sum_to_size(shape), rtol=1e-5, atol=1e-4)


def places(tensors):
    return [(t.data_ptr(), t.shape, t.stride()) for t in tensors if isinstance(t, torch.Tensor)]


@pytest.fixture
def launched(backend, monkeypatch) -> list[tuple]:
    """What launchers are given, by name, output and scratch apart; nothing is launched."""
    seen: list[tuple] = []

    def replace(name):
        launcher = lambda *arguments: seen.append((name, places(arguments[:-2]))) or ""  # noqa: E731
        monkeypatch.setitem(runs._launchers, (backend, name), launcher)

    for name in ("add_forward", "add_backward", "gelu_forward", "gelu_backward"):
        replace(name)
    return seen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_launchers_of_gelu_get_the_tensors_themselves(backend, layout, launched):
    """No layout is copied on the way to a kernel."""
    x, grad = (LAYOUTS[layout](torch.randn(64, 64, device=DEVICE)) for _ in range(2))
    diglot.gelu(x.detach().requires_grad_(), backend=backend).backward(grad)
    assert launched == [("gelu_forward", places([x])), ("gelu_backward", places([grad, x]))]


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_launchers_of_add_get_the_tensors_themselves(backend, layout, launched):
    x, y = PAIRS[layout](*(torch.randn(64, 64, device=DEVICE) for _ in range(2)))
    grad, _ = PAIRS[layout](*(torch.randn(64, 64, device=DEVICE) for _ in range(2)))
    leaf = y.detach().requires_grad_()
    torch.autograd.grad(diglot.add(x, leaf, alpha=2, backend=backend), leaf, grad)
    assert launched == [("add_forward", places([x, y])), ("add_backward", places([grad]))]


MANY = {
    "permuted against": ((2, 3) * 5, (3, 0, 7, 2, 9, 4, 1, 6, 5, 8)),
    "reversed": ((2,) * 12, tuple(reversed(range(12)))),
    "broadcast": ((2, 1, 3, 1, 2, 1, 2, 1, 2, 1), tuple(range(10))),
}


@pytest.mark.parametrize("case", MANY)
@pytest.mark.parametrize(("first", "second"), [("float32", "float32"), ("int16", "bfloat16")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_add_of_more_dimensions_than_a_kernel_takes(backend, first, second, case):
    """Dimensions that do not merge, and gradients that are summed over as many."""
    shape, order = MANY[case]
    full = [max(size, 2) for size in shape]
    x = draw(tuple(full), getattr(torch, first))
    y = in_order(draw(shape, getattr(torch, second)), order)
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
    if first != "float32":
        return
    for kept in (shape, [1] * len(shape), [size if d % 2 else 1 for d, size in enumerate(full)]):
        y = torch.zeros(kept, device=DEVICE, requires_grad=True)
        grad = in_order(torch.randn(full, device=DEVICE), order)
        diglot.add(x, y, alpha=2, backend=backend).backward(grad)
        expected = 2 * grad.double().sum_to_size(kept)
        torch.testing.assert_close(y.grad.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_over_more_dimensions_than_a_kernel_takes(backend):
    """Ten that do not merge."""
    grad = torch.randn((3,) * 10, device=DEVICE)[(slice(None, None, 2),) * 10]
    for kept in ((), (2,) + (1,) * 9, (1,) * 9 + (2,)):
        own = torch.ops.diglot.add_backward(grad, list(kept), torch.float32, 2, backend)
        expected = 2 * grad.double().sum_to_size(kept)
        torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu_of_more_dimensions_than_a_kernel_takes(backend):
    x = torch.randn((3,) * 10, device=DEVICE)[(slice(2),) * 10]
    x = x.permute([5, 0, 3, 8, 1, 2, 7, 4, 9, 6])
    grad = torch.randn(x.shape, device=DEVICE)
    result, expected = diglot.gelu(x, backend=backend), F.gelu(x)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(slope(x, grad, backend), slope(x, grad, "torch"))


@pytest.mark.parametrize("backend", KERNELS)
def test_dense_layouts_run_flat(backend):
    x = torch.randn(2, 8, 16, 16, device=DEVICE).to(memory_format=torch.channels_last)
    for call in (
        lambda t: diglot.gelu(t, backend=backend),
        lambda t: diglot.add(t, t, backend=backend),
        lambda t: diglot.add(t, 2, backend=backend),
    ):
        call(x)
        assert diglot.last_run().variant.startswith("flat")
        call(x[:, :, ::2])
        assert diglot.last_run().variant.startswith("strided")


ROWS = {
    "columns of a wider one": lambda x: x[:, :32],
    "rows apart": lambda x: x.reshape(4, 16, 64)[:, :5],
    "misaligned": lambda x: x.reshape(-1)[1:4001].reshape(50, 80)[:, :32],
    "odd rows": lambda x: x[:, :33],
    "odd steps": lambda x: x.reshape(-1)[:3900].reshape(60, 65)[:, :64],
}


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_rows_in_16_byte_accesses(backend, dtype, layout):
    """Rows that are not dense are read in vectors where their length and place cut none."""
    x = ROWS[layout](torch.randn(64, 64, device=DEVICE).to(dtype))
    result = diglot.gelu(x, backend=backend)
    assert_close(result, gelu_oracle(x), ULP[dtype], x)
    whole = layout in ("columns of a wider one", "rows apart")
    assert ("16-byte" in diglot.last_run().variant) == whole
    grad = ROWS[layout](torch.randn(64, 64, device=DEVICE).to(dtype))
    dense = slope(x.contiguous(), grad.contiguous(), backend)
    assert torch.equal(slope(x, grad, backend), dense)


BIASES = {
    "bias": ((40, 64), lambda y: y[0], True),
    "column": ((40, 64), lambda y: y[:, :1], True),
    "column of three": ((3, 40, 64), lambda y: y[:, :1].unsqueeze(1)[:3], True),
    "plane": ((3, 40, 64), lambda y: y, True),
    "misaligned": ((39, 64), lambda y: y.reshape(-1)[1:65], False),
    "odd": ((40, 63), lambda y: y[0, :63], False),
    "misaligned column": ((39, 64), lambda y: y.reshape(-1)[1:][:39].reshape(39, 1), True),
}


@pytest.mark.parametrize("case", BIASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_broadcasting_in_16_byte_accesses(backend, dtype, case):
    shape, of, whole = BIASES[case]
    x, y = draw(shape, dtype), of(draw((40, 64), dtype))
    assert_same(diglot.add(x, y, backend=backend), torch.add(x, y))
    assert ("16-byte" in diglot.last_run().variant) == whole
    assert_same(diglot.add(y, x, backend=backend), torch.add(y, x))
    rows = draw((8, 2 * shape[-1]), dtype)[:, : shape[-1]]
    assert_same(diglot.add(rows, 3, backend=backend), torch.add(rows, 3))
    if dtype.is_floating_point:
        z = torch.zeros_like(x).requires_grad_()
        grad = draw((*shape[:-1], 128), dtype)[..., : shape[-1]]
        diglot.add(x, z, alpha=2, backend=backend).backward(grad)
        assert torch.equal(z.grad, 2 * grad)


@settings(max_examples=examples(25))
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_any_shape_and_stride(backend, data):
    rank = data.draw(st.integers(0, 5), label="rank")
    # Interpreted, a thousand elements take Triton 20 ms.
    greatest = 3 if rank == 5 else 4
    sizes = [data.draw(st.integers(1, greatest)) for _ in range(rank)]
    x = torch.randn([2 * size for size in sizes], device=DEVICE)
    x = x[tuple(slice(None, None, data.draw(st.sampled_from([1, 2]))) for _ in sizes)]
    x = x.permute(data.draw(st.permutations(range(rank))))
    dtype = data.draw(st.sampled_from(FLOATING))
    x = x.to(dtype)
    approximate = data.draw(st.sampled_from(["none", "tanh"]))
    result = diglot.gelu(x, approximate, backend=backend)
    assert steps(result) == steps(F.gelu(x))
    assert_close(result, gelu_oracle(x, approximate), ULP[dtype], x)


@settings(max_examples=examples(30))
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_any_operands(backend, data):
    rank = data.draw(st.integers(0, 5))
    shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
    operands = []
    for _ in range(2):
        own = [data.draw(st.sampled_from([size, size, 1])) for size in shape]
        x = draw(tuple(2 * size for size in own), data.draw(st.sampled_from(DTYPES)))
        x = x[tuple(slice(None, size) for size in own)]
        x = in_order(x, data.draw(st.permutations(range(rank))))
        operands.append(x[(0,) * data.draw(st.integers(0, rank))] if rank else x)
    # Strides of dimensions whose order is ambiguous (some operand has size one there) are PyTorch's
    # own business: test_add holds the others to them.
    result, expected = diglot.add(*operands, backend=backend), torch.add(*operands)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_results_of_operands_that_broadcast_lie_as_pytorchs():
    """Whatever the order of either operand's dimensions, and along whichever one is broadcast."""

    def orders(shape):
        for order in itertools.permutations(range(len(shape))):
            places = [order.index(d) for d in range(len(shape))]
            yield torch.empty([shape[d] for d in order]).permute(places)

    for shape in ((3,), (2, 3), (4, 2, 3), (1, 3), (2, 1, 3), (0, 3)):
        kept = [s for k in range(len(shape) + 1) for s in itertools.product((0, 1), repeat=k)]
        for mask in kept:
            sizes = shape[len(shape) - len(mask) :]
            part = [d if keep else 1 for keep, d in zip(mask, sizes, strict=True)]
            for full, other in itertools.product(orders(shape), orders(part)):
                for pair in ((full, other), (other, full.half())):
                    expected, found = torch.add(*pair), empty_broadcast("add", *pair)
                    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
                    for size, *strides in zip(
                        found.shape, found.stride(), expected.stride(), strict=True
                    ):
                        assert strides[0] == strides[1] or size == 1 or found.numel() == 0
