"""bench/patched.py: its rows, a model that fails, and the table."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import diglot
from diglot.bench import patched, reports
from diglot.tools import measure
from diglot.tools.measure import Timing

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="it builds models of transformers"
)
SMALL = {
    "vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 48,
}  # fmt: skip
TIMES = {"torch": 300.0, "cuda": 200.0, "triton": 150.0}


@pytest.fixture
def on_cpu(monkeypatch):
    """Small models on the CPU, times that are given, and patches that run PyTorch's ops."""
    calls = []

    def interleaved(functions, **_):
        for function in functions.values():
            calls.append(function)
            function()
        return {name: Timing.of([TIMES[name]] * 2) for name in functions}

    real = diglot.patch
    monkeypatch.setattr(patched, "DEVICE", "cpu")
    monkeypatch.setattr(patched.diglot, "patch", lambda model, backend: real(model, "torch"))
    monkeypatch.setattr(measure, "check", lambda: None)
    monkeypatch.setattr(measure, "interleaved", interleaved)
    monkeypatch.setattr(measure, "peak_bytes", lambda function: 2_000_000_000)
    models = {"small": patched.Model("BertForMaskedLM", SMALL, (2, 8))}
    monkeypatch.setattr(patched, "MODELS", models)
    return calls


def test_rows_and_their_table(on_cpu):
    rows = list(patched.time_model("small"))
    assert [(row["workload"], row["provider"]) for row in rows] == [
        (step, name) for step in ("inference", "training step") for name in TIMES
    ]
    assert len(on_cpu) == 6
    # 4 layer norms, 2 GELUs, and 4 dropouts.
    assert [row.get("replaced") for row in rows] == [None, 10, 10] * 2
    versions = {"torch": "2", "triton": "3", "driver": "5"}
    report = {
        "gpu": "NVIDIA H200",
        "date": "2026-01-01",
        "commit": "0123456789ab",
        "versions": versions,
    }
    text = patched.patched_markdown([report | {"rows": rows}])
    assert "| small | 2×8 | inference | 0.30 ms, 2.0 GB | 1.50 ×, 2.0 GB | 2.00 ×, 2.0 GB |" in text


def test_a_model_that_is_wrong_fails_alone(on_cpu, monkeypatch, tmp_path):
    def spoil(model, backend):
        with torch.no_grad():
            next(model.parameters()).mul_(2)
        return diglot.models.patching.patch(model, "torch")

    right = patched.time_model
    monkeypatch.setattr(patched, "MODELS", patched.MODELS | {"other": patched.MODELS["small"]})

    def time_model(name):
        with monkeypatch.context() as patch:
            if name == "small":
                patch.setattr(patched.diglot, "patch", spoil)
            yield from right(name)

    monkeypatch.setattr(patched, "time_model", time_model)
    saved = {}

    def write(op, rows, folder, **facts):
        saved[op] = list(rows)

    monkeypatch.setattr(reports, "write_report", write)
    patched.run(tmp_path)
    first, *others = saved["patched"]
    assert not first["verified"] and "cuda: logits are" in first["reason"]
    assert len(others) == 6 and all(row["verified"] for row in others)
    report = {"gpu": "NVIDIA H200", "date": "2026-01-01", "commit": "0123456789ab"}
    report |= {"versions": {"torch": "2", "triton": "3", "driver": "5"}, "rows": saved["patched"]}
    assert "- small: failed: AssertionError" in patched.patched_markdown([report])
