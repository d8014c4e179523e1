"""The two ways into an op, and the manners of PyTorch's own ops."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, KERNELS
from torch.utils._python_dispatch import TorchDispatchMode

import diglot
from diglot.define import direct
from diglot.define.direct import is_direct


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(lambda t: (seen.append(is_direct(t)), t)[1], x, check_trace=False)
    assert seen == [False, False, False]
    assert is_direct(x)


def test_calls_of_one_kind_are_known():
    """Facts about a call hold for others of its kind, and for no others."""
    kinds = direct.Kinds[str]()
    x, y = torch.ones(3, device=DEVICE), torch.ones(5, device=DEVICE)
    kinds.add("plain", x)
    kinds.add("two", x, y)
    assert kinds.find(y) == "plain" and kinds.find(y[::2]) == "plain"
    assert kinds.find(y, x) == "two"
    others = {
        "rank": x[None],
        "dtype": x.double(),
        "device": x.to("meta"),
        "requires grad": x.clone().requires_grad_(),
        "class": torch.nn.Parameter(x, requires_grad=False),
        "subclass": x.as_subclass(Subclass),
        "wrapper": Wrapper(x),
        "negative bit": torch.complex(x, x).conj().imag,
        "no strides": torch.ones(4, device=DEVICE).to_sparse(),
        "ragged": torch.nested.nested_tensor([x, y]),
        "no tensor": 3,
    }
    if DEVICE == "cpu":
        others["opaque"] = x.to_mkldnn()
    for name, other in others.items():
        assert kinds.find(other) is None, name
    states = {
        "no grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast(DEVICE, dtype=torch.bfloat16),
        "dispatch mode": Watch(),
        "function mode": torch.overrides.BaseTorchFunctionMode(),
        "forward mode": torch.autograd.forward_ad.dual_level(),
        "profiler": torch.profiler.profile(),
    }
    for name, state in states.items():
        with state:
            assert kinds.find(x) is None, name
    seen = []
    torch.func.vmap(lambda t: (seen.append(kinds.find(t)), t)[1])(x)
    torch.func.grad(lambda t: (seen.append(kinds.find(t)), t.sum())[1])(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(lambda t: (seen.append(kinds.find(t)), t)[1], x, check_trace=False)
    assert seen == [None, None, None]
    assert kinds.find(x) == "plain"
    for rank in range(1, 3 + direct.MOST_KINDS):  # the first ones stay, and no more are remembered
        kinds.add(f"rank {1 + rank}", x[(None,) * rank])
    assert kinds.find(x) == "plain"
    last = direct.MOST_KINDS - 1
    assert kinds.find(x[(None,) * last]) == f"rank {1 + last}"
    assert kinds.find(x[(None,) * (last + 1)]) is None


@pytest.mark.parametrize("first", ["no_grad", "enable_grad"])
def test_grad_mode_is_no_matter_of_the_first_call(first):
    """Tensors that require grad, met first where nothing is recorded, are recorded later."""
    x = torch.ones(2, 3, 5, device=DEVICE, dtype=torch.float64, requires_grad=True)
    for mode in (first, "enable_grad", "no_grad", "enable_grad"):
        with getattr(torch, mode)():
            assert diglot.gelu(x, backend="torch").requires_grad == (mode == "enable_grad")


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_see_one_operator(backend):
    x = torch.randn(8, device=DEVICE)
    with Watch() as watch:
        y = diglot.gelu(x, backend=backend)
        z = diglot.add(x, x, backend=backend)
    ours = [name for name in watch.seen if name.startswith("diglot")]
    assert ours == ["diglot::gelu", "diglot::add"]
    torch.testing.assert_close(y, F.gelu(x))
    torch.testing.assert_close(z, x + x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_direct_and_dispatched_agree(backend, monkeypatch):
    x = torch.randn(10, 7, device=DEVICE, requires_grad=True)
    y = torch.randn(7, device=DEVICE, requires_grad=True)
    dispatched = []

    def watch(op, real):
        return lambda *arguments: dispatched.append(op) or real(*arguments)

    for op in ("gelu", "add"):  # their modules are found by full names only
        operator_of = getattr(sys.modules[f"diglot.ops.{op}"], f"_{op}")
        monkeypatch.setattr(operator_of, "dispatched", watch(op, operator_of.dispatched))
        monkeypatch.setattr(operator_of, "known", lambda *_: None)
    results = []
    for is_first in (True, False):
        verdict = lambda *_, direct=is_first: direct  # noqa: E731
        monkeypatch.setattr(sys.modules["diglot.define.operator"], "is_direct", verdict)
        with diglot.record_runs() as runs:
            out = diglot.add(diglot.gelu(x, backend=backend), y, alpha=2, backend=backend)
            results.append((out, *torch.autograd.grad(out.sum(), (x, y))))
        assert {run.backend for run in runs} == {backend}
        assert dispatched == ([] if is_first else ["gelu", "add"])
    for own, other in zip(*results, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_subclasses(backend):
    x = torch.randn(5)
    if DEVICE == "cpu":
        wrapped = diglot.gelu(Wrapper(x), backend=backend)
        assert type(wrapped) is Wrapper
        torch.testing.assert_close(wrapped.inner, F.gelu(x))
    x = x.to(DEVICE).as_subclass(Subclass)
    y = diglot.gelu(x, backend=backend)
    assert type(y) is type(F.gelu(x)) is Subclass
    torch.testing.assert_close(y, F.gelu(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fake_tensors(backend):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last)
        y = diglot.gelu(x, backend=backend)
        assert (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())
        y = torch.empty(3, 1, 1, device=DEVICE, dtype=torch.float64)
        z = diglot.add(x, y, backend=backend)
        assert (z.dtype, z.shape, z.stride()) == (torch.float64, x.shape, x.stride())


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_bit_is_seen(backend):
    x = torch.complex(torch.randn(50), torch.randn(50)).to(DEVICE).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(diglot.gelu(x, backend=backend), F.gelu(x))
    for operands in ((x, x.abs()), (x.abs(), x), (x, 1)):
        torch.testing.assert_close(diglot.add(*operands, backend=backend), torch.add(*operands))


OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend):
    """With inputs that are differentiated and without, of several layouts and types."""
    ops = torch.ops.diglot
    x, y = (torch.randn(shape, device=DEVICE, requires_grad=True) for shape in ((4, 6), (6,)))
    grad = torch.randn(4, 6, device=DEVICE, requires_grad=True)
    plain, half = grad.detach(), torch.randn(4, 12, device=DEVICE, dtype=torch.bfloat16)[:, ::2]
    for op, arguments in [
        (ops.gelu, (x, "tanh", backend)),
        (ops.gelu, (half, "none", backend)),
        (ops.gelu_backward, (plain, x, "none", backend)),
        (ops.gelu_backward, (grad, x, "tanh", backend)),
        (ops.gaussian_pdf, (x, 0.5, 2.0, 3, backend)),
        (ops.gaussian_pdf_backward, (grad, x, 0.5, 2.0, 3, backend)),
        (ops.add, (x, y, 2, backend)),
        (ops.add, (half.t(), plain.t(), 2, backend)),
        (ops.add, (x, None, 2.5, backend)),
        (ops.add_backward, (plain, [6], torch.float32, 2, backend)),
        (ops.add_backward, (grad, [4, 1], torch.bfloat16, 1, backend)),
    ]:
        torch.library.opcheck(op.default, arguments, test_utils=OPCHECKS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointing(backend):
    x = torch.randn(20, device=DEVICE, requires_grad=True)
    with diglot.record_runs() as runs:
        y = torch.utils.checkpoint.checkpoint(
            lambda t: diglot.gelu(t, backend=backend), x, use_reentrant=False
        )
        y.sum().backward()
    assert [run.launcher for run in runs] == ["gelu_forward", "gelu_forward", "gelu_backward"]
    expected = torch.autograd.grad(F.gelu(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_leaves_the_dtype(backend):
    x = torch.randn(5, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        for y in (x, x.bfloat16()):
            assert diglot.gelu(y, backend=backend).dtype == F.gelu(y).dtype == y.dtype
            own, expected = diglot.add(x, y, backend=backend), torch.add(x, y)
            assert own.dtype == expected.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_profiler_sees_the_operator(backend):
    x = torch.randn(5, device=DEVICE)
    with torch.profiler.profile() as profile:
        diglot.gelu(x, backend=backend)
        diglot.add(x, x, backend=backend)
    assert {"diglot::gelu", "diglot::add"} <= {event.name for event in profile.events()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_and_no_grad(backend):
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    for call in (
        lambda: diglot.gelu(x, backend=backend),
        lambda: diglot.add(x, x, backend=backend),
        lambda: diglot.add(x, 1, backend=backend),
    ):
        assert call().requires_grad
        with torch.no_grad():
            assert not call().requires_grad
        with torch.inference_mode():
            assert call().is_inference()


def test_key_verdicts_are_cached(monkeypatch):
    direct._plain_keysets.clear()
    x = torch.ones(2)
    assert is_direct(x)
    monkeypatch.setattr(direct, "_judge_keys", lambda _: pytest.fail("judged again"))
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
    x, empty = torch.ones(5, device=DEVICE), torch.ones(0, 3, device=DEVICE)
    backward = torch.ops.diglot.add_backward
    for call in (
        lambda: diglot.gelu(empty, backend=backend),
        lambda: diglot.add(empty, empty, backend=backend),
        lambda: diglot.add(empty, 1, backend=backend),
        lambda: torch.ops.diglot.gelu_backward(empty, empty, "none", backend),
        lambda: backward(empty, [0, 1], torch.float32, 1, backend),
        lambda: backward(empty, [0, 3], torch.float32, 2, backend),
    ):
        diglot.gelu(x, backend=backend)
        call()
        assert diglot.last_run().variant == "nothing to do"
    # A sum of nothing is a zero, which is written.
    assert torch.equal(backward(empty, [3], torch.float32, 1, backend), torch.zeros_like(x[:3]))
    assert diglot.last_run().variant == "sum"


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
