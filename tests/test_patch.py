"""diglot.patch: a model computes the same, nothing else of it changes, and all of it is undone."""

from __future__ import annotations

import copy
import io
import sys
import types

import pytest
import torch
from backends import DEVICE, SLOW_BACKENDS
from stand_ins import NORMS, Block, GemmaRMSNorm, LlamaRMSNorm, QuickGELUActivation
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx import symbolic_trace

import diglot
from diglot.backends.runs import observe_runs
from diglot.models import classes
from diglot.models.reviewed import KINDS, Refusal, reviewed


def gradients(model, x):
    model.zero_grad()
    x = x.clone().requires_grad_()
    model(x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def test_a_model_computes_the_same():
    model, x = Block(), torch.randn(4, 8)
    original, names = copy.deepcopy(model), [name for name, _ in model.named_modules()]
    modules, parameters = list(model.modules()), list(model.parameters())
    patched = diglot.patch(model, backend="torch")
    assert {each.kind for each in patched.replaced} == set(KINDS)
    assert len(patched.replaced) == 9 and not patched.left_alone
    with diglot.record_runs() as runs:
        result = model(x)
    assert sorted(run.op for run in runs) == sorted(
        ["layer_norm", *["rms_norm"] * 3, "gelu", "gelu", "softmax", "log_softmax"]
    )
    torch.testing.assert_close(result, original(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(model, x), gradients(original, x), rtol=1e-4, atol=1e-4)
    # The same objects, of classes that derive from their own.
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert names == [name for name, _ in model.named_modules()]
    for ours, theirs in zip(model.modules(), original.modules(), strict=True):
        assert isinstance(ours, type(theirs)) and type(ours).__name__ == type(theirs).__name__
    assert "(llama): diglot.models.LlamaRMSNorm(backend='torch')" in str(model)
    original.load_state_dict(model.state_dict())
    patched.undo()
    assert str(model) == str(original)
    assert [vars(a).keys() for a in model.modules()] == [vars(b).keys() for b in original.modules()]
    assert torch.equal(model(x), original(x))
    patched.undo()  # nothing is left to do


@pytest.mark.parametrize("backend", SLOW_BACKENDS)
def test_every_backend(backend):
    model, x = Block(0.5).to(DEVICE), torch.randn(4, 8, device=DEVICE)
    expected = copy.deepcopy(model).eval()(x)
    diglot.patch(model, backend=backend)
    with diglot.record_runs() as runs:
        model(x).sum().backward()
    assert {run.op for run in runs} == set(KINDS)
    assert {run.backend for run in runs} == {backend}
    torch.testing.assert_close(model.eval()(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(
    ("dtype", "of_weight"),
    [(a, b) for a in (torch.float32, torch.bfloat16) for b in (torch.float32, torch.bfloat16)]
    + [(torch.float16, torch.float16), (torch.float64, torch.float64)],
)
def test_norms_of_all_dtypes(kind, dtype, of_weight):
    """Dtypes and values as of the class, with and without autocast; at most two ulp in 16 bits."""
    norm, x = kind(64).to(of_weight), torch.randn(5, 64).to(dtype)
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = norm(x)
            with diglot.patch(norm, backend="torch") as patched:
                made = norm(x)
        assert patched.replaced, str(patched)
        assert made.dtype == expected.dtype
        narrow = max((torch.finfo(t).eps for t in (dtype, of_weight, made.dtype)), default=0)
        tolerance = 2 * narrow if narrow > 1e-5 else 1e-5
        torch.testing.assert_close(made, expected, rtol=tolerance, atol=1e-5)


def test_autocast_adds_no_conversions():
    """The op reads and writes 16 bits, where its namesake under autocast takes float32."""
    norm, x = GemmaRMSNorm(64), torch.randn(5, 64).bfloat16()
    diglot.patch(norm, backend="torch")
    dtypes = []
    with (
        observe_runs(lambda _, arguments: dtypes.extend([arguments[0].dtype, arguments[-1].dtype])),
        torch.autocast("cpu", torch.bfloat16),
    ):
        norm(x)
    assert dtypes == [torch.bfloat16, torch.bfloat16]


def test_states_survive():
    """Hooks, training mode, parameters; and copies."""
    model = Block(0.5)
    model.dropout.eval()
    seen = []
    handle = model.norm.register_forward_hook(lambda *_: seen.append("forward"))
    model.llama.register_forward_pre_hook(lambda *_: seen.append("before"))
    before = copy.deepcopy(model.state_dict())
    patched = diglot.patch(model, backend="torch")
    assert not seen
    assert model.training and not model.dropout.training
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    x = torch.randn(3, 8)
    model(x)
    assert seen == ["forward", "before"]
    handle.remove()
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x)) and seen[2:] == ["before"] * 2
    assert type(copied.gemma) is type(model.gemma) and copied.gemma.backend == "torch"
    patched.undo()
    assert type(copied.gemma) is not type(model.gemma)  # a copy is a model of its own


def test_saved_models(monkeypatch):
    """A pickle of a patched model is one: it refers to the original class, and to diglot."""
    module = types.ModuleType(LlamaRMSNorm.__module__)
    module.LlamaRMSNorm = LlamaRMSNorm
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model, x = nn.Sequential(nn.LayerNorm(8), LlamaRMSNorm(), nn.GELU()), torch.randn(2, 8)
    diglot.patch(model, backend="torch")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    monkeypatch.setattr(classes, "_made", {})  # as in another process
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), model(x)) and str(loaded) == str(model)


def test_a_pattern_or_a_kind():
    def replaced(*only):
        with diglot.patch(nn.Sequential(*[Block() for _ in range(2)]), only=only) as patched:
            return sorted(name for each in patched.replaced for name in each.names)

    assert replaced("layer_norm", "gelu") == [
        *("0.act", "0.new_act", "0.norm", "1.act", "1.new_act", "1.norm")
    ]
    assert replaced("gelu", "1.*") == ["1.act", "1.new_act"]
    assert replaced("*.norm", "*.rms") == ["0.norm", "0.rms", "1.norm", "1.rms"]
    with pytest.warns(UserWarning, match="replaced nothing"):
        assert replaced() == []
    with pytest.raises(ValueError, match="'layernorm', which matches no module's name, and is no"):
        diglot.patch(Block(), only="layernorm")


def test_the_model_itself_and_shared_modules():
    norm = nn.LayerNorm(8)
    with diglot.patch(norm) as patched:
        assert type(norm) is diglot.nn.LayerNorm
        assert [each.names for each in patched.replaced] == [("",)]
        assert "(the model)" in str(patched)
    assert type(norm) is nn.LayerNorm
    model = nn.ModuleDict({"a": norm, "b": norm})
    with diglot.patch(model) as patched:
        assert [each.names for each in patched.replaced] == [("a", "b")]
        assert model["a"] is model["b"]


def test_patched_twice():
    model = Block()
    outer = diglot.patch(model, backend="torch", only="gelu")
    inner = diglot.patch(model, backend="triton")
    assert len(outer.replaced) == 2 and len(inner.replaced) == 7
    assert {each.reason for each in inner.left_alone} == {"it is diglot's already (backend: torch)"}
    outer.undo()
    assert type(model.act) is nn.GELU and model.norm.backend == "triton"
    inner.undo()
    assert type(model.norm) is nn.LayerNorm
    with pytest.warns(UserWarning, match="replaced nothing: 0 modules replaced, 1 not"):
        diglot.patch(diglot.nn.GELU())


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_drops_as_much(p, inplace):
    model, x = nn.Sequential(nn.Dropout(p, inplace)), torch.ones(100_000)
    diglot.patch(model, backend="torch")
    result = model(x.clone())
    assert abs((result == 0).double().mean().item() - p) < 0.01
    assert torch.allclose(result[result != 0], torch.tensor(1 / (1 - p) if p < 1 else 0.0))
    assert torch.equal(model.eval()(x), x)


def test_compiled():
    """A compiled model is compiled again when it is patched and when that is undone."""
    counter = CompileCounterWithBackend("eager")
    model, x = Block(), torch.randn(4, 8)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    expected = compiled(x)
    with diglot.patch(compiled, backend="torch") as patched:
        assert len(patched.replaced) == 9
        torch.testing.assert_close(compiled(x), expected)
        called = {str(node.target) for node in counter.graphs[-1].graph.nodes}
        assert {f"diglot.{kind}.default" for kind in KINDS[:5]} <= called
        assert counter.frame_count == 2
    torch.testing.assert_close(compiled(x), expected)
    assert counter.frame_count == 2  # the first one fits again


def test_symbolic_trace():
    model, x = Block().eval(), torch.randn(4, 8)
    diglot.patch(model, backend="torch")
    assert torch.equal(symbolic_trace(model)(x), model(x))


def test_the_table():
    model = nn.Sequential(*[Block() for _ in range(2)], QuickGELUActivation())
    patched = diglot.patch(model)
    lines = str(patched).splitlines()
    assert lines[0] == "18 modules replaced, 1 not"
    note = "rounds once; LlamaRMSNorm rounds before the weight too"
    assert f"    2  LlamaRMSNorm -> diglot.rms_norm: {note}" in lines
    assert "    2  LayerNorm -> diglot.layer_norm" in lines and "       0.norm, 1.norm" in lines
    assert repr(patched) == "<Patch: 18 modules replaced, 1 not>"


def test_the_list():
    """Every entry says its requirements, and no class is on it twice."""
    said = reviewed()
    assert len(said) > 250
    for name, each in said.items():
        assert each.kind in KINDS
        if isinstance(each, Refusal):
            assert each.reason
            continue
        assert each.becomes is None or issubclass(getattr(diglot.nn, each.becomes), nn.Module)
        assert each.weight in ("weight", "1 + weight", "none"), name
        assert each.rounds in ("once", "before the weight"), name
        assert each.result in ("input", "promoted", "weight"), name
