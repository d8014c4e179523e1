"""clip_grad_norm_: norms, scaling, what it refuses, and what PyTorch expects of an operator."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from apart import run_apart
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, SLOW_BACKENDS, sampled
from clipping import check, clip, copies, draw, with_grads
from torch.utils._python_dispatch import TorchDispatchMode

import diglot
from diglot.backends import chunk_table
from diglot.reference.clip_grad_norm_ import clip_grad_norm_oracle

op = sys.modules["diglot.ops.clip_grad_norm_"]  # diglot.ops.clip_grad_norm_ names the function

NORM_TYPES = [1.0, 2.0, math.inf]
CHUNK = 16384  # bytes, of tensors as small as these

SIZES = [5, 9001, (), (30, 40), 0, 4096, 4095, 1]


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_norms_and_types(backend, norm_type, dtype):
    total = check(backend, draw(SIZES, dtype), 1.5, norm_type)
    assert total.dtype == dtype


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_as_torch(backend, norm_type):
    grads = [grad for grad in draw(SIZES) if grad.numel()]  # torch has no maximum of none
    theirs = copies(grads)
    expected = torch.nn.utils.clip_grad_norm_(with_grads(theirs), 0.7, norm_type)
    total = clip(grads, 0.7, norm_type, backend=backend)
    # Sums in float32 on either side, PyTorch's on a CPU being the less accurate.
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(grads, theirs, rtol=1e-5, atol=0)


MIXES = [
    FLOATING,
    [torch.float16, torch.bfloat16],
    [torch.bfloat16, torch.float32],
    [torch.float64, torch.float16],
]


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_mixed_types(backend, dtypes):
    grads = [g for dtype in dtypes for g in draw([300, 8200], dtype)]
    expected = torch.nn.utils.clip_grad_norm_(with_grads(copies(grads)), 2.0)
    total = check(backend, grads, 2.0)
    assert total.dtype == expected.dtype


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_chunk_counts_once(backend, dtype):
    """Powers of two at both ends of every chunk: whatever is left out shows in the exact sum."""
    elements = CHUNK // dtype.itemsize
    offset = 3  # so that there is a head, and a tail
    grad = torch.zeros(2 * elements + 17 + offset, dtype=dtype, device=DEVICE)[offset:]
    small = torch.zeros(3, dtype=dtype, device=DEVICE)
    head = 16 // dtype.itemsize - offset % (16 // dtype.itemsize)
    cuts = [head % elements, head + elements, head + 2 * elements]
    places = sorted({at + side for at in cuts for side in (-1, 0)} | {0, grad.numel() - 1})
    values = [2.0**k for k in range(len(places))]
    grad[places] = torch.tensor(values, dtype=dtype, device=DEVICE)
    small[2] = 2.0 ** len(places)
    whole = copies([grad, small])
    expected = sum(values) + 2.0 ** len(places)
    total = clip([grad, small], expected / 4, 1.0, backend=backend)
    assert total.item() == torch.tensor(expected, dtype=dtype).item()
    # And whatever is scaled twice, or not at all.
    torch.testing.assert_close(grad, whole[0] / 4)
    torch.testing.assert_close(small, whole[1] / 4)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_misaligned(backend, dtype):
    memory = torch.full((20000,), 7.0, device=DEVICE).to(dtype)
    bounds = [(1, 3), (5, 6), (10, 5000), (5001, 17001), (18002, 18002)]
    grads = [memory[begin:end].normal_() for begin, end in bounds]
    check(backend, grads, 0.5)
    outside = torch.ones(len(memory), dtype=torch.bool)
    for begin, end in bounds:
        outside[begin:end] = False
    assert (memory.cpu()[outside] == 7).all()


@pytest.mark.parametrize("max_norm", [0, 0.0, 1e-30, 3, math.inf])
@pytest.mark.parametrize("backend", BACKENDS)
def test_greatest_norms(backend, max_norm):
    check(backend, draw([100, 5000]), max_norm)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_within_the_norm_is_not_changed(backend):
    grads = draw([100, 5000], torch.bfloat16)
    before = copies(grads)
    clip(grads, 1e4, backend=backend)
    assert all(map(torch.equal, grads, before))


SPECIAL = [math.nan, math.inf, -math.inf, 1e30]


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, norm_type, value):
    """1e30 overflows in the norm of order 2, as in torch."""
    grads = draw([5000, 100])
    grads[0][4999] = value
    for max_norm in (1.0, math.inf):
        ours, theirs = copies(grads), copies(grads)
        expected = torch.nn.utils.clip_grad_norm_(with_grads(theirs), max_norm, norm_type)
        total = clip(ours, max_norm, norm_type, backend=backend)
        torch.testing.assert_close(total, expected, equal_nan=True)
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_error_if_nonfinite(backend, value):
    grads = draw([5000, 100])
    total = clip(grads, 1.0, error_if_nonfinite=True, backend=backend)
    assert total.isfinite()
    grads[1][3] = value
    before = copies(grads)
    with pytest.raises(RuntimeError, match=r"norm of order 2.0 .* cannot be clipped, and are unch"):
        clip(grads, 1.0, error_if_nonfinite=1, backend=backend)
    torch.testing.assert_close(grads, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_beyond_float16(backend):
    """They are computed in float32: only the returned norm is infinite, and counts as an error."""
    grads = [torch.full((100,), 6e4, dtype=torch.float16, device=DEVICE)]
    with pytest.raises(RuntimeError, match="is inf"):
        clip(grads, 1.0, error_if_nonfinite=True, backend=backend)
    assert (grads[0] == 6e4).all()
    assert clip(grads, 10.0, backend=backend).isinf()
    torch.testing.assert_close(grads[0], torch.ones_like(grads[0]))


GRIDS = [1, 2, 3, 7, 8] + ([64, 132, 264, 528] if DEVICE == "cuda" else [])


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("backend", KERNELS)
def test_the_grid_does_not_matter(backend, norm_type):
    scale = 200 if DEVICE == "cuda" else 1
    grads = draw([7, 9001 * scale, 4099, 5000 * scale]) + draw([8300 * scale], torch.bfloat16)
    results = []
    for blocks in [0, *(GRIDS if backend == "cuda" else [1, 2, *GRIDS[5:]])]:
        own = copies(grads)
        tensors = op._describe(own)
        table = chunk_table.make_table(own[0].device, tensors)
        total = op._launch(own, table, 1.0, norm_type, False, backend, blocks)
        results.append([total, *own])
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend):
    dense = torch.randn(4, 5, 60, 7, device=DEVICE)
    grads = [
        dense.permute(2, 0, 3, 1),
        torch.randn(2, 8, 4, 4, device=DEVICE).to(memory_format=torch.channels_last),
        torch.randn(90, 100, device=DEVICE)[:, ::2],
        torch.randn(90, 100, device=DEVICE)[:, :99],
        torch.randn(0, 3, device=DEVICE)[:, ::2],
    ]
    whole = grads[2]._base.clone()
    check(backend, grads, 0.5)
    assert torch.equal(grads[2]._base[:, 1::2], whole[:, 1::2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_comes_twice(backend):
    """It counts twice, as in torch, and is scaled once."""
    grads = draw([5000, 300])
    expected = torch.nn.utils.get_total_norm([grads[0], grads[1], grads[0]])
    before = copies(grads)
    parameters = with_grads(grads)
    total = diglot.clip_grad_norm_([*parameters, parameters[0]], 0.5, backend=backend)
    torch.testing.assert_close(total, expected)
    for grad, old in zip(grads, before, strict=True):
        torch.testing.assert_close(grad, old * (0.5 / (expected + 1e-6)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_parameters_may_be(backend):
    (grad,) = draw([50])
    for make in (
        lambda p: p,
        lambda p: [p],
        lambda p: (p for p in [p]),
        lambda p: {"a": p}.values(),
    ):
        own = grad.clone()
        (parameter,) = with_grads([own])
        other = torch.zeros(3, device=DEVICE)  # without a gradient
        total = diglot.clip_grad_norm_(make(parameter), 1, "inf", backend=backend)
        assert total == grad.abs().max() and own.abs().max() <= 1
        assert diglot.clip_grad_norm_([other, parameter], 1, 2, backend=backend).isfinite()


def test_no_gradients():
    for parameters in ([], [torch.zeros(3)], torch.zeros(3)):
        total = diglot.clip_grad_norm_(parameters, 1.0)
        assert (total.item(), total.dtype, total.device.type) == (0, torch.float32, "cpu")
    with pytest.warns(UserWarning, match="empty generator"):
        diglot.clip_grad_norm_((p for p in []), 1.0)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_without_elements(backend, norm_type):
    assert clip(draw([0, (3, 0)]), 1.0, norm_type, backend=backend) == 0


def test_errors():
    grads = draw([3])
    for max_norm in (-1.0, math.nan, -math.inf):
        with pytest.raises(ValueError, match="clip_grad_norm_: max_norm must be 0 or more, not"):
            clip(grads, max_norm)
    for norm_type in (0, 3, -math.inf, "0.5", math.nan):
        with pytest.raises(ValueError, match="norm_type must be 1, 2 or infinity, not"):
            clip(grads, 1.0, norm_type)
    with pytest.raises(ValueError, match="backend must be one of"):
        clip(grads, 1.0, backend="numpy")
    sparse = torch.zeros(3, device=DEVICE)
    sparse.grad = torch.ones(3, device=DEVICE).to_sparse()
    with pytest.raises(TypeError, match=r"a gradient must be a dense tensor.*not torch.sparse_coo"):
        diglot.clip_grad_norm_([sparse], 1.0)
    for dtype in (torch.complex64, torch.int32):
        with pytest.raises(TypeError, match="a gradient must have one of the dtypes"):
            clip([torch.ones(3, device=DEVICE).to(dtype)], 1.0)
    with pytest.raises(ValueError, match=r"must be on one device, not on .* and meta"):
        clip([*grads, torch.ones(3, device="meta")], 1.0)
    memory = torch.ones(10, device=DEVICE)
    with pytest.raises(ValueError, match="overlap in memory, and are not the same"):
        clip([memory[:6], memory[5:]], 1.0)


def test_distributed_tensors_are_refused(monkeypatch):
    distributed = pytest.importorskip("torch.distributed.tensor")

    class Pretended(torch.Tensor):
        pass

    monkeypatch.setattr(distributed, "DTensor", Pretended)
    (parameter,) = with_grads([torch.ones(3, device=DEVICE).as_subclass(Pretended)])
    with pytest.raises(TypeError, match="a gradient is a DTensor, whose norm is over all ranks"):
        diglot.clip_grad_norm_(parameter, 1.0)


# --- compiled kernels: those of CUDA are looked at in test_resources.py ---------------------------

COMPILED = """
import sys, torch
from diglot.tools.resources import compile_triton
from diglot.backends.tunables import tunables
from diglot.triton_ops.clip_grad_norm_ import NORMS
from diglot.triton_ops.clip_grad_norm_ import clip_grad_norm_phases as phases
from diglot.triton_ops.launch.plan import Specialization

WARPS = tunables().read("clip_grad_norm.triton.warps")
half, single, double, word = torch.bfloat16, torch.float32, torch.float64, torch.int32
kernels = [
    Specialization(phases, (torch.int64, value, word, total), ("i64",) * 3, constants, WARPS, True)
    for value, total in [(single, half), (single, single), (double, double)]
    for constants in [(norm, True, 0) for norm in NORMS.values()]
]
kernels = kernels[:: int(sys.argv[2])]
for kernel in compile_triton(kernels, sys.argv[1]):
    assert kernel.spill_bytes == kernel.stack_bytes == 0, kernel
    assert kernel.load_bytes == kernel.store_bytes == 16, kernel
    assert dict(kernel.loads)[16] >= 8 and dict(kernel.stores)[16] >= 8, kernel
print("compiled", len(kernels))
"""


@pytest.mark.ahead_of_time
@pytest.mark.slow
@sampled(4)
def test_triton_kernels_do_not_spill(architecture, step):
    done = run_apart(COMPILED, architecture, str(step))
    assert done.stdout == f"compiled {len(range(0, 9, step))}\n", done.stderr


# --- what PyTorch expects of an operator ----------------------------------------------------------


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_compiled(backend, compiler):
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)).to(DEVICE)
    x = torch.randn(5, 8, device=DEVICE)

    @torch.compile(fullgraph=True, backend=compiler)
    def clipped(max_norm):
        return diglot.clip_grad_norm_(layer.parameters(), max_norm, backend=backend)

    for max_norm in (0.5, 0.25):
        layer.zero_grad()
        layer(x).square().sum().backward()
        grads = [p.grad for p in layer.parameters()]
        norm, scaled = clip_grad_norm_oracle(grads, max_norm)
        # Of float32, and of some two hundred squares, added up in about eight steps.
        rtol = 4 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(clipped(max_norm).double(), norm, rtol=rtol, atol=0)
        for grad, expected in zip(grads, scaled, strict=True):
            torch.testing.assert_close(grad.double(), expected, rtol=1e-5, atol=1e-7)
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_operator(backend):
    grads = [*draw([5, 300]), torch.randn(20, 30, device=DEVICE)[:, ::2]]
    arguments = (grads, 0.5, 2.0, False, backend)
    torch.library.opcheck(torch.ops.diglot.clip_grad_norm_.default, arguments)


def test_modes_see_it():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    seen = []
    grads = draw([5])
    for _ in range(2):  # the second finds its table
        with Seen():
            clip(grads, 0.5, backend="torch")
    assert seen.count("diglot.clip_grad_norm_.default") == 2


def test_meta_tensors():
    total = clip([torch.ones(3, device="meta", dtype=torch.bfloat16)], 1.0)
    assert (total.device.type, total.dtype, total.shape) == ("meta", torch.bfloat16, ())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_autograd_sees_the_write(backend):
    w = torch.randn(3, device=DEVICE, requires_grad=True)
    (w**3).sum().backward(create_graph=True)
    version = w.grad._version
    total = diglot.clip_grad_norm_(w, 1e-3, backend=backend)
    assert w.grad.requires_grad and not total.requires_grad
    assert w.grad._version > version
