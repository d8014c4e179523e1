"""diglot.patch in models of transformers, small and randomly initialised."""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import BACKENDS, DEVICE
from torch import nn

import diglot
from diglot.models.classes import class_of
from diglot.models.probe import disagreement
from diglot.models.reviewed import Rule, reviewed

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import transformers
except ImportError as error:
    pytest.skip(f"transformers cannot be imported: {error}", allow_module_level=True)

pytestmark = pytest.mark.slow

TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {**TEXT, "num_key_value_heads": 1, "head_dim": 16}
IMAGES = {k: v for k, v in TEXT.items() if k.startswith(("hidden", "num", "inter"))}
# The model's class, its settings, and how many modules of each kind are replaced.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "bert": ("BertForMaskedLM", TEXT, {"layer_norm": 6, "gelu": 3, "dropout": 7}),
    "gpt2": (
        "GPT2LMHeadModel",
        {**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 2},
        {"layer_norm": 5, "gelu": 2, "dropout": 7},
    ),
    "llama": ("LlamaForCausalLM", HEADS, {"rms_norm": 5}),
    "qwen2": ("Qwen2ForCausalLM", HEADS, {"rms_norm": 5}),
    "qwen3": ("Qwen3ForCausalLM", HEADS, {"rms_norm": 9}),
    "gemma": ("GemmaForCausalLM", HEADS, {"rms_norm": 5, "gelu": 2}),
    "vit": (
        "ViTForImageClassification",
        {**IMAGES, "image_size": 16, "patch_size": 8},
        {"layer_norm": 5, "gelu": 2, "dropout": 3},
    ),
}


def build(name: str, **settings: Any) -> Any:
    """A model whose norms have weights and biases that matter, in eval mode."""
    kind = getattr(transformers, MODELS[name][0])
    config = kind.config_class(**{**MODELS[name][1], "attn_implementation": "eager", **settings})
    model = kind(config).to(DEVICE).eval()
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters():
                nn.init.normal_(parameter)
    return model


def batch(model: Any) -> torch.Tensor:
    if model.config.model_type == "vit":
        return torch.randn(2, 3, 16, 16, device=DEVICE)
    return torch.randint(3, 50, (2, 7), device=DEVICE)


def run(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(inputs).logits
    return result


def gradients(model: Any, inputs: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    run(model, inputs).float().square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def kinds(patched: diglot.models.Patch) -> dict[str, int]:
    found = [each.kind for each in patched.replaced]
    return {kind: found.count(kind) for kind in found}


every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_and_gradients(name, backend):
    model = build(name)
    original, inputs = copy.deepcopy(model), batch(model)
    with diglot.patch(model, backend=backend) as patched, diglot.record_runs() as runs:
        assert kinds(patched) == MODELS[name][2] and not patched.left_alone, str(patched)
        torch.testing.assert_close(run(model, inputs), run(original, inputs), rtol=1e-3, atol=1e-4)
        ours, theirs = gradients(model, inputs), gradients(original, inputs)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert {each.backend for each in runs} == {backend}
    assert {each.op for each in runs} == set(MODELS[name][2]) - {"dropout"}
    assert torch.equal(run(model, inputs), run(original, inputs))


@every_model
def test_sixteen_bits(name):
    """Of bfloat16 and under autocast: the same dtypes, and values as near as float32's are."""
    model = build(name)
    inputs = batch(model)
    exact = run(model, inputs)
    halved = copy.deepcopy(model).bfloat16()
    inputs_of = {halved: inputs.bfloat16() if inputs.is_floating_point() else inputs, model: inputs}
    for each, autocast in ((halved, False), (model, True), (halved, True)):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            theirs = run(each, inputs_of[each])
            with diglot.patch(each, backend="torch"):
                ours = run(each, inputs_of[each])
        assert ours.dtype == theirs.dtype
        error, theirs_error = ((y.float() - exact).abs().max() for y in (ours, theirs))
        assert error <= 2 * theirs_error + 1e-3


@every_model
def test_compiled(name):
    model = build(name)
    inputs = batch(model)
    expected, wanted = run(model, inputs), gradients(model, inputs)
    diglot.patch(model, backend="torch")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(compiled, inputs), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gradients(compiled, inputs), wanted, rtol=1e-3, atol=1e-4)


@every_model
def test_saved_and_loaded(name, tmp_path):
    """States, transformers' own files, and pickles of the whole model."""
    model = build(name)
    inputs, before = batch(model), {k: v.clone() for k, v in model.state_dict().items()}
    original = copy.deepcopy(model)
    diglot.patch(model, backend="torch")
    after = model.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[k], after[k]) for k in before)
    original.load_state_dict(after)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager").to(DEVICE).eval()
    assert torch.equal(run(loaded, inputs), run(original, inputs))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    whole = torch.load(file, weights_only=False)
    assert torch.equal(run(whole, inputs), run(model, inputs)) and str(whole) == str(model)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("bert", {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.0}),
        ("gpt2", {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.0}),
        ("vit", {"hidden_dropout_prob": 0.3}),
    ],
)
def test_training(name, rates):
    """With dropout 0 as before; with another rate the same share is dropped, and masks differ."""
    model = build(name, **dict.fromkeys(rates, 0.0)).train()
    inputs, original = batch(model), copy.deepcopy(model)
    diglot.patch(model, backend="torch")
    torch.testing.assert_close(run(model, inputs), run(original, inputs), rtol=1e-3, atol=1e-4)
    model = build(name, **rates).train()
    diglot.patch(model, backend="torch")
    counts = torch.zeros(2)

    def count(module, given, result):
        counts.add_(torch.tensor([(result == 0).sum().item(), result.numel()]))

    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            module.register_forward_hook(count)
    first, second = run(model, inputs), run(model, inputs)
    assert not torch.equal(first, second)
    dropped, total = counts.tolist()
    assert total > 1000 and abs(dropped / total - 0.3) < 0.05


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_override(name):
    """The functions that a model calls: softmax, and GELU and norms where it is not patched."""
    model = build(name)
    inputs = batch(model)
    expected = run(model, inputs)
    with diglot.override("torch") as overridden:
        torch.testing.assert_close(run(model, inputs), expected, rtol=1e-3, atol=1e-4)
    assert overridden.sent["softmax"] == 2 and overridden.sent["layer_norm"] >= 5
    assert not overridden.left_alone
    with diglot.patch(model, backend="torch"), diglot.override("torch") as overridden:
        torch.testing.assert_close(run(model, inputs), expected, rtol=1e-3, atol=1e-4)
    assert set(overridden.sent) <= {"softmax", "dropout"}


def test_classes_of_the_list():
    """Every class on it is there, and the probe agrees with what the list says.

    Another version of transformers may lack some.
    """
    wrong, missing = {}, []
    for name, said in reviewed().items():
        module, _, kind_name = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), kind_name)
        except (ImportError, AttributeError):
            missing.append(name)
            continue
        if not isinstance(said, Rule):
            continue
        reason = disagreement(example(kind, said), class_of(kind), said.kind)
        if reason is not None:
            wrong[name] = reason
    listed = json.loads(Path(diglot.models.__file__).with_name("reviewed.json").read_text())
    is_listed = f"transformers {transformers.__version__}" in listed["versions"]
    # A class that computes something else in another version is refused there.
    most = 0 if is_listed else len(reviewed()) / 10
    assert len(wrong) <= most and len(missing) <= most, (wrong, missing)


def example(kind: Any, rule: Rule) -> nn.Module:
    """A module of a reviewed class; a norm's without its configuration."""
    if "softmax" in rule.kind:
        return kind(-1)
    if "norm" not in rule.kind or rule.becomes:
        return kind(8) if "norm" in rule.kind else kind()
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    setattr(module, rule.eps, 1e-6)
    module.with_scale, module.dim_norm = True, 16
    if rule.weight != "none":
        module.weight = nn.Parameter(torch.ones(16))
    if kind.__name__ == "DebertaLayerNorm":
        module.bias = nn.Parameter(torch.ones(16))
    return module
