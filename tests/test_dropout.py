"""dropout: masks bit by bit, both ends of p, gradients, in place, errors."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from apart import run_apart
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    SLOW_BACKENDS,
    examples,
    needs_extension,
    slow_interpreted,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, in_order
from operands import operands

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import plan, run
from diglot.backends.tunables import use_tunables
from diglot.reference.dropout import dropout_mask, threshold_and_scale
from diglot.reference.philox import random_bits
from diglot.tools import cuda_library
from diglot.tools.machine_code import demangle, dump, read_listing

SEEDS = st.integers(-(2**63), 2**64 - 1)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def expected(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Every bit of the result: one product, rounded once."""
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    _, scale = threshold_and_scale(p)
    factor = dropout_mask(x.shape, p, seed, x.device).to(compute) * scale
    return (x.to(compute) * factor).to(x.dtype)


def assert_bits(result: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same bits, but of NaN."""
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    bits = BITS[result.element_size()]
    same = result.contiguous().view(bits) == wanted.contiguous().view(bits)
    assert (same | (result.isnan() & wanted.isnan())).all()


@settings(max_examples=examples(60))
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bit_of_any_operand(backend, data):
    """Of every dtype, stride, size and history; forward and backward."""
    (x,) = operands(data, 1, FLOATING)
    p = data.draw(st.sampled_from([0.1, 0.5, 1 / 3, 0.999, 1.0]) | st.floats(1e-300, 1), label="p")
    seed = data.draw(SEEDS, label="seed")
    y = diglot.dropout(x, p, seed=seed, backend=backend)
    own = x.detach().as_subclass(torch.Tensor)
    own = own.resolve_neg().clone(memory_format=torch.preserve_format)
    result = y.detach().as_subclass(torch.Tensor)
    assert_bits(result, expected(own, p, seed))
    assert steps(result) == steps(torch.empty_like(own))
    assert y.requires_grad == x.requires_grad
    if not y.requires_grad:
        return
    grad = torch.randn(y.shape, device=DEVICE).to(y.dtype)
    (own,) = torch.autograd.grad(y, x, grad)
    assert_bits(own.as_subclass(torch.Tensor), expected(grad, p, seed))


@settings(max_examples=examples(25))
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_every_bit_of_any_shape_and_stride(backend, data):
    rank = data.draw(st.integers(0, 5), label="rank")
    greatest = 3 if rank == 5 else 4  # interpreted, a thousand elements take Triton 20 ms
    sizes = [data.draw(st.integers(1, greatest)) for _ in range(rank)]
    x = torch.randn([2 * size for size in sizes], device=DEVICE)
    x = x[tuple(slice(None, None, data.draw(st.sampled_from([1, 2]))) for _ in sizes)]
    x = x.permute(data.draw(st.permutations(range(rank))))
    x = x.to(data.draw(st.sampled_from(FLOATING)))
    seed = data.draw(SEEDS, label="seed")
    assert_bits(diglot.dropout(x, 0.4, seed=seed, backend=backend), expected(x, 0.4, seed))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_do_not_depend_on_dtypes_and_strides(backend, layout):
    """Nor do those of gradients, of whatever layout."""
    masks = []
    for dtype in FLOATING:
        x = LAYOUTS[layout](torch.ones(32, 32, device=DEVICE, dtype=dtype))
        leaf = torch.zeros(x.shape, device=DEVICE, dtype=dtype, requires_grad=True)
        out = diglot.dropout(leaf, 0.3, seed=7, backend=backend)
        (grad,) = torch.autograd.grad(out, leaf, x)
        masks += [diglot.dropout(x, 0.3, seed=7, backend=backend) != 0, grad != 0]
    reference = dropout_mask(masks[0].shape, 0.3, 7, torch.device(DEVICE))
    assert 0.5 < reference.double().mean() < 0.9
    for mask in masks:
        assert torch.equal(mask, reference)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_more_dimensions_than_a_kernel_takes(backend):
    """The index of every slice starts where the slice does."""
    x = torch.randn((3,) * 10, device=DEVICE)[(slice(2),) * 10]
    x = x.permute([5, 0, 3, 8, 1, 2, 7, 4, 9, 6])
    assert_bits(diglot.dropout(x, 0.5, seed=3, backend=backend), expected(x, 0.5, 3))


def launched(
    backend: str, x: torch.Tensor, seed: int, offset: int, p: float = 0.5, name: str = "forward"
) -> torch.Tensor:
    """What a launcher makes of x."""
    out = torch.empty_like(x)
    drawn = torch.full((), seed, device=DEVICE)
    run(backend, "dropout", f"dropout_{name}", x, drawn, offset, *threshold_and_scale(p), out)
    return out


TINY = 1 << 17 if DEVICE == "cuda" else 4096
SIZES = {"cuda": [1, 7, 129, TINY + 519], "triton": [1, 7, 256, 257, 2047]}


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
# Small arrays, as large ones.
@use_tunables({"elementwise.triton.tiny_elements": 16, "elementwise.cuda.tiny_elements": TINY})
def test_every_element_is_written_and_no_other(backend, dtype):
    """At an aligned place and at others, where flat kernels have no head."""
    for n in SIZES[backend]:
        for offset, own_offset in ((0, 0), (3, 3), (1, 0)):
            x = torch.randn(n + offset, device=DEVICE).to(dtype)[offset:]
            memory = torch.full((n + 64,), 77.0, device=DEVICE, dtype=dtype)
            out = memory[own_offset : own_offset + n]
            drawn = torch.full((), 5, device=DEVICE)
            run(backend, "dropout", "dropout_forward", x, drawn, 0, *threshold_and_scale(0.5), out)
            variant = diglot.last_run().variant
            assert_bits(out, expected(x, 0.5, 5))
            rest = torch.cat([memory[:own_offset], memory[own_offset + n :]])
            assert (rest == 77).all()
            is_tiny = backend == "cuda" and n <= TINY
            is_flat = is_tiny or backend == "triton" or offset == own_offset == 0
            assert variant.startswith("flat" if is_flat else "strided"), (n, offset, variant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["cuda"] if DEVICE == "cuda" else KERNELS[:1])
def test_large_arrays(backend, dtype):
    """Where a thread makes several accesses."""
    vectors = 8 * 132 * 128 if DEVICE == "cuda" else 3000
    elements = 8 if dtype == torch.float32 else 16  # of a thread
    n = vectors * 16 // dtype.itemsize + 519
    x = torch.randn(n, device=DEVICE).to(dtype)
    limits = {"small_vectors": vectors, "tiny_elements": TINY}
    with diglot.use_plans({f"elementwise.cuda.{name}": limit for name, limit in limits.items()}):
        assert_bits(diglot.dropout(x, 0.2, seed=1, backend=backend), expected(x, 0.2, 1))
    assert diglot.last_run().variant == f"flat, {elements} elements per thread"


ROWS = {
    "columns of a wider one": lambda x: x[:, :32],
    "rows apart": lambda x: x.reshape(4, 16, 64)[:, :5],
    "odd rows": lambda x: x[:, :33],
    "rows of two": lambda x: x.reshape(-1, 16)[:, :2],
}


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_in_16_byte_accesses(backend, dtype, layout):
    x = ROWS[layout](torch.randn(64, 64, device=DEVICE).to(dtype))
    assert_bits(diglot.dropout(x, 0.5, seed=2, backend=backend), expected(x, 0.5, 2))
    whole = layout in ("columns of a wider one", "rows apart")
    whole |= layout == "rows of two" and dtype == torch.float64
    assert ("16-byte" in diglot.last_run().variant) == whole


# Counters of 64 bits: the carry into the upper word, the upper word alone, and the wrap.
OFFSETS = [0, 1, 2**32 - 3, 2**32, 2**40 + 5, 2**63 - 2, -3, -(2**63)]


@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_of_64_bits(backend, offset, name):
    """The bits of elements far behind the first, without the memory of those before."""
    from test_philox import bits_of  # in Python's own integers

    for shape in ((40,), (5, 8)):
        x = torch.ones(shape, device=DEVICE)
        x = x.t() if len(shape) == 2 else x
        result = launched(backend, x, 99, offset, 0.5, name)
        wanted = [bits_of(99, offset, i) >= 2**31 for i in range(40)]
        assert (result != 0).flatten().tolist() == wanted


@settings(max_examples=examples(15))
@given(start=st.integers(0, 2**62), seed=SEEDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_a_part_has_the_mask_of_its_place(backend, start, seed):
    """Elements from 4 k on, launched alone with the offset k."""
    seed -= 2**64 if seed >= 2**63 else 0
    x = torch.randn(300, device=DEVICE)
    whole = launched(backend, x, seed, start)
    for k in (1, 10, 64):
        assert_bits(launched(backend, x[4 * k :], seed, start + k), whole[4 * k :])


@pytest.mark.parametrize(
    ("step", "variant"),
    [(1, "strided, 16-byte accesses, 64-bit offsets"), (2, "strided, 64-bit offsets")],
)
@pytest.mark.parametrize("backend", KERNELS)
def test_strides_beyond_31_bits(backend, step, variant):
    """Three rows 2^30 elements apart; of the memory in between nothing is touched."""
    memory = torch.empty(2**31 + 64, dtype=torch.bfloat16, device=DEVICE)
    x = memory.as_strided((3, 32), (2**30, step))
    x.copy_(torch.randn(3, 32))
    assert_bits(diglot.dropout(x, 0.5, seed=4, backend=backend), expected(x, 0.5, 4))
    assert diglot.last_run().variant == variant


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_threshold(backend):
    """An element is kept if its bits, as a share of 2^32, are at least p: to the last bit."""
    bits = random_bits(torch.full((), 11, device=DEVICE), 0, 100).tolist()
    x = torch.ones(100, device=DEVICE)
    for i in (0, 1, 2, 3, 50, 97):
        at = bits[i] / 2**32
        for p, is_kept in (
            (at, True),
            (math.nextafter(at, 0), True),
            (math.nextafter(at, 1), False),
        ):
            assert bool(diglot.dropout(x, p, seed=11, backend=backend)[i] != 0) == is_kept


SPECIAL = [math.nan, math.inf, -math.inf, 1.0, -1.0, 0.0, -0.0, 3e38, 1e-40]


def special(backend: str, dtype: torch.dtype) -> torch.Tensor:
    # Triton's interpreter flushes bfloat16's subnormal numbers.
    flushes = backend == "triton" and DEVICE == "cpu" and dtype == torch.bfloat16
    values = SPECIAL[:-1] if flushes else SPECIAL
    return torch.tensor(values * 3, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_both_ends_of_p(backend, dtype):
    x = special(backend, dtype)
    for p in (1, 1.0, 1 - 2**-53, 1 - 2**-33):  # of the last, no multiple of 2^-32 is as large
        result = diglot.dropout(x, p, backend=backend)
        assert_bits(result, F.dropout(x, 1.0))
        assert not result[x.isfinite()].any()
    for name in ("forward", "backward"):
        assert_bits(launched(backend, x, 1, 0, 0.0, name), x)
    tiny = diglot.dropout(torch.ones(50, device=DEVICE), 1e-300, backend=backend)
    assert torch.equal(tiny, torch.ones_like(tiny)) or (tiny == 0).sum() == 1


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_go_where_torch_lets_them(backend, dtype):
    x = special(backend, dtype)
    result = diglot.dropout(x, 0.5, seed=5, backend=backend)
    mask = dropout_mask(x.shape, 0.5, 5, x.device)
    assert_bits(result, torch.where(mask, x * 2, x * 0))
    ones = torch.full((500,), math.inf, device=DEVICE)
    assert F.dropout(ones).isnan().any()  # a dropped infinity is NaN there, too


@settings(max_examples=examples(30))
@given(p=st.floats(0.01, 0.99), seed=SEEDS)
@pytest.mark.parametrize("backend", ["torch", *(KERNELS if DEVICE == "cuda" else KERNELS[:1])])
def test_statistics_of_masks(backend, p, seed):
    """The share kept, of all and of each word; and of neighbours that are both kept."""
    n = 100_000
    mask = diglot.dropout(torch.ones(n, device=DEVICE), p, seed=seed, backend=backend) != 0

    def is_likely(sample: torch.Tensor, probability: float) -> bool:
        deviation = math.sqrt(probability * (1 - probability) / sample.numel())
        return abs(sample.double().mean().item() - probability) < 6 * deviation

    q = 1 - p
    assert is_likely(mask, q)
    for word in range(4):
        assert is_likely(mask[word::4], q)
    for step in (1, 2, 4, 1024):  # pairs that have no element in common
        pairs = mask[: n - n % (2 * step)].view(-1, 2, step)
        assert is_likely(pairs[:, 0] & pairs[:, 1], q * q)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_stays(backend):
    x = torch.full((3000,), 3.0, device=DEVICE)
    for p in (0.1, 0.5, 0.9):
        deviation = 3 * math.sqrt(p / (1 - p) / x.numel())
        assert abs(diglot.dropout(x, p, seed=8, backend=backend).mean() - 3) < 6 * deviation


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_has_the_mask_of_forward(backend, dtype):
    """And stores nothing but the seed."""
    x = torch.randn(7, 333, device=DEVICE).to(dtype).requires_grad_()
    saved: list[torch.Tensor] = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        diglot.record_runs() as runs,
    ):
        y = diglot.dropout(x, 0.25, backend=backend)
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad != 0, y != 0)
    assert [(t.dtype, t.numel()) for t in saved] == [(torch.int64, 1)]
    assert [run.launcher for run in runs] == ["dropout_forward"]
    with diglot.record_runs() as runs:
        diglot.dropout(x, 0.25, backend=backend).sum().backward()
    assert [run.launcher for run in runs] == ["dropout_forward", "dropout_backward"]
    assert {run.backend for run in runs} == {backend}


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_gradcheck(backend):
    x = torch.randn(2, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    function = lambda t: diglot.dropout(t, 0.4, seed=6, backend=backend)  # noqa: E731
    torch.autograd.gradcheck(function, (x,))
    torch.autograd.gradgradcheck(function, (x,))
    torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_have_the_mask(backend):
    x = torch.randn(50, device=DEVICE, requires_grad=True)
    y = diglot.dropout(x, 0.5, backend=backend)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 8 * (y != 0))


# In place.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place(backend, dtype, layout):
    x = LAYOUTS[layout](torch.randn(32, 32, device=DEVICE).to(dtype))
    wanted, version = expected(x, 0.3, 9), x._version
    if layout == "expanded":
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            diglot.dropout(x, 0.3, inplace=True, seed=9, backend=backend)
        return
    result = diglot.dropout(x, 0.3, inplace=True, seed=9, backend=backend)
    assert result is x and x._version > version
    assert_bits(x, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_in_place(backend):
    """Of a tensor of its own, and of a view, through which its base is changed."""
    leaf = torch.randn(6, 5, device=DEVICE, requires_grad=True)
    for of in (lambda t: t, lambda t: t[1:4], lambda t: t.t()):
        base = leaf * 2
        part = of(base)
        result = diglot.dropout(part, 0.5, inplace=True, seed=3, backend=backend)
        assert result is part
        copy = leaf.detach().clone().requires_grad_()
        factor = torch.ones_like(copy)
        of(factor).copy_(expected(torch.ones(of(factor).shape, device=DEVICE), 0.5, 3))
        torch.testing.assert_close(base, copy * 2 * factor)
        (own,) = torch.autograd.grad(base.square().sum(), leaf)
        (wanted,) = torch.autograd.grad((copy * 2 * factor).square().sum(), copy)
        torch.testing.assert_close(own, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_is_an_error_where_torchs_is(backend):
    leaf = torch.ones(6, device=DEVICE, requires_grad=True)
    with torch.inference_mode():
        of_inference = torch.ones(6, device=DEVICE)
    for x in (leaf, leaf[:3], (leaf * 1).unbind()[0], (leaf * 1).expand(2, 6), of_inference):
        before = x.detach().clone()
        with pytest.raises(RuntimeError):
            F.dropout(x, inplace=True)
        if x is of_inference:  # PyTorch changes it all the same
            before = x.detach().clone()
        with pytest.raises(RuntimeError):
            diglot.dropout(x, inplace=True, backend=backend)
        assert torch.equal(x.detach(), before)
    with torch.no_grad():
        assert diglot.dropout(leaf, inplace=True, backend=backend) is leaf
    with torch.inference_mode():
        assert diglot.dropout(of_inference, inplace=True, backend=backend) is of_inference


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_changed_in_place_cannot_be_used_for_gradients(backend):
    leaf = torch.ones(6, device=DEVICE, requires_grad=True)
    for records in (True, False):
        x = leaf * 1
        y = x * leaf
        with torch.set_grad_enabled(records):
            diglot.dropout(x if records else x.detach(), inplace=True, backend=backend)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# Contract.


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_dropped_unless_training(backend):
    """The result is the input itself, as in PyTorch, and nothing is drawn."""
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    state = torch.get_rng_state() if DEVICE == "cpu" else torch.cuda.get_rng_state()
    for arguments in ({"training": False}, {"p": 0}, {"p": 0.0, "inplace": True}):
        assert diglot.dropout(x, backend=backend, **arguments) is x
        assert F.dropout(x, **{"p": 0.5, **arguments}) is x
    after = torch.get_rng_state() if DEVICE == "cpu" else torch.cuda.get_rng_state()
    assert torch.equal(state, after)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes(backend):
    for shape in [(), (0,), (3, 0, 2), (1,), (7,), (33, 65), (2, 3, 4, 5)]:
        x = torch.randn(shape, device=DEVICE)
        assert_bits(diglot.dropout(x, 0.5, seed=1, backend=backend), expected(x, 0.5, 1))
    for format in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 3, 4, 5, device=DEVICE).to(memory_format=format)
        assert diglot.dropout(x, backend=backend).stride() == F.dropout(x).stride()


def test_module():
    module = diglot.nn.Dropout(0.3, backend="torch")
    assert repr(module) == "diglot.nn.Dropout(p=0.3, inplace=False, backend='torch')"
    assert repr(diglot.nn.Dropout()) == f"diglot.nn.{torch.nn.Dropout()!r}"
    assert isinstance(module, torch.nn.Dropout)
    x = torch.ones(1000, device=DEVICE)
    torch.manual_seed(3)
    result = module(x)
    torch.manual_seed(3)
    assert torch.equal(result, diglot.dropout(x, 0.3, backend="torch"))
    assert (result == 0).any() and not list(module.parameters())
    assert module.eval()(x) is x
    assert diglot.nn.Dropout(inplace=True)(x) is x and (x == 0).any()
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="p must be from 0 to 1"):
            diglot.nn.Dropout(p)
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.nn.Dropout(backend="opencl")


X = torch.ones(4)
OTHER = torch.Generator("cpu") if DEVICE == "cuda" else None


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1.0, 2.0],), {}, TypeError, "input must be a torch.Tensor, not list"),
        ((torch.arange(3),), {}, TypeError, "input must have one of the dtypes float32.*not int64"),
        ((X.to_sparse(),), {}, TypeError, "input must be a dense tensor"),
        ((X, -0.1), {}, ValueError, "p must be from 0 to 1, not -0.1"),
        ((X, 1.0000001), {}, ValueError, "p must be from 0 to 1"),
        ((X, math.nan), {}, ValueError, "p must be from 0 to 1, not nan"),
        ((X, 2, False), {}, ValueError, "p must be from 0 to 1, not 2"),
        ((X, "half"), {}, TypeError, "p must be a real number, not str"),
        ((X, None), {}, TypeError, "p must be a real number, not NoneType"),
        ((X,), {"generator": 5}, TypeError, "generator must be a torch.Generator, not int"),
        ((X,), {"seed": 1.5}, TypeError, "seed must be an integer or an int64 tensor, not float"),
        ((X,), {"seed": True}, TypeError, "seed must be an integer or an int64 tensor, not bool"),
        ((X,), {"seed": X}, TypeError, "seed must be .* an int64 tensor, not torch.float32"),
        ((X,), {"seed": torch.arange(2)}, ValueError, "seed must have one element, not 2"),
        ((X,), {"seed": 2**64}, ValueError, "seed must be an integer of at most 64 bits"),
        ((X,), {"seed": -(2**63) - 1}, ValueError, "seed must be an integer of at most 64 bits"),
        (
            (X,),
            {"seed": torch.zeros(1, dtype=torch.int64, device="meta")},
            ValueError,
            "seed must be on input's device, cpu, not on meta",
        ),
        (
            (X,),
            {"seed": 1, "generator": torch.Generator()},
            ValueError,
            "give generator or seed, not both",
        ),
        ((X,), {"backend": "opencl"}, ValueError, "backend must be one of"),
    ],
)
def test_bad_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        diglot.dropout(*arguments, **options)


@pytest.mark.gpu
def test_a_generator_of_another_device():
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="generator must be on input's device, cuda:0, not on cpu"):
        diglot.dropout(x, generator=torch.Generator())
    with pytest.raises(ValueError, match="generator must be on input's device, cpu, not on cuda"):
        diglot.dropout(x.cpu(), generator=torch.Generator("cuda"))
    with pytest.raises(ValueError, match="seed must be on input's device, cuda:0, not on cpu"):
        diglot.dropout(x, seed=torch.tensor(3))


OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_opcheck(backend):
    x = torch.randn(4, 6, device=DEVICE, requires_grad=True)
    half = torch.randn(4, 12, device=DEVICE, dtype=torch.bfloat16)[:, ::2]
    seed = torch.full((), 2**40, device=DEVICE)
    for name in ("dropout", "dropout_backward"):
        op = getattr(torch.ops.diglot, name).default
        for tensor in (x, half, half.t()):
            torch.library.opcheck(op, (tensor, seed, 3, 0.4, backend), test_utils=OPCHECKS)


@pytest.mark.parametrize("backend", [pytest.param("cuda", marks=slow_interpreted)])
def test_kernels_agree_on_many(backend):
    x = torch.randn(1_000_003 if DEVICE == "cuda" else 6_003, device=DEVICE)
    for dtype in FLOATING:
        own = [diglot.dropout(x.to(dtype), 0.1, seed=5, backend=b) for b in (backend, "triton")]
        assert_bits(*own)


def test_dense_layouts_of_another_order_are_strided():
    """Their masks go by row-major indices, not by places in memory."""
    x = in_order(torch.ones(4, 8, 8, device=DEVICE), (1, 2, 0))
    own = diglot.dropout(x, seed=3, backend="torch")
    assert torch.equal(own, diglot.dropout(x.contiguous(), seed=3, backend="torch"))
    assert own.stride() == x.stride()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_is_changed_in_place(backend):
    """A Parameter is no Tensor, which a launcher would take for traced."""
    x = torch.nn.Parameter(torch.ones(1000, device=DEVICE))
    expected = diglot.dropout(x.detach(), 0.5, seed=3, backend=backend)
    with torch.no_grad():
        assert diglot.dropout(x, 0.5, True, True, seed=3, backend=backend) is x
    assert torch.equal(x.detach(), expected) and diglot.last_run().backend == backend


@pytest.mark.parametrize("architecture", [80, 90])
def test_triton_starts_while_its_seed_is_drawn(architecture):
    """Where the GPU can, and in both walks; tests/test_cuda_plans.py has CUDA C++. An op without a
    seed starts as usual.
    """
    flat = torch.empty(64, 64, device=DEVICE)
    seed = torch.zeros((), dtype=torch.int64, device=DEVICE)
    with plan_runs(Device(architecture, 132, 233_472, architecture >= 90)):
        for x in (flat, flat[:, ::2], flat[0]):
            out = torch.empty_like(x)
            dropped = plan("triton", "dropout", "dropout_forward", x, seed, 0, 1, 1.0, out)
            assert [launch.uses_pdl for launch in dropped.launches] == [architecture >= 90]
            other = plan("triton", "gelu", "gelu_forward", x, "none", out)
            assert [launch.uses_pdl for launch in other.launches] == [False]


COMPILED = """
import torch
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import plan
from diglot.tools.resources import compile_stages

x, seed = torch.empty(64, 64), torch.zeros((), dtype=torch.int64)
for architecture in (80, 90):
    for operand in (x, x.t()):
        with plan_runs(Device(architecture, 132, 233_472, architecture >= 90)):
            made = plan("triton", "dropout", "dropout_forward", operand, seed, 0, 1, 1.0, x)
        kernel = compile_stages(made.launches[0].specialization, f"sm_{architecture}")
        code = kernel.stages["ptx"].decode()
        print(code.find("griddepcontrol.wait"), code.index("ld.global"))
"""


@pytest.mark.ahead_of_time
def test_triton_waits_before_it_reads():
    """Where the GPU starts it early, and in both walks. Elsewhere there is no such instruction."""
    done = run_apart(COMPILED)
    assert done.returncode == 0, done.stderr[-3000:]
    places = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [wait for wait, _ in places[:2]] == [-1, -1]
    assert len(places) == 4 and all(0 < wait < load for wait, load in places[2:])


FLAT = re.compile(r".*elementwise_flat<.*Dropout<(?!double).*FlatShape<(\d), [48]>")


@pytest.mark.slow
@pytest.mark.compiled
@needs_extension
def test_cuda_loads_before_it_waits_for_the_seed():
    """A thread issues its loads before it computes anything with the seed, so it waits for memory
    once. R2UR moves the seed to registers that all threads share.
    """
    architecture = cuda_library.code_that_runs("sm_90")
    if architecture != "sm_90a":
        pytest.skip("the extension has no code for sm_90a")
    loads = {}
    for entry in cuda_library.library_usage()[architecture]:
        if found := FLAT.match(demangle(entry.symbol)):
            loads[entry.symbol] = int(found[1])
    half = len(loads) // 2  # one access a thread, and two; both for each type that was built
    assert half >= 2 and sorted(loads.values()) == [1] * half + [2] * half
    library = str(cuda_library.library_path())
    text = dump("-sass", "-arch", architecture, "-fun", ",".join(loads), library)
    for symbol, listing in read_listing(text).items():
        end = listing.index("R2UR") if "R2UR" in listing else listing.index("STG.E.128")
        assert listing[:end].count("LDG.E.128") == loads[symbol], demangle(symbol)
