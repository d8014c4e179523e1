"""diglot.patch: what it leaves alone, and why; errors, after which nothing is half-done."""

from __future__ import annotations

import copy

import pytest
import torch
from stand_ins import Block, LlamaRMSNorm, QuickGELUActivation
from torch import nn

import diglot
from diglot.models.classes import class_of


def why(patched):
    return {each.names: each.reason for each in patched.left_alone}


class Other(nn.LayerNorm):
    pass


class HomemadeRMSNorm(nn.Module):
    pass


def parametrized():
    norm = nn.LayerNorm(8)
    torch.nn.utils.parametrize.register_parametrization(norm, "weight", nn.Identity())
    return norm


def with_forward():
    norm = nn.LayerNorm(8)
    norm.forward = norm.forward
    return norm


def of_integers():
    norm = LlamaRMSNorm()
    norm.weight = nn.Parameter(torch.ones(8, dtype=torch.int8), requires_grad=False)
    return norm


def on_subclass():
    class Tensor(torch.Tensor):
        pass

    norm = LlamaRMSNorm()
    norm.weight = nn.Parameter(torch.ones(8).as_subclass(Tensor))
    return norm


REFUSED = {
    Other(8): "it is of a subclass of LayerNorm that nobody reviewed",
    HomemadeRMSNorm(): "nobody reviewed its class",
    QuickGELUActivation(): "it is x * sigmoid(1.702 x), which is not GELU",
    nn.Dropout2d(): "it drops whole channels",
    nn.Softmax(): "it has no dim, and PyTorch guesses one",
    nn.Softmax2d(): "its softmax runs over channels of images",
    parametrized(): "it is parametrized",
    with_forward(): "the forward of this very module was replaced, as accelerate's hooks do",
    of_integers(): "its weight has the dtype torch.int8",
    on_subclass(): "its weight is a Tensor",
    torch.ao.nn.quantized.Dropout(): "it is quantized",
}


@pytest.mark.parametrize("module", REFUSED, ids=lambda module: type(module).__name__)
def test_refused_with_a_reason(module):
    before, state = type(module), dict(vars(module))
    with pytest.warns(UserWarning, match="replaced nothing"):
        patched = diglot.patch(nn.Sequential(module, nn.Linear(8, 8)))
    assert why(patched) == {("0",): REFUSED[module]}
    assert f"{before.__name__} is left alone: {REFUSED[module]}" in str(patched)
    assert type(module) is before and vars(module) == state


def test_fsdp():
    """Sharded modules are left alone; a class that FSDP2 made of ours is not undone blindly."""
    sharded = type("FSDPSequential", (type("FSDPModule", (), {}), nn.Sequential), {})
    model = nn.ModuleDict({"sharded": sharded(nn.LayerNorm(8)), "free": nn.LayerNorm(8)})
    patched = diglot.patch(model)
    assert why(patched) == {("sharded.0",): "it is sharded by FSDP: patch the model before"}
    assert [each.names for each in patched.replaced] == [("free",)]
    patched.undo()
    patched = diglot.patch(model["free"])
    model["free"].__class__ = type("FSDPLayerNorm", (diglot.nn.LayerNorm,), {})
    with pytest.raises(RuntimeError, match="that was made a LayerNorm is a FSDPLayerNorm now"):
        patched.undo()


@pytest.fixture
def process_group():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_patched_and_sharded(process_group):
    """Patched before it is sharded, a model trains as before; with DistributedDataParallel too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def gradients(model):
        model(x)[:, 0].sum().backward()
        found = [p.grad for p in model.parameters()]
        return [g.full_tensor() if hasattr(g, "full_tensor") else g for g in found]

    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.RMSNorm(8))
    x, mesh = torch.randn(3, 8), init_device_mesh("cpu", (1,))
    expected = gradients(copy.deepcopy(original))
    sharded = copy.deepcopy(original)
    patched = diglot.patch(sharded, backend="torch")
    for each in (sharded[1], sharded):
        fully_shard(each, mesh=mesh)
    with diglot.record_runs() as runs:
        torch.testing.assert_close(gradients(sharded), expected)
    assert {run.op for run in runs} == {"layer_norm", "gelu", "rms_norm"}
    with pytest.raises(RuntimeError, match="a LayerNorm is a FSDPLayerNorm now"):
        patched.undo()
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(original))
    assert len(diglot.patch(parallel, backend="torch").replaced) == 3
    torch.testing.assert_close(gradients(parallel), expected)
    late = (
        fully_shard(copy.deepcopy(original), mesh=mesh),
        FullyShardedDataParallel(copy.deepcopy(original), device_id=torch.device("cpu")),
    )
    for model in late:
        left_alone = diglot.patch(model).left_alone
        assert [each.reason[:21] for each in left_alone] == ["it is sharded by FSDP"] * 3


def test_all_or_nothing():
    model = Block()

    class Stubborn(nn.GELU):
        """Refuses another class, after others took theirs."""

        def __setattr__(self, name, value):
            if name == "__class__" and value is not Stubborn:
                raise RuntimeError("it stays what it is")
            super().__setattr__(name, value)

    Stubborn.__module__, Stubborn.__qualname__ = nn.GELU.__module__, "GELU"
    model.stubborn = Stubborn()
    with pytest.raises(RuntimeError, match="it stays what it is"):
        diglot.patch(model, backend="torch")
    assert not any(isinstance(module, diglot.nn.OnBackend) for module in model.modules())
    assert not any("backend" in vars(module) for module in model.modules())


def test_undone_entirely_or_not_at_all():
    model = Block()
    patched = diglot.patch(model)
    model.rms.__class__ = nn.RMSNorm
    with pytest.raises(RuntimeError, match="Nothing was undone"):
        patched.undo()
    assert type(model.norm) is diglot.nn.LayerNorm
    model.rms.__class__ = diglot.nn.RMSNorm
    patched.undo()
    assert type(model.norm) is nn.LayerNorm


def test_undone_after_an_error():
    model = Block()
    with pytest.raises(ZeroDivisionError), diglot.patch(model):
        assert type(model.softmax) is diglot.nn.Softmax
        raise ZeroDivisionError
    assert type(model.softmax) is nn.Softmax


def test_wrong_arguments():
    with pytest.raises(
        TypeError, match=r"model must be a torch.nn.Module, not builtin_function_or_method"
    ):
        diglot.patch(nn.functional.gelu)
    with pytest.raises(ValueError, match="backend must be one of"):
        diglot.patch(nn.GELU(), backend="opencl")
    with pytest.raises(TypeError, match="model is scripted"):
        diglot.patch(torch.jit.script(nn.GELU()))
    with pytest.raises(TypeError, match="has no class for"):
        class_of(nn.Linear)
