"""Where dropout's seeds come from: generators, graphs, compilers, checkpoints, transforms."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from backends import BACKENDS, DEVICE, KERNELS
from test_dropout import expected
from torch.utils.checkpoint import checkpoint

import diglot

COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)]
ONES = torch.ones(500, device=DEVICE)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def mask(backend: str, **arguments) -> torch.Tensor:
    return diglot.dropout(ONES, 0.5, backend=backend, **arguments) != 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_manual_seed(backend):
    torch.manual_seed(1)
    first, second = mask(backend), mask(backend)
    torch.manual_seed(1)
    assert torch.equal(mask(backend), first)
    assert torch.equal(mask(backend), second)
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    assert not torch.equal(mask(backend), first)


@pytest.mark.parametrize("backend", KERNELS)
def test_the_backend_does_not_matter(backend):
    """A generator's state means the same masks everywhere on its device."""
    torch.manual_seed(4)
    own = [mask(backend), mask("torch")]
    torch.manual_seed(4)
    other = [mask("torch"), mask(backend)]
    assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fork_rng(backend):
    torch.manual_seed(1)
    with torch.random.fork_rng():
        inside = mask(backend)
    assert torch.equal(mask(backend), inside)


@pytest.mark.parametrize("backend", BACKENDS)
def test_generators(backend):
    """The caller's generator is drawn from, and PyTorch's is not."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    torch.manual_seed(1)
    first = mask(backend, generator=generator)
    second = mask(backend, generator=generator)
    default = mask(backend)
    assert not torch.equal(first, second)
    generator.manual_seed(3)
    assert torch.equal(mask(backend, generator=generator), first)
    torch.manual_seed(1)
    assert torch.equal(mask(backend), default)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds(backend):
    """As an integer of 64 bits, signed or not, or a tensor; nothing is drawn."""
    torch.manual_seed(1)
    default = mask(backend)
    torch.manual_seed(1)
    for seed in (0, -1, 2**63 - 1, -(2**63), 12345):
        own = mask(backend, seed=seed)
        assert torch.equal(own, expected(ONES, 0.5, seed) != 0)
        if seed < 0:
            assert torch.equal(mask(backend, seed=seed + 2**64), own)
        for shape in ((), (1,), (1, 1)):
            tensor = torch.full(shape, seed, device=DEVICE)
            assert torch.equal(mask(backend, seed=tensor), own)
    assert not torch.equal(mask(backend, seed=1), mask(backend, seed=2**32 + 1))
    assert torch.equal(mask(backend), default)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_that_changes_before_the_backward_pass(backend):
    seed = torch.zeros((), dtype=torch.int64, device=DEVICE)
    y = diglot.dropout(ONES.clone().requires_grad_(), seed=seed, backend=backend)
    seed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Checkpoints restore the generator before they compute again.


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointing(backend, use_reentrant):
    x = torch.ones(500, device=DEVICE, requires_grad=True)
    kept = []

    def function(t):
        y = diglot.dropout(t, 0.5, backend=backend)
        kept.append(y.detach() != 0)
        return y * y

    y = checkpoint(function, x, use_reentrant=use_reentrant)
    mask(backend)  # draws in between
    y.sum().backward()
    assert len(kept) == 2 and torch.equal(*kept)
    assert torch.equal(x.grad, 8 * kept[0])


# Compilers: a mask for every call, and one for forward and backward.


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled(backend, compiler, dynamic):
    def function(x):
        return diglot.dropout(x * 1, 0.5, backend=backend)

    compiled = torch.compile(function, fullgraph=True, backend=compiler, dynamic=dynamic)
    for n in (500, 300):
        masks = []
        for seed in (1, None, 1):
            if seed is not None:
                torch.manual_seed(seed)
            x = torch.ones(n, device=DEVICE, requires_grad=True)
            y = compiled(x)
            assert ((y == 0) | (y == 2)).all()
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(grad, y.detach())
            masks.append(y.detach() != 0)
        assert not torch.equal(masks[0], masks[1])
        assert torch.equal(masks[0], masks[2])


@pytest.mark.slow
def test_inductor_on_the_cpu():
    """Which needs g++. It draws seeds of its own; masks are those of the seeds."""
    compiled = torch.compile(
        lambda x: (diglot.dropout(x, 0.5, seed=5, backend="torch"), diglot.dropout(x, 0.5)),
        fullgraph=True,
    )
    x = torch.randn(3, 100)
    torch.manual_seed(1)
    own, first = compiled(x)
    assert torch.equal(own, expected(x, 0.5, 5))
    assert not torch.equal(compiled(x)[1] != 0, first != 0)
    torch.manual_seed(1)
    assert torch.equal(compiled(x)[1], first)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_with_a_seed(backend, compiler):
    """A seed that is a number, whose values do not all compile again; and one that is a tensor."""
    counter = torch._dynamo.testing.CompileCounterWithBackend(compiler)

    @torch.compile(fullgraph=True, backend=counter)
    def function(x, seed):
        return diglot.dropout(x, 0.5, seed=seed, backend=backend)

    for seed in (3, 4, 5, 2**40, -7, 2**62):
        assert torch.equal(function(ONES, seed), expected(ONES, 0.5, seed))
    assert counter.frame_count <= 2
    for seed in (3, 4):
        drawn = torch.full((), seed, device=DEVICE)
        assert torch.equal(function(ONES, drawn), expected(ONES, 0.5, seed))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_in_place(backend, compiler):
    @torch.compile(fullgraph=True, backend=compiler)
    def function(x):
        y = x * 1
        diglot.dropout(y, 0.5, inplace=True, seed=6, backend=backend)
        return y

    x = torch.randn(300, device=DEVICE, requires_grad=True)
    y = function(x)
    assert torch.equal(y, expected(x, 0.5, 6))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, expected(torch.ones_like(x), 0.5, 6))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_checkpoint(backend, compiler):
    """A recomputed dropout has the mask that it had."""

    @torch.compile(fullgraph=True, backend=compiler)
    def function(x):
        return checkpoint(
            lambda t: diglot.dropout(t.sin(), 0.5, backend=backend).square(), x, use_reentrant=False
        )

    x = torch.full((500,), 0.5, device=DEVICE, requires_grad=True)
    for _ in range(2):
        y = function(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad != 0, y != 0)


# Transforms.


@pytest.mark.parametrize("backend", BACKENDS)
def test_randomness_of_vmap(backend):
    x = torch.ones(3, 200, device=DEVICE)

    def function(t, **arguments):
        return diglot.dropout(t, 0.5, backend=backend, **arguments)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(function)(x)
    different = torch.func.vmap(function, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    same = torch.func.vmap(function, randomness="same")(x)
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    # With a seed nothing is random: every sample has the mask of that seed.
    seeded = torch.func.vmap(lambda t: function(t, seed=5))(x)
    assert torch.equal(seeded, expected(x[0], 0.5, 5).expand(3, -1))
    seeds = torch.arange(3, device=DEVICE)
    seeded = torch.func.vmap(lambda t, s: function(t, seed=s))(x, seeds)
    assert all(torch.equal(seeded[i], expected(x[0], 0.5, i)) for i in range(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    x, tangent = torch.randn(2, 4, 16, device=DEVICE)

    def function(t):
        return diglot.dropout(t, 0.5, seed=3, backend=backend)

    value, slope = torch.func.jvp(function, (x,), (tangent,))
    assert torch.equal(value, expected(x, 0.5, 3))
    assert torch.equal(slope, expected(tangent, 0.5, 3))
    grad = torch.func.grad(lambda t: (function(t) * tangent).sum())(x)
    assert torch.equal(grad, expected(tangent, 0.5, 3))
    grads = torch.func.vmap(torch.func.grad(lambda t: function(t).sum()))(x)
    assert torch.equal(grads, expected(torch.ones_like(x[0]), 0.5, 3).expand(4, -1))
    jacobian = torch.func.jacrev(function)(x[0])
    assert torch.equal(jacobian, torch.diag(expected(torch.ones_like(x[0]), 0.5, 3)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_meta_and_fake_tensors(backend):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(2, 3, device="meta").t()
    for arguments in ({}, {"seed": 3}, {"inplace": True}):
        y = diglot.dropout(x, backend=backend, **arguments)
        assert y.is_meta and y.shape == x.shape and y.stride() == x.stride()
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last)
        y = diglot.dropout(x, backend=backend)
        assert (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())


# CUDA graphs.


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_a_mask_for_every_replay(backend):
    """The backward pass in the same graph has the same mask; torch.manual_seed sets it."""
    x = torch.ones(5000, device="cuda", requires_grad=True)

    def step():
        y = diglot.dropout(x, 0.5, backend=backend)
        return y, *torch.autograd.grad(y.sum(), x)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, grad = step()
    masks = []
    for seed in (1, None, None, 1):
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        assert torch.equal(y, grad)
        assert 2000 < (y != 0).sum() < 3000
        masks.append((y != 0).clone())
    assert torch.equal(masks[0], masks[3])
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    torch.manual_seed(1)
    assert torch.equal(diglot.dropout(x, 0.5, backend=backend) != 0, masks[0])  # as in eager mode


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_captured_with_a_generator_or_a_seed(backend):
    x = torch.ones(5000, device="cuda")
    generator = torch.Generator("cuda")
    seed = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        drawn = diglot.dropout(x, generator=generator, backend=backend)
        given = diglot.dropout(x, seed=seed, backend=backend)
        fixed = diglot.dropout(x, seed=9, backend=backend)
    seen = []
    for i in range(3):
        seed.fill_(i)
        graph.replay()
        assert torch.equal(given, expected(x, 0.5, i))
        assert torch.equal(fixed, expected(x, 0.5, 9))
        seen.append((drawn != 0).clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_graphed_callables(backend):
    """Forward and backward are graphs of their own."""
    layer = diglot.nn.Dropout(0.5, backend=backend).cuda()
    x = torch.ones(2000, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (x,))
    masks = []
    for _ in range(2):
        y = graphed(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, y.detach())
        masks.append((y.detach() != 0).clone())
    assert not torch.equal(*masks)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_compiled_into_graphs(backend):
    """torch.compile's own CUDA graphs."""
    compiled = torch.compile(
        lambda x: diglot.dropout(x * 1, 0.5, backend=backend),
        fullgraph=True,
        mode="reduce-overhead",
    )
    masks = []
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.ones(2000, device="cuda", requires_grad=True)
        y = compiled(x)
        masks.append((y.detach() != 0).clone())
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad != 0, masks[-1])
    assert not torch.equal(masks[-1], masks[-2])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_waits(backend):
    x = torch.ones(5000, device="cuda", requires_grad=True)
    diglot.dropout(x, backend=backend).sum().backward()  # compiled and loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        for arguments in ({}, {"seed": 5}, {"generator": torch.Generator("cuda").manual_seed(1)}):
            diglot.dropout(x, backend=backend, **arguments).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
