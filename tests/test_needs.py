"""What an op's kernels need of a call, and how a refusal is told."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS

import diglot
from diglot.backends import needs as module
from diglot.backends.needs import Call, Needs, require
from diglot.backends.registry import supports
from diglot.backends.selection import choose

HALVES = (torch.float16, torch.bfloat16)
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(module, "_needs", dict(module._needs))
    monkeypatch.setattr(module, "per_call", set(module.per_call))


@pytest.mark.parametrize(
    ("needs", "architecture", "reason"),
    [
        (Needs(), 80, None),
        (Needs(architecture=90), 90, None),
        (Needs(architecture=90), 100, None),
        (Needs(architecture=90), 80, "it needs sm_90, and this GPU is sm_80"),
        (Needs(architecture=90, only=True), 90, None),
        (Needs(architecture=90, only=True), 100, "it needs sm_90a, and this GPU is sm_100"),
    ],
)
def test_architectures(needs, architecture, reason):
    assert needs.refusal(Call(GPU, architecture), None) == reason


def check_head_dim(call):
    return "head_dim > 256" if call.shapes[0][-1] > 256 else None


def test_dtypes_and_shapes():
    needs = Needs(dtypes=HALVES, call=check_head_dim)
    x = torch.empty(2, 300, dtype=torch.float16)
    assert needs.refusal(Call(GPU, 90), None) is None  # of a device alone nothing more is known
    assert needs.refusal(Call.from_tensors(GPU, 90, (x, None)), None) == "head_dim > 256"
    assert needs.refusal(Call.from_tensors(GPU, 90, (x[:, :256],)), None) is None
    assert (
        needs.refusal(Call.from_tensors(GPU, 90, (x.double(),)), None)
        == "it has no kernel for float64"
    )


@pytest.mark.parametrize("backend", KERNELS)
def test_reasons_reach_the_user(backend):
    """BackendUnavailable, explain and auto go by them, call by call."""
    require("gelu", backend, Needs(dtypes=HALVES, call=check_head_dim))
    fine = torch.ones(3, 256, dtype=torch.float16, device=DEVICE)
    wide, single = fine.repeat(1, 2), fine.float()
    assert supports(backend, "gelu", Call.from_tensors(fine.device, None, (fine,))) is None
    assert choose("gelu", fine.device, backend, fine) == backend
    for tensor, reason in ((wide, "head_dim > 256"), (single, "it has no kernel for float32")):
        with pytest.raises(diglot.BackendUnavailable, match=reason):
            choose("gelu", tensor.device, backend, tensor)
        assert diglot.explain("gelu", tensor).reasons[backend] == reason
        assert choose("gelu", tensor.device, "auto", tensor) != backend
    assert diglot.explain("gelu", fine).reasons[backend] is None


@pytest.mark.parametrize("backend", KERNELS)
def test_an_op_that_cannot_be_interpreted(backend):
    if DEVICE != "cpu":
        pytest.skip("kernels are not interpreted here")
    require("made_up", backend, Needs(interpretable=False))
    reason = "interpreter does not know its kernels' instructions"
    with pytest.raises(diglot.BackendUnavailable, match=reason):
        choose("made_up", torch.device("cpu"), backend)
    assert reason in diglot.explain("made_up", "cpu").reasons[backend]
