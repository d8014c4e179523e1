"""Triton's kernels touch nothing but the tensors that they are given.

CUDA's interpreter reports an access out of bounds. Triton's reads whatever lies there, and the
result is often right all the same. These tests look at each address.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backends import DEVICE
from clipping import clip, draw
from norms import Norm

import diglot
from diglot.backends.tunables import use_tunables

pytest.importorskip("triton.runtime.interpreter")
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here")


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor: the first, and that behind the last."""
    begin, size = tensor.data_ptr(), tensor.element_size()
    if tensor.numel() == 0:
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return begin, begin + size * (1 + sum((n - 1) * stride for n, stride in steps))


@pytest.fixture(autouse=True)
def touched(monkeypatch):
    """Accesses are looked at. A list of tensors that a kernel finds by addresses in memory."""
    from triton.runtime import interpreter

    of_launch: list[tuple[int, int]] = []
    others: list[torch.Tensor] = []
    run = interpreter.GridExecutor.__call__

    def run_looked_at(self, *arguments, **named):
        tensors = [getattr(t, "base", t) for t in arguments]  # descriptors have one
        of_launch[:] = [extent(t) for t in tensors if isinstance(t, torch.Tensor)]
        assert of_launch
        return run(self, *arguments, **named)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", run_looked_at)

    def look(name: str, mask_at: int) -> None:
        access = getattr(interpreter.InterpreterBuilder, name)

        def looked_at(self, *arguments, **named):
            pointers = next(a for a in arguments if hasattr(a, "get_element_ty"))
            size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            mask = np.asarray(arguments[mask_at].data).astype(bool)
            addresses = np.broadcast_to(pointers.data, mask.shape)[mask].astype(np.int64)
            inside = np.zeros(addresses.shape, bool)
            for begin, end in (*of_launch, *map(extent, others)):
                inside |= (addresses >= begin) & (addresses + size <= end)
            assert inside.all(), f"{name}: {(~inside).sum()} addresses lie outside of all tensors"
            return access(self, *arguments, **named)

        monkeypatch.setattr(interpreter.InterpreterBuilder, name, looked_at)

    look("create_masked_load", 1)
    look("create_masked_store", 2)
    look("create_atomic_rmw", 3)
    return others


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t(),
    "rows apart": lambda x: x[:, 3:-2],
    "misaligned": lambda x: x.reshape(-1)[1:].view(-1, 7),
    "expanded": lambda x: x[:, :1].expand(-1, 9),
}
ELEMENTWISE = {
    "gelu": lambda x: diglot.gelu(x, backend="triton"),
    "gaussian_pdf": lambda x: diglot.gaussian_pdf(x, 0.5, 2.0, backend="triton"),
    "add": lambda x: diglot.add(x, x[:1], alpha=2, backend="triton"),
    "dropout": lambda x: diglot.dropout(x, 0.5, backend="triton"),
    "softmax": lambda x: diglot.softmax(x, -1, backend="triton"),
    "log_softmax of columns": lambda x: diglot.log_softmax(x, 0, backend="triton"),
    "global_softmax": lambda x: diglot.global_softmax(x, backend="triton"),
    "standardize": lambda x: diglot.standardize(x, backend="triton"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_ops(op, layout):
    x = LAYOUTS[layout](torch.randn(37, 61)[:, :57].contiguous()[:36])
    x = x.detach().requires_grad_()
    y = ELEMENTWISE[op](x)
    torch.autograd.grad(y, x, LAYOUTS["dense"](torch.randn(y.shape)))


@pytest.mark.parametrize(("rows", "n"), [(5, 7), (3, 1000), (2, 4099), (3, 9001)])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "add_layer_norm"])
def test_norms(op, rows, n):
    """Rows in registers, several of them to a program, and rows that programs share."""
    Norm.draw(op, (rows, n)).check("triton")
    if n < 1000:
        apart = [torch.randn(rows, 2, n + 3)[:, 0, 1:-2] for _ in Norm.draw(op, (rows, n)).arrays]
        Norm(op, apart, Norm.draw(op, (rows, n)).parameters).check("triton")


@pytest.mark.parametrize("n", [769, 1002])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "add_layer_norm"])
def test_edges_of_16_bits(op, n):
    """A group has rows that begin alike; the last row's last word reaches beyond the array."""
    with use_tunables({"norm_backward.triton.rows_each": 1}):
        Norm.draw(op, (17, n), torch.bfloat16).check("triton")
    assert diglot.last_run().variant.endswith("edges apart")


@pytest.mark.parametrize("begin", [0, 1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_peeled_rows(dtype, begin):
    """A thread reads the two accesses among which its own lies, wherever the weight begins."""
    n, error = 267, 4 * torch.finfo(dtype).eps
    x = torch.randn(9, n).to(dtype)
    weight, bias = (torch.randn(begin + n).to(dtype)[begin:] for _ in range(2))
    y = diglot.layer_norm(x, (n,), weight, bias, backend="triton")
    assert diglot.last_run().variant.endswith("edges apart")
    expected = torch.nn.functional.layer_norm(x.double(), (n,), weight.double(), bias.double())
    torch.testing.assert_close(y.double(), expected, rtol=error, atol=4 * error)


@pytest.mark.parametrize("shape", [(), (1000,), (40, 1), (1, 3, 1)], ids=str)
def test_sums_of_gradients(shape):
    y = torch.zeros(shape, requires_grad=True)
    grad = torch.randn(2, 40, 1000) if len(shape) < 3 else torch.randn(7, 3, 130)
    torch.autograd.grad(diglot.add(torch.zeros(grad.shape), y, backend="triton"), y, grad)


def test_long_columns():
    x = torch.randn(8200, 1, requires_grad=True)
    y = diglot.softmax(x, 0, backend="triton")
    torch.autograd.grad(y, x, torch.randn(y.shape))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clipping(touched, norm_type):
    """Its kernel finds gradients by a table of addresses."""
    grads = draw([5, 9001, 0, 4096, 17])
    touched += grads
    clip(grads, 0.5, norm_type, backend="triton")


@pytest.mark.parametrize("ends", [[3, 70, 70, 133], [90, -5, 30, 300]], ids=str)
def test_groups(ends):
    """Descriptors of runs of rows, whose coordinates lie beyond their sizes."""
    ends = torch.tensor(ends, dtype=torch.int32)
    a, b = torch.randn(144, 24).bfloat16(), torch.randn(4, 24, 40).bfloat16()
    grad = diglot.grouped_mm(a, b, offs=ends, backend="triton")
    for matrix, other in ((a.mT, grad), (a.mT.contiguous(), grad)):
        diglot.grouped_mm(matrix, other, offs=ends, backend="triton")


def test_an_access_out_of_bounds_is_seen():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, n, BLOCK: tl.constexpr):
        index = tl.arange(0, BLOCK)
        tl.store(y + index, tl.load(x + index, mask=index <= n), mask=index < n)

    memory = torch.randn(20)
    kernel[(1,)](memory, torch.empty(10), 10, 16)
    with pytest.raises(Exception, match="create_masked_load: 1 addresses lie outside"):
        kernel[(1,)](memory[:10], torch.empty(10), 10, 16)
