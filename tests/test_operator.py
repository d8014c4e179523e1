"""The two ways into an op, and the manners of PyTorch's own ops."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, KERNELS
from torch.utils._python_dispatch import TorchDispatchMode

import diglot
from diglot.backends import registry
from diglot.ops import operator
from diglot.ops.operator import is_direct


class Watch(TorchDispatchMode):
    """Records the operators that pass through the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A minimal wrapper subclass."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return Wrapper(func(*args, **(kwargs or {})))


def test_conditions_of_the_direct_path():
    x = torch.ones(3, device=DEVICE)
    assert is_direct(x)
    assert is_direct(x, torch.nn.Parameter(x))
    assert is_direct(x.detach().requires_grad_())
    with torch.inference_mode():
        assert is_direct(torch.ones(3, device=DEVICE))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert is_direct(x)
    assert not is_direct(x.as_subclass(Subclass))
    assert not is_direct(Wrapper(x))
    assert not is_direct(x.to("meta"))
    assert not is_direct(torch.complex(x, x).conj().imag)
    with Watch():
        assert not is_direct(x)
    with torch.overrides.BaseTorchFunctionMode():
        assert not is_direct(x)
    with torch.autograd.forward_ad.dual_level():
        assert not is_direct(x)
    with torch.profiler.profile():
        assert not is_direct(x)
    seen = []
    torch.func.vmap(lambda t: (seen.append(is_direct(t)), t)[1])(x)
    torch.func.grad(lambda t: (seen.append(is_direct(t)), t.sum())[1])(x)
    assert seen == [False, False]
    assert is_direct(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_see_one_operator(backend):
    x = torch.randn(8, device=DEVICE)
    with Watch() as watch:
        y = diglot.gelu(x, backend=backend)
        z = diglot.add(x, x, backend=backend)
    assert "diglot::gelu" in watch.seen
    assert "diglot::add" in watch.seen
    torch.testing.assert_close(y, F.gelu(x))
    torch.testing.assert_close(z, x + x)


def test_direct_and_dispatched_agree(monkeypatch):
    x = torch.randn(100, device=DEVICE, requires_grad=True)
    results = []
    for direct in (True, False):
        # diglot.ops.gelu names the function: the module is found by its full name only.
        for module in ("diglot.ops.gelu", "diglot.ops.operator"):
            verdict = lambda *_, direct=direct: direct  # noqa: E731
            monkeypatch.setattr(sys.modules[module], "is_direct", verdict)
        y = diglot.gelu(x, backend="triton")
        (grad,) = torch.autograd.grad(y.sum(), x)
        results.append((y, grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_subclasses(backend):
    x = torch.randn(5)
    if DEVICE == "cpu":
        assert type(diglot.gelu(Wrapper(x), backend=backend)) is Wrapper
    y = diglot.gelu(x.to(DEVICE).as_subclass(Subclass), backend=backend)
    torch.testing.assert_close(y.as_subclass(torch.Tensor), F.gelu(x.to(DEVICE)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fake_tensors(backend):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last)
        assert diglot.gelu(x, backend=backend).stride() == x.stride()
        y = torch.empty(3, 1, 1, device=DEVICE, dtype=torch.float64)
        z = diglot.add(x, y, backend=backend)
        assert (z.dtype, z.stride()) == (torch.float64, x.stride())


def test_negative_bit_is_seen():
    x = torch.complex(torch.randn(50), torch.randn(50)).to(DEVICE).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(diglot.gelu(x, backend="triton"), F.gelu(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend):
    x = torch.randn(4, 6, device=DEVICE, requires_grad=True)
    y = torch.randn(6, device=DEVICE, requires_grad=True)
    ops = torch.ops.diglot
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    for op, arguments in [
        (ops.gelu, (x, "tanh", backend)),
        (ops.gelu_backward, (torch.randn(4, 6, device=DEVICE), x, "none", backend)),
        (ops.add, (x, y, 2, backend)),
        (ops.add, (x, None, 2.5, backend)),
        (ops.add_backward, (torch.randn(4, 6, device=DEVICE), [6], torch.float32, 2, backend)),
    ]:
        torch.library.opcheck(op.default, arguments, test_utils=utilities)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    x = torch.randn(4, 5, device=DEVICE)

    def gelu(t):
        return diglot.gelu(t, "tanh", backend=backend)

    def expected(t):
        return F.gelu(t, approximate="tanh")

    torch.testing.assert_close(torch.func.vmap(gelu)(x), expected(x))
    torch.testing.assert_close(torch.func.vmap(gelu, in_dims=1, out_dims=1)(x), expected(x))
    own, theirs = (
        torch.func.vmap(torch.func.grad(lambda t, f=f: f(t).sum()))(x) for f in (gelu, expected)
    )
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.jvp(f, (x,), (x.cos(),)) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.jacrev(f)(x[0]) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs)
    own, theirs = (torch.func.hessian(lambda t, f=f: f(t).sum())(x[0]) for f in (gelu, expected))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_of_add(backend):
    x, y = torch.randn(4, 5, device=DEVICE), torch.randn(5, device=DEVICE)

    def add(a, b):
        return diglot.add(a, b, alpha=3, backend=backend)

    torch.testing.assert_close(torch.func.vmap(add, in_dims=(0, None))(x, y), x + 3 * y)
    batched = torch.func.vmap(add, in_dims=(1, None), out_dims=1)(x[:, :4], y[:4])
    torch.testing.assert_close(batched, x[:, :4] + 3 * y[:4, None])
    grads = torch.func.vmap(
        torch.func.grad(lambda a, b: add(a, b).sum(), argnums=1), in_dims=(0, None)
    )
    torch.testing.assert_close(grads(x, y), torch.full((4, 5), 3.0, device=DEVICE))
    scalar = torch.func.vmap(
        torch.func.grad(lambda a, b: add(a, b).sum(), argnums=1), in_dims=(0, None)
    )
    torch.testing.assert_close(scalar(x, y[0]), torch.full((4,), 15.0, device=DEVICE))
    _, tangent = torch.func.jvp(add, (x, y), (x, y))
    torch.testing.assert_close(tangent, x + 3 * y)


@pytest.mark.parametrize(
    ("shapes", "in_dims"),
    [
        (((3,), ()), (0, None)),
        (((), (3,)), (None, 0)),
        (((3,), (3,)), (0, 0)),
        (((3,), (4,)), (0, None)),
        (((4, 3), (3,)), (1, 0)),
        (((3, 4), ()), (0, None)),
        (((3,), (3, 4, 2)), (0, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_batched_operands_promote_by_their_own_ranks(backend, shapes, in_dims):
    dtypes = (torch.float32, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool)
    for pair in itertools.product(dtypes, repeat=2):
        x, y = (
            (torch.rand(shape, device=DEVICE) * 10).to(d)
            for shape, d in zip(shapes, pair, strict=True)
        )
        own = torch.func.vmap(lambda a, b: diglot.add(a, b, backend=backend), in_dims)(x, y)
        expected = torch.func.vmap(torch.add, in_dims)(x, y)
        assert own.dtype == expected.dtype, pair
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointing(backend):
    x = torch.randn(20, device=DEVICE, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda t: diglot.gelu(t, backend=backend), x, use_reentrant=False
    )
    y.sum().backward()
    expected = torch.autograd.grad(F.gelu(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("backend", KERNELS)
def test_autocast_leaves_the_dtype(backend):
    x = torch.randn(5, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert diglot.gelu(x, backend=backend).dtype == F.gelu(x).dtype
        assert (
            diglot.add(x, x.bfloat16(), backend=backend).dtype == torch.add(x, x.bfloat16()).dtype
        )


def test_profiler_sees_the_operator():
    x = torch.randn(5, device=DEVICE)
    with torch.profiler.profile() as profile:
        diglot.gelu(x, backend="triton")
    assert any(event.name == "diglot::gelu" for event in profile.events())


def test_inference_mode_and_no_grad():
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        assert not diglot.gelu(x).requires_grad
    with torch.inference_mode():
        assert diglot.gelu(x).is_inference()


def test_key_verdicts_are_cached(monkeypatch):
    operator._plain_keysets.clear()
    x = torch.ones(2)
    assert is_direct(x)
    monkeypatch.setattr(operator, "_judge_keys", lambda _: pytest.fail("judged again"))
    assert is_direct(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_registered_backward_operators_check_their_arguments(backend):
    x = torch.ones(64, device=DEVICE)
    for grad in (x[:3], x.bfloat16()):
        with pytest.raises(ValueError, match="grad_output must have the shape and dtype of input"):
            torch.ops.diglot.gelu_backward(grad, x, "none", backend)
    grad = torch.ones(4, 6, device=DEVICE)
    for shape in ([5], [2, 4, 6], [4, 2]):
        with pytest.raises(ValueError, match="add_backward: "):
            torch.ops.diglot.add_backward(grad, shape, grad.dtype, 1, backend)


@pytest.mark.parametrize("backend", KERNELS)
def test_the_variant_of_an_empty_call(backend):
    diglot.gelu(torch.ones(5, device=DEVICE), backend=backend)
    diglot.add(torch.ones(0, device=DEVICE), 1, backend=backend)
    assert diglot.last_run().variant == "nothing to do"


def test_a_compiled_graphs_call_leaves_the_last_variant_as_it_was():
    """Its operator is called here as a graph calls it, on tensors that need no GPU: recorded."""
    extension, reason = registry.load_extension()
    if extension is None:
        pytest.skip(reason)
    small, large = torch.randn(100), torch.randn(2**20)
    seen = []

    def launch():
        extension.gelu_forward(large, "none", torch.empty_like(large))
        seen.append(extension.last_variant())
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        operator = torch.ops.diglot_cuda.gelu_forward.default
        operator.redispatch(keys, small, "none", torch.empty_like(small))
        seen.append(extension.last_variant())
        extension.gelu_forward(small, "none", torch.empty_like(small))
        seen.append(extension.last_variant())

    assert len(extension.record(launch)) == 3
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_last_run_is_the_last_in_eager_mode(backend):
    x, other = torch.randn(2**20, device=DEVICE), torch.randn(8, device=DEVICE)
    compiled = torch.compile(lambda t: diglot.add(t, t, backend=backend), fullgraph=True)
    compiled(other)
    diglot.gelu(x, backend=backend)
    before = diglot.last_run()
    compiled(other)
    assert diglot.last_run() == before
    assert (before.op, before.backend) == ("gelu", backend) and "flat" in before.variant
