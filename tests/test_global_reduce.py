"""What global_softmax and standardize share: grids, chunks, layouts, the barrier's word."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from apart import run_apart
from backends import (
    BACKENDS,
    CUDA,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_BACKENDS,
    SLOW_TRITON,
    launched,
    mostly_slow,
    sampled,
    sum_error,
    ulp_error,
)
from layouts import LAYOUTS

import diglot
from diglot.ops.global_memory import compute_dtype
from diglot.reference.specs import find_spec
from diglot.tools.accuracy import measure_error

OPS = ["global_softmax", "standardize"]
LAUNCHERS = [f"{op}_{direction}" for op in OPS for direction in ("forward", "backward")]


class Launch:
    """A launcher's arguments without the grid, and its output."""

    def __init__(self, name: str, x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor) -> None:
        self.name, self.out = name, out
        kind = compute_dtype(x.dtype)
        wide = x.to(kind)
        self.statistics = torch.full((2,), torch.nan, dtype=kind, device=DEVICE)
        self.inputs: tuple[Any, ...]
        if name == "global_softmax_forward":
            self.inputs = (x,)
        elif name == "global_softmax_backward":
            y = torch.empty_like(x).copy_(torch.softmax(wide.flatten(), 0).view_as(x))
            self.inputs = (grad, y)
        elif name == "standardize_forward":
            self.inputs = (x, 1e-5)
        else:
            variance, mean = torch.var_mean(wide, correction=0)
            self.inputs = (grad, x, torch.stack([mean, torch.rsqrt(variance + 1e-5)]))

    def oracle(self) -> torch.Tensor:
        """What it must compute, in float64. PyTorch's own backward passes round in between."""
        wide = [t.double() for t in self.inputs if isinstance(t, torch.Tensor)]
        if self.name == "global_softmax_forward":
            return torch.softmax(wide[0].flatten(), 0).view_as(wide[0])
        if self.name == "global_softmax_backward":
            grad, y = wide
            return y * (grad - (grad * y).sum())
        if self.name == "standardize_forward":
            variance, mean = torch.var_mean(wide[0], correction=0)
            return (wide[0] - mean) * torch.rsqrt(variance + 1e-5)
        grad, x, (mean, rstd) = wide
        y = (x - mean) * rstd
        return rstd * (grad - grad.mean() - y * (grad * y).mean())

    def assert_right(self, result: torch.Tensor) -> None:
        """Where terms cancel, the error is that of the terms."""
        oracle = self.oracle()
        rounding, error = torch.finfo(result.dtype).eps, sum_error(result.dtype)
        largest = oracle.abs().max().item()
        torch.testing.assert_close(
            result.double(), oracle, rtol=max(rounding, error), atol=error * largest
        )

    def __call__(self, backend: str, blocks: int) -> tuple[torch.Tensor, ...]:
        """Runs it on a number of blocks."""
        written = [self.statistics] if self.name == "standardize_forward" else []
        written.append(self.out)
        self.variant = launched(backend, self.name, *self.inputs, blocks, *written)
        return tuple(t.clone() for t in reversed(written))


# On a GPU far more blocks; interpreted, Triton runs three programs at most.
GRIDS = [1, 2, 3, 7, 64, 132, 264] if DEVICE == "cuda" else [1, 2, 3, 8]
# Long enough that blocks have several tiles, and park some in shared memory.
SIZE = 9_000_017 if DEVICE == "cuda" else 15_017


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", KERNELS)
def test_no_bit_depends_on_the_grid(backend, name, dtype):
    x, grad = (torch.randn(SIZE, device=DEVICE).to(dtype) for _ in range(2))
    launch = Launch(name, x, grad, torch.empty_like(x))
    expected = launch(backend, 0)
    launch.assert_right(expected[0])
    for blocks in GRIDS:
        launch.out.fill_(torch.nan)
        for own, default in zip(launch(backend, blocks), expected, strict=True):
            assert torch.equal(own, default), blocks


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", [CUDA, SLOW_TRITON])
def test_every_number_of_accesses(backend, name):
    """Tiles of one to sixteen accesses by each thread, whole and cut short."""
    few, tile = 256, 1024
    every = (1, 2, 4, 8, 16) if DEVICE == "cuda" else (1,)
    variants = set()
    for accesses in every:
        for n in (few * tile * accesses, few * tile * accesses - 3):
            x, grad = (torch.randn(n, device=DEVICE) for _ in range(2))
            launch = Launch(name, x, grad, torch.empty_like(x))
            result = launch(backend, 0)[0]
            variants.add(launch.variant)
            reference = Launch(name, x, grad, torch.empty_like(x))("torch", 0)[0]
            atol = 2e-5 * reference.abs().max().item()
            torch.testing.assert_close(result, reference, rtol=2e-5, atol=atol)
    if backend == "cuda":  # of two arrays a thread holds as much in fewer accesses to each
        assert len(variants) == len(every) - (len(every) > 1 and "backward" in name)


WRITTEN = list(
    itertools.product(
        [(0, 0, 0), (1, 1, 1), (0, 1, 3), (1, 0, 0)], [torch.float32, torch.bfloat16, torch.float64]
    )
)
MOST_WRITTEN = [case for i, case in enumerate(WRITTEN) if (i // 3 + i) % 3 != 2]  # two types each


@pytest.mark.parametrize(("offsets", "dtype"), mostly_slow(WRITTEN, *MOST_WRITTEN), ids=str)
@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_element_is_written_and_no_other(backend, name, offsets, dtype):
    """Aligned or not; sizes around a tile."""
    tile = 4096 // dtype.itemsize
    for n in (1, 7, tile - 1, tile, tile + 15, 3 * tile + 1):
        x, grad = (
            torch.randn(n + offset, device=DEVICE).to(dtype)[offset:] for offset in offsets[:2]
        )
        memory = torch.full((n + 64,), 77.0, device=DEVICE).to(dtype)
        launch = Launch(name, x, grad, memory[offsets[2] : offsets[2] + n])
        result = launch(backend, 0)[0]
        aligned = Launch(name, x.clone(), grad.clone(), torch.empty(n, dtype=dtype, device=DEVICE))
        # PyTorch's statistics depend on how its input is aligned.
        aligned.inputs = tuple(
            t.clone() if isinstance(t, torch.Tensor) else t for t in launch.inputs
        )
        expected = aligned(backend, 0)[0]
        if backend == "cuda":  # the same elements in the same order
            assert torch.equal(result, expected)
        else:
            torch.testing.assert_close(result, expected)
        launch.assert_right(result)
        rest = torch.cat([memory[: offsets[2]], memory[offsets[2] + n :]])
        assert (rest == 77).all(), n


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "global_softmax": (
        diglot.global_softmax,
        lambda x: torch.softmax(x.reshape(-1), 0).view(x.shape),
    ),
    "standardize": (diglot.standardize, lambda x: torch.nn.functional.layer_norm(x, x.shape)),
}


@pytest.mark.parametrize("layout", [*LAYOUTS, "negative bit"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend, op, layout):
    """Of the input, and of the gradient, which need not have the input's."""
    own, theirs = FUNCTIONS[op]
    make = LAYOUTS.get(layout, lambda x: torch.complex(x, x).conj().imag)
    x, grad = (make(torch.randn(32, 32, device=DEVICE)) for _ in range(2))
    for given in (grad, grad.contiguous()):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        result, expected = own(x, backend=backend), theirs(leaf)
        assert result.stride() == torch.empty_like(x).stride()
        torch.testing.assert_close(result, expected.detach())
        (wanted,) = torch.autograd.grad(expected, leaf, given)
        kept = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(own(kept, backend=backend), kept, given)
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0, 2), (1,), (7,), (33, 65), (2, 3, 4, 5)], ids=str
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes(backend, op, shape):
    own, theirs = FUNCTIONS[op]
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    result = own(x, backend=backend)
    assert result.shape == x.shape
    expected = theirs(x) if shape and x.numel() else torch.full_like(x, float(op == OPS[0]))
    torch.testing.assert_close(result, expected.detach().view(shape))
    (grad,) = torch.autograd.grad(result, x, torch.randn_like(x))
    assert grad.shape == x.shape and grad.isfinite().all()


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_the_oracle(backend, op, dtype):
    spec = find_spec(op)
    # In float32 on a CPU, PyTorch's own softmax was 9 ulp off in 2 of 60 such draws.
    loose = 20.0 if (backend, dtype, DEVICE) == ("torch", torch.float32, "cpu") else None
    for n, scale, offset in ((1, 1, 0), (5000, 1, 0), (5000, 8, 0), (40_001, 2, 30)):
        x = (torch.randn(n, device=DEVICE) * scale + offset).to(dtype).requires_grad_()
        grad = torch.randn(n, device=DEVICE).to(dtype)
        with diglot.record_runs() as runs:
            result = spec.function(x, backend=backend)
            result.backward(grad)
        assert [run.launcher for run in runs] == [f"{op}_forward", f"{op}_backward"]
        assert {run.backend for run in runs} == {backend}
        error = measure_error(result.detach(), spec.forward(x.detach()), tolerance_ulp=loose)
        assert error.failing == 0, error
        error = measure_error(x.grad, spec.backward(grad, x.detach())["input"])
        assert error.failing == 0, error


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_operator(backend, op):
    x = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    grad = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    ops = torch.ops.diglot
    if op == "global_softmax":
        torch.library.opcheck(ops.global_softmax.default, (x, backend))
        y = diglot.global_softmax(x.detach()).requires_grad_()
        torch.library.opcheck(ops.global_softmax_backward.default, (grad, y, backend))
    else:
        torch.library.opcheck(ops.standardize.default, (x, 1e-5, backend))
        _, statistics = ops.standardize(x.detach(), 1e-5, "torch")
        arguments = (grad, x, statistics, 1e-5, backend)
        torch.library.opcheck(ops.standardize_backward.default, arguments)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend, op):
    own, _ = FUNCTIONS[op]
    x = torch.randn(2, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    function = lambda t: own(t, backend=backend)  # noqa: E731
    torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_third_derivative(backend, op):
    x = torch.randn(4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(4, device=DEVICE, dtype=torch.float64) for _ in range(4)]
    results = []
    expected = FUNCTIONS[op][1]
    if op == "standardize":  # PyTorch's own layer_norm is right up to the second
        expected = lambda t: (t - t.mean()) * torch.rsqrt(t.var(correction=0) + 1e-5)  # noqa: E731
    for function in (lambda t: FUNCTIONS[op][0](t, backend=backend), expected):
        value = function(x)
        for weight in weights:
            (value,) = torch.autograd.grad((value * weight).sum(), x, create_graph=True)
        results.append(value)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend, op):
    x = torch.randn(4, 5, device=DEVICE)
    own, expected = FUNCTIONS[op]
    own = lambda t, f=own: f(t, backend=backend)  # noqa: E731
    func = torch.func
    for dim in (0, 1):
        torch.testing.assert_close(
            func.vmap(own, in_dims=dim, out_dims=dim)(x),
            torch.stack([expected(t) for t in x.unbind(dim)], dim),
        )
    assert func.vmap(own)(x[:0]).shape == (0, 5)

    def loss(f):
        return lambda t: (f(t) * torch.arange(5, device=DEVICE)).sum()

    grads = func.vmap(func.grad(loss(own)))(x)
    torch.testing.assert_close(grads, torch.stack([func.grad(loss(expected))(t) for t in x]))
    torch.testing.assert_close(*(func.jvp(f, (x,), (x.cos(),)) for f in (own, expected)))
    torch.testing.assert_close(*(func.jacrev(f)(x[0]) for f in (own, expected)))
    torch.testing.assert_close(*(func.jacfwd(f)(x[0]) for f in (own, expected)))
    pair = [func.hessian(loss(f))(x[0]) for f in (own, expected)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", SLOW_BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(backend, op, dynamic):
    torch._dynamo.reset()
    own, expected = FUNCTIONS[op]

    def block(x):
        return own(x * 2, backend=backend).sin()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape in ((4, 8), (8, 4), (3, 5)):
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        grad = torch.randn(shape, device=DEVICE)
        y, theirs = compiled(x), expected(x * 2).sin()
        torch.testing.assert_close(y, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(t, x, grad) for t in (y, theirs)))
    permuted = torch.randn(4, 6, device=DEVICE).t()
    torch.testing.assert_close(compiled(permuted), expected(permuted * 2).sin())


@pytest.mark.parametrize("op", OPS)
def test_meta_and_fake(op):
    own, _ = FUNCTIONS[op]
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.empty(4, 6).t()
    with FakeTensorMode() as mode:
        fake = own(mode.from_tensor(x), backend="torch")
    assert (fake.shape, fake.stride(), fake.dtype) == (x.shape, x.stride(), x.dtype)
    for dtype in (torch.float32, torch.bfloat16):
        meta = own(x.to("meta", dtype), backend="torch")
        assert (meta.shape, meta.stride(), meta.dtype) == (x.shape, x.stride(), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend, op, dtype):
    """To float32, as PyTorch's softmax and layer_norm on a GPU."""
    own, expected = FUNCTIONS[op]
    x = torch.randn(300, device=DEVICE).to(dtype).requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        result = own(x, backend=backend)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected(x.float()))
    result.sum().backward()
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1.0, 2.0], "input must be a torch.Tensor, not list"),
        (torch.arange(3), "input must have one of the dtypes float32.*not int64"),
        (torch.ones(2).to(torch.complex64), "not complex64"),
        (torch.ones(2).to_sparse(), "input must be a dense tensor"),
    ],
)
def test_bad_arguments(op, argument, message):
    with pytest.raises(TypeError, match=f"{op}: .*{message}" if "must" in message else message):
        FUNCTIONS[op][0](argument)


@pytest.mark.parametrize("op", OPS)
def test_bad_gradients(op):
    backward = getattr(torch.ops.diglot, f"{op}_backward")
    x, statistics = torch.ones(3, device=DEVICE), torch.ones(2, device=DEVICE)
    rest = ("torch",) if op == "global_softmax" else (statistics, 1e-5, "torch")
    for grad in (torch.ones(2, device=DEVICE), x.double()):
        with pytest.raises(ValueError, match="grad_output must have the shape and dtype of"):
            backward(grad, x, *rest)


@pytest.mark.parametrize("op", OPS)
def test_both_languages_agree(op):
    """Sums are in an order of each language's own."""
    x = torch.randn(20_000, device=DEVICE)
    own, twin = (FUNCTIONS[op][0](x, backend=b) for b in ("cuda", "triton"))
    if op == "global_softmax":
        # Each is within 2 ulp of the oracle, and an ulp more for the rounding of x - max. Measured
        # on an H200: 5.
        assert ulp_error(own, twin.double()).max() <= 6
    else:
        torch.testing.assert_close(own, twin, rtol=1e-6, atol=1e-6)


COMPILED = """
import sys, torch
from diglot.tools.resources import compile_triton
from diglot.triton_ops import global_softmax, standardize
from diglot.triton_ops.launch.launch import plan

H200 = (90, 132, 228 << 10, True)

def arguments(n, dtype, offset):
    return torch.empty(n + 4, dtype=dtype)[offset : n + offset]

kernels = []
for dtype in (torch.bfloat16, torch.float32, torch.float64):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    statistics = torch.empty(2, dtype=wide)
    for n in (1 << 18, 1 << 24):  # few chunks and many, of the greatest tiles
        for offset in (0, 1):
            x, y, out = (arguments(n, dtype, offset) for _ in range(3))
            plans = (
                plan(global_softmax.global_softmax_forward, H200, x, 0, out),
                plan(global_softmax.global_softmax_backward, H200, x, y, 0, out),
                plan(standardize.standardize_forward, H200, x, 1e-5, 0, statistics, out),
                plan(standardize.standardize_backward, H200, x, y, statistics, 0, out),
            )
            kernels += [(made.launches[0].specialization, offset) for made in plans]
kernels = kernels[:: int(sys.argv[2])]
for kernel, (_, offset) in zip(compile_triton([k for k, _ in kernels], sys.argv[1]), kernels):
    assert kernel.spill_bytes == kernel.stack_bytes == 0, kernel
    assert offset or kernel.load_bytes == kernel.store_bytes == 16, kernel
print("compiled", len(kernels))
"""


@pytest.mark.ahead_of_time
@pytest.mark.slow
@sampled(5)
def test_triton_kernels_do_not_spill(architecture, step):
    done = run_apart(COMPILED, architecture, str(step))
    assert done.stdout == f"compiled {len(range(0, 48, step))}\n", done.stderr
