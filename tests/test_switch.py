"""How a backend is chosen, and why one is refused. By a variable: tests/test_environment.py."""

from __future__ import annotations

import threading

import pytest
import torch
from backends import CUDA, DEVICE, KERNELS

import diglot
from diglot.backends import selection
from diglot.reference.specs import all_op_names

X = torch.ones(4, device=DEVICE)


def backend_of(**arguments) -> str:
    diglot.gelu(X, **arguments)
    return diglot.last_run().backend


@pytest.mark.parametrize(
    ("by_variable", "by_scope", "by_argument"),
    [
        ("torch", "triton", "torch"),
        pytest.param("triton", "torch", "cuda", marks=CUDA.marks),
        pytest.param("cuda", "triton", "torch", marks=CUDA.marks),
        pytest.param("torch", "cuda", "triton", marks=CUDA.marks),
    ],
)
def test_precedence(by_variable, by_scope, by_argument, monkeypatch):
    monkeypatch.setattr(selection, "_environment", by_variable)
    assert backend_of() == by_variable
    assert backend_of(backend=by_argument) == by_argument
    with diglot.use_backend(by_scope):
        assert backend_of() == by_scope
        assert backend_of(backend=by_argument) == by_argument
        with diglot.use_backend(by_argument):
            assert backend_of() == by_argument
        assert backend_of() == by_scope
    assert backend_of() == by_variable


def test_scope_ends_with_an_error():
    with pytest.raises(KeyError), diglot.use_backend("triton"):
        raise KeyError
    assert selection._scope.backend is None


def test_scope_is_per_thread():
    seen = []
    with diglot.use_backend("triton"):
        thread = threading.Thread(target=lambda: seen.append(selection._scope.backend))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_scope_object_can_be_reused():
    scope = diglot.use_backend("triton")
    with scope, scope:
        assert backend_of() == "triton"
    assert selection._scope.backend is None


@pytest.mark.parametrize("backend", KERNELS)
def test_backward_follows_forward(backend):
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    with diglot.record_runs() as runs:
        with diglot.use_backend(backend):
            y = diglot.add(diglot.gelu(x), x, alpha=2)
        with diglot.use_backend("torch"):
            y.sum().backward()
    launchers = ["gelu_forward", "add_forward", "add_backward", "gelu_backward"]
    assert sorted(run.launcher for run in runs) == sorted(launchers)
    assert {run.backend for run in runs} == {backend}


def test_auto_never_interprets():
    if DEVICE == "cpu":
        assert backend_of() == backend_of(backend="auto") == "torch"
        notes = diglot.explain("gelu", X).notes
        for backend in diglot.available_backends("cpu")[:-1]:
            assert notes[backend].startswith("interpreted")
    else:
        assert backend_of() == "cuda"


def test_explain(refused_cuda):
    explanation = diglot.explain(diglot.gelu, torch.device("cpu"))
    assert explanation.op == "gelu"
    assert set(explanation.reasons) == {"cuda", "triton", "torch"}
    assert explanation.reasons["torch"] is None
    assert explanation.reasons["cuda"]
    assert explanation.chosen == "torch"
    text = str(explanation)
    assert "-> torch: can run" in text
    assert "   cuda: cannot run: " in text


@pytest.mark.parametrize("name", ["auto", "cuda", "triton", "torch"])
@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_explain_and_the_choice_agree(device, name):
    with diglot.use_backend(name):
        explanation = diglot.explain("gelu", device)
    try:
        chosen = selection.choose("gelu", torch.device(device), name)
    except diglot.BackendUnavailable:
        chosen = None
    assert explanation.chosen == chosen
    can_run = tuple(b for b, reason in explanation.reasons.items() if reason is None)
    assert diglot.available_backends(device) == can_run


def test_unavailable_backend_names_every_reason(refused_cuda):
    with pytest.raises(diglot.BackendUnavailable) as caught:
        diglot.gelu(torch.ones(2), backend="cuda")
    message = str(caught.value)
    assert "gelu: backend 'cuda' cannot run" in message
    assert f"cuda: cannot run: {refused_cuda}" in message
    assert "torch: can run" in message


def test_available_backends(refused_cuda):
    assert "torch" in diglot.available_backends("cpu")
    assert "cuda" not in diglot.available_backends("cpu")
    assert diglot.available_backends()[-1] == "torch"


def test_meta_tensors_take_any_backend(refused_cuda):
    for backend in ("cuda", "triton", "torch", "auto"):
        y = diglot.gelu(torch.ones(3, 4, device="meta"), backend=backend)
        assert y.shape == (3, 4)
        assert y.device.type == "meta"
    assert selection.choose("gelu", torch.device("meta"), "auto") == "torch"
    with pytest.raises(diglot.BackendUnavailable):  # a choice from there holds there
        diglot.gelu(torch.ones(3, 4), backend="cuda")


def test_choices_are_kept_by_all_that_they_depend_on(monkeypatch):
    monkeypatch.setattr(selection, "_chosen", {})
    asked = []

    def choose_once(op, call, name):
        asked.append((op, call.device, name))
        return str(asked[-1])

    monkeypatch.setattr(selection, "_choice", choose_once)
    choices = [
        (op, torch.device(device), name)
        for op in ("add", "gelu")
        for device in ("cpu", "meta")
        for name in ("auto", "torch")
    ]
    for _ in range(2):
        assert [selection.choose(*of) for of in choices] == [str(of) for of in choices]
    assert asked == choices


@pytest.mark.parametrize("name", ["", " ", "opencl", 0, False, ["cuda"]], ids=repr)
def test_what_names_no_backend_is_refused(name):
    """Only None, the argument not given, stands for the default."""
    message = "backend must be one of 'cuda', 'triton', 'torch', 'auto', not "
    calls = [
        lambda: diglot.gelu(X, backend=name),
        lambda: diglot.add(X, X, backend=name),
        lambda: diglot.add(X, 2, backend=name),
        lambda: diglot.use_backend(name),
        lambda: diglot.nn.GELU(backend=name),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_last_run_is_per_thread():
    diglot.gelu(X, backend="torch")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(diglot.last_run()))
    thread.start()
    thread.join()
    assert seen == [None]
    assert diglot.last_run().op == "gelu"


def test_explain_names_ops_as_everything_else_does():
    """The function's name; an unknown name is an error, which suggests a near one."""
    assert diglot.explain(diglot.clip_grad_norm_, "cpu").op == "clip_grad_norm_"
    assert "clip_grad_norm_" in all_op_names()
    with pytest.raises(ValueError, match=r"op must be one of add, .* not 'nosuch'$"):
        diglot.explain("nosuch")
    with pytest.raises(ValueError, match=r"not 'layernorm'; did you mean 'layer_norm'\?"):
        diglot.explain("layernorm")


def test_a_misspelt_name_is_told_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'triton'\?"):
        diglot.gelu(torch.zeros(1), backend="trition")
    with pytest.raises(ValueError, match=r"did you mean 'invariant'\?"):
        diglot.use_plans("invariants")
