"""What a call allocates, and tensors of more than 2^31 elements or bytes."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, KERNELS
from layouts import PAIRS
from norms import FUSED, Norm
from norms import OPS as OF_ROWS

import diglot
from diglot.backends.runs import plan
from diglot.reference.philox import random_bits

pytestmark = pytest.mark.gpu

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 0, 2, 1),
    "offset": lambda x: x.view(-1)[1:],
    # Not dense: through the strided kernel, whose result is contiguous.
    "sliced": lambda x: x[..., : x.shape[-1] // 2],
    "every other": lambda x: x[..., ::2],
}
ROWS = {f"{op} along {dim}": (op, dim) for op in ("softmax", "log_softmax") for dim in range(4)}
OPS = {
    "gelu": lambda backend: functools.partial(diglot.gelu, backend=backend),
    "gaussian_pdf": lambda backend: functools.partial(diglot.gaussian_pdf, backend=backend),
    "add": lambda backend: lambda x: diglot.add(x, x, alpha=2, backend=backend),
    "add a number": lambda backend: lambda x: diglot.add(x, 2.5, backend=backend),
    "dropout": lambda backend: functools.partial(
        diglot.dropout, seed=torch.zeros((), dtype=torch.int64, device="cuda"), backend=backend
    ),
}


def peak_bytes(function, *arguments):
    """Bytes asked for at the peak of a call, beyond those before it.

    The allocator may take more for them. It does not split a free block if little would be left, so
    that the figure would depend on earlier calls.
    """
    gc.collect()  # what an earlier call left would be freed in this one
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = function(*arguments)
    torch.cuda.synchronize()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before, result


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_but_the_result_is_allocated(backend, layout, op):
    x = LAYOUTS[layout](torch.randn(4, 64, 32, 96, device="cuda"))
    function = OPS[op](backend)
    function(x)  # Triton's first call allocates to compile and load
    peak, result = peak_bytes(function, x)
    assert peak == result.nbytes


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "offset"])
@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_is_transposed(backend, layout, what):
    """Of rows along any dimension, forward and backward, and of a wider result."""
    op, dim = ROWS[what]
    own, backward = getattr(diglot, op), getattr(torch.ops.diglot, f"{op}_backward")
    for dtype, wide in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        x = LAYOUTS[layout](torch.randn(4, 64, 32, 96, device="cuda").to(dtype))
        own(x, dim, wide, backend=backend)
        peak, result = peak_bytes(functools.partial(own, backend=backend), x, dim, wide)
        assert peak == result.nbytes
        grad = LAYOUTS[layout](torch.randn(4, 64, 32, 96, device="cuda"))
        backward(grad, result, dim, dtype, backend)
        peak, gradient = peak_bytes(backward, grad, result, dim, dtype, backend)
        assert peak == gradient.nbytes


@pytest.mark.parametrize("op", OF_ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_norms_allocate_their_results(backend, dtype, op):
    """And statistics of rows. The backward pass allocates a workspace too, and nothing of the
    input's size.
    """
    for make in (lambda x: x, lambda x: x[::2], lambda x: x.transpose(0, 1)):
        norm = Norm.draw(op, (64, 32, 4096), dtype)
        norm = Norm(op, [make(a) for a in norm.arrays], norm.parameters)
        function = getattr(torch.ops.diglot, op)
        arguments = (*norm.arrays, *norm.parameters, 1, 1e-5, backend)
        function(*arguments)
        peak, results = peak_bytes(function, *arguments)
        assert peak == sum(t.nbytes for t in results)
        if op in FUSED:
            continue
        backward = getattr(torch.ops.diglot, f"{op}_backward")
        grad, more = (torch.randn_like(norm.arrays[0]) for _ in range(2))
        dtypes = [dtype] * len(norm.parameters)
        arguments = (grad, more, *norm.arrays, *results[1:], norm.parameters[0], *dtypes)
        backward(*arguments, 1e-5, backend)
        peak, gradients = peak_bytes(backward, *arguments, 1e-5, backend)
        name, weight = f"{op}_backward", norm.parameters[0]
        vectors = (*results[1:], weight, *gradients[1:])
        need = plan(backend, op, name, grad, more, *norm.arrays, *vectors, gradients[0]).scratch
        assert peak == sum(t.nbytes for t in gradients) + need.bytes


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_but_the_sum_is_allocated(backend, layout):
    """Of operands of different layouts, too: neither is copied into the other's layout."""
    x, y = PAIRS[layout](*(torch.randn(64, 64, device="cuda") for _ in range(2)))
    diglot.add(x, y, backend=backend)
    peak, result = peak_bytes(lambda: diglot.add(x, y, backend=backend))
    assert peak == result.nbytes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_but_the_gradient_is_allocated(backend, layout):
    x = LAYOUTS[layout](torch.randn(4, 64, 32, 96, device="cuda"))
    grad = LAYOUTS[layout](torch.randn(4, 64, 32, 96, device="cuda"))
    # Not through autograd, whose threads keep tensors a little longer than the call.
    backward = torch.ops.diglot.gelu_backward
    backward(grad, x, "none", backend)
    peak, result = peak_bytes(backward, grad, x, "none", backend)
    assert peak == result.nbytes


def chunks(count, size=1 << 28):
    """Slices of a dimension of `count` elements."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


BEYOND = 2**31 + 4099
LARGE_BYTES = 48 * 2**30


@pytest.fixture
def much_memory():
    """For tests of large tensors: one after another, on a GPU that holds them."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < LARGE_BYTES:
        pytest.skip("less than 48 GiB of GPU memory are free")
    yield
    torch.cuda.empty_cache()


def large_memory(test):
    """Marks such a test."""
    return pytest.mark.usefixtures("much_memory")(pytest.mark.xdist_group("memory")(test))


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_gelu_of_more_than_2_31_elements(backend):
    x = torch.empty(BEYOND, dtype=torch.bfloat16, device="cuda").normal_()
    y = diglot.gelu(x, backend=backend)
    for part in chunks(BEYOND):
        torch.testing.assert_close(y[part], F.gelu(x[part].float()).bfloat16())
    grad = y
    del y
    gradient = torch.ops.diglot.gelu_backward(grad, x, "tanh", backend)
    for part in chunks(BEYOND):
        expected = torch.ops.aten.gelu_backward(
            grad[part].float(), x[part].float(), approximate="tanh"
        )
        torch.testing.assert_close(gradient[part], expected.bfloat16())


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_dropout_of_more_than_2_32_elements(backend):
    """Indices and offsets beyond 32 bits; and of a layout that is not flat."""
    n = 2**32 + 4096 + 3
    x = torch.ones(n, dtype=torch.bfloat16, device="cuda")
    seed = torch.full((), 5, device="cuda")
    ends = [slice(0, 2**20), slice(2**31 - 512, 2**31 + 512), slice(2**32 - 512, n)]

    def wanted(at, start=0):
        bits = random_bits(seed, (start + at.start) // 4, at.stop - at.start)
        return (bits >= 2**31).bfloat16() * 2

    for name in ("dropout", "dropout_backward"):
        y = getattr(torch.ops.diglot, name)(x, seed, 2**30, 0.5, backend)
        for at in ends:
            assert torch.equal(y[at], wanted(at, start=2**32))
        del y
    wide = x[: 2**32].view(2**16, 2**16)[:, : 2**15 + 16]
    y = diglot.dropout(wide, 0.5, seed=seed, backend=backend).view(-1)
    assert "64-bit" in diglot.last_run().variant
    for at in (slice(0, 2**20), slice(2**31 - 512, 2**31 + 512), slice(y.numel() - 512, y.numel())):
        assert torch.equal(y[at], wanted(at))


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_reductions_of_more_than_2_31_elements(backend):
    x = torch.zeros(BEYOND, dtype=torch.bfloat16, device="cuda")
    ends = torch.tensor([0, 5, BEYOND // 2, BEYOND - 1], device="cuda")
    x[ends] = torch.tensor([30.0, 31, 32, 31.5], device="cuda", dtype=x.dtype)
    y = diglot.global_softmax(x, backend=backend)
    expected = torch.softmax(x[ends].double(), 0)  # of the others, 2^31 e^-32 is 3e-5 of the sum
    torch.testing.assert_close(y[ends].double(), expected, rtol=1e-2, atol=0)
    del y
    x.normal_(3, 2)
    for part in chunks(BEYOND)[::4]:
        torch.testing.assert_close(
            diglot.standardize(x, backend=backend)[part],
            ((x[part].float() - 3) / 2).bfloat16(),
            rtol=2e-2,
            atol=2e-2,
        )


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_of_more_than_2_31_elements(backend):
    """Together, and one that is as long; along it and across."""
    x = torch.empty(BEYOND, dtype=torch.bfloat16, device="cuda").normal_()
    for rows in (x[: 2**31].view(2**21, 2**10), x[: 2**31].view(2**10, 2**21)):
        for dim in (0, 1):
            y = diglot.softmax(rows, dim, backend=backend)
            for first in (0, rows.shape[1 - dim] - 3):
                few, got = (t.narrow(1 - dim, first, 3) for t in (rows, y))
                torch.testing.assert_close(got, torch.softmax(few.float(), dim).bfloat16())
    del y
    y = diglot.softmax(x, 0, backend=backend)
    total = sum(y[part].sum(dtype=torch.float64) for part in chunks(BEYOND))
    assert abs(total.item() - 1) < 1e-2


@large_memory
@pytest.mark.parametrize("shape", [(2**21 + 4, 2**10), (2**10 + 2, 2**21), (1, BEYOND)], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_norms_of_more_than_2_31_elements(backend, shape):
    """Many rows, long ones, and one that is as long; forward and backward."""
    x, grad = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    ops, (rows, n) = torch.ops.diglot, shape
    y, statistics = ops.layer_norm(x, None, None, 1, 1e-5, backend)
    gradient, *_ = ops.layer_norm_backward(
        grad, None, x, statistics, None, None, None, 1e-5, backend
    )
    mean, rstd = statistics
    for row in {0, rows // 2, rows - 1}:
        sums = torch.zeros(4, dtype=torch.float64, device="cuda")
        for part in chunks(n, 2**26):
            a, g = x[row, part].double(), grad[row, part].double()
            sums += torch.stack([a.sum(), a.square().sum(), g.sum(), (g * a).sum()])
        center, square, slope, product = (sums / n).tolist()
        of_row = (square - center**2 + 1e-5) ** -0.5
        assert abs(mean[row].item() - center) < 1e-5
        assert abs(rstd[row].item() / of_row - 1) < 1e-5
        product = (product - center * slope) * of_row
        for part in (slice(0, 999), slice(n - 999, n)):
            norm = (x[row, part].double() - center) * of_row
            torch.testing.assert_close(y[row, part], norm.bfloat16())
            wanted = of_row * (grad[row, part].double() - slope - norm * product)
            torch.testing.assert_close(gradient[row, part], wanted.bfloat16())


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_strided_add_beyond_2_31_elements(backend):
    wide = torch.randint(-128, 128, (2**16 + 1, 2**16), dtype=torch.int8, device="cuda")
    narrow = wide[:, : 2**15 + 16]  # 2^31 elements and more, at offsets beyond 2^32
    row = torch.randint(-128, 128, (narrow.shape[1],), dtype=torch.int8, device="cuda")
    y = diglot.add(narrow, row, backend=backend)
    assert y.numel() > 2**31
    for part in chunks(len(narrow), 2**13):
        assert torch.equal(y[part], narrow[part] + row)


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_few_elements_at_offsets_beyond_2_31(backend):
    base = torch.zeros(2**32, dtype=torch.int8, device="cuda").view(2**16, 2**16)
    few = base[::255, ::257]
    few.random_(-128, 128)
    assert few.numel() < 2**31 < few.stride(0) * len(few)
    assert torch.equal(diglot.add(few, few, backend=backend), few + few)


@large_memory
@pytest.mark.parametrize(
    "shape, to", [((BEYOND,), ()), ((2**16 + 1, 2**15), (2**15,)), ((2**15, 2**16 + 1), (2**15, 1))]
)
@pytest.mark.parametrize("backend", KERNELS)
def test_gradient_sum_of_more_than_2_31_elements(backend, shape, to):
    # Whole numbers, so that the sum is exact in any order.
    grad = torch.randint(-2, 3, shape, dtype=torch.int8, device="cuda").bfloat16()
    own = torch.ops.diglot.add_backward(grad, list(to), torch.float32, 1, backend)
    if to == ():
        expected = sum(grad[part].sum(dtype=torch.float64) for part in chunks(len(grad)))
    else:
        dim = 0 if len(to) == 1 else 1
        expected = grad.sum(dim, keepdim=dim == 1, dtype=torch.float32)
    assert torch.equal(own, expected.float())


@large_memory
@pytest.mark.parametrize("backend", KERNELS)
def test_gradient_sums_of_more_than_2_31_groups(backend):
    grad = torch.randint(-2, 3, (2**31 + 5, 2), dtype=torch.int8, device="cuda").half()
    own = torch.ops.diglot.add_backward(grad, [2**31 + 5, 1], torch.float16, 1, backend)
    assert torch.equal(own.view(-1), grad[:, 0] + grad[:, 1])
