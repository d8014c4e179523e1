"""diglot.patch: what it leaves alone, and why; errors, after which nothing is half-done."""

from __future__ import annotations

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
