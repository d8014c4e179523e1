"""The probe of diglot.patch: it sees whether two classes compute the same, and disturbs nothing."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from stand_ins import LLAMA, NORMS, Block, LlamaRMSNorm, NewGELUActivation, stand_in
from torch import nn

import diglot
from diglot.models.classes import class_of
from diglot.models.probe import disagreement
from diglot.models.reviewed import full_name, reviewed


def changed(**settings):
    """A module of a class on the list that computes something else than the list says."""

    class LlamaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.randn(8)), 1e-6

        def forward(self, x):
            square = x.float().square().mean(-1, keepdim=True)
            y = x.float() * torch.rsqrt(square + settings.get("eps", self.variance_epsilon))
            y = y.to(settings.get("rounded", x.dtype)) * (self.weight + settings.get("one", 0))
            return y.to(settings.get("result", y.dtype)) + settings.get("shift", 0)

    return stand_in(LLAMA, LlamaRMSNorm)()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"one": 1}, "it computes something else: "),
        ({"eps": 2e-6}, "it computes something else: "),
        ({"shift": 1e-3}, "it computes something else: "),
        (
            {"rounded": torch.float32},
            "it returns float32 for an input of bfloat16 and parameters of bfloat16, and diglot "
            "bfloat16",
        ),
        ({"result": torch.float16}, "it returns float16 for an input of float32 and parameters"),
        ({"rounded": "nonsense"}, "the probe failed: "),
    ],
)
def test_a_class_that_changed_is_left_alone(settings, reason):
    model = nn.Sequential(changed(**settings), nn.GELU())
    left_alone = diglot.patch(model).left_alone
    assert len(left_alone) == (reason is not None)
    assert reason is None or left_alone[0].reason.startswith(reason)


OTHERS = {
    "approximate": ("none", "tanh"),
    "weight": ("weight", "1 + weight", "none"),
    "result": ("input", "promoted", "weight"),
    "kind": ("layer_norm", "rms_norm"),
}


@pytest.mark.parametrize("kind", [NewGELUActivation, *NORMS], ids=lambda kind: kind.__name__)
def test_rules_are_told_apart(kind):
    """No class agrees with what another rule would make of it."""
    rule, module = reviewed()[full_name(kind)], kind()
    assert disagreement(module, class_of(kind), rule.kind) is None
    for field in ["approximate"] if rule.kind == "gelu" else ["weight", "result", "kind"]:
        for value in OTHERS[field]:
            other = dataclasses.replace(rule, **{field: value})
            # Of bfloat16 beside float32, the type of the weight is the one they promote to.
            if other == rule or {rule.result, value} == {"promoted", "weight"}:
                continue
            target = type(kind.__name__, (class_of(kind),), {"rule": other})
            assert disagreement(module, target, other.kind) is not None, value


def test_approximations_are_told_apart():
    class Exact(nn.GELU):
        """Does not do what its settings say."""

        def forward(self, x):
            return nn.functional.gelu(x)

    for approximate in ("none", "tanh"):
        assert disagreement(nn.GELU(approximate), diglot.nn.GELU, "gelu") is None
    assert disagreement(Exact("none"), diglot.nn.GELU, "gelu") is None
    assert "apart in float32" in disagreement(Exact("tanh"), diglot.nn.GELU, "gelu")


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (lambda x: x * 2, "it changes its input where it does not train"),
        (lambda x: x, "it does not drop a share of 0.25"),
    ],
)
def test_dropout(kept, reason):
    class Dropout(nn.Dropout):
        def forward(self, x):
            return kept(x)

    assert disagreement(nn.Dropout(0.25), diglot.nn.Dropout, "dropout") is None
    assert disagreement(Dropout(0.25), diglot.nn.Dropout, "dropout").startswith(reason)


def test_nothing_is_disturbed():
    """Random state, parameters, hooks; and modes, autocast and defaults have no say in it."""
    model = Block(0.5)
    model.llama.register_forward_hook(lambda *_: pytest.fail("a hook was called"))
    state, parameters = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        for context in (torch.device("meta"), torch.autocast("cpu"), torch.inference_mode()):
            stack.enter_context(context)
        patched = diglot.patch(model)
    assert len(patched.replaced) == 9, str(patched)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(map(torch.equal, model.parameters(), parameters))
    assert all(p.grad is None for p in model.parameters())


def test_modes_see_nothing_of_it():
    """Least of all an override, in which the original would run diglot's op, and always agree."""
    with diglot.override("torch") as overridden:
        diglot.patch(Block())
    assert not overridden.sent and not overridden.left_alone


def test_a_model_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(LlamaRMSNorm(), nn.LayerNorm(8))
    assert len(diglot.patch(model).replaced) == 2
    assert model[0].weight.is_meta
