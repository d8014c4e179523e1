"""Models of transformers as they are, and patched: how much faster `diglot.patch` makes them.

`diglot bench patched --results DIR` writes to DIR/<gpu>. Weights are random, of bfloat16.
"""

from __future__ import annotations

import copy
import functools
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import diglot
from diglot.bench.harness import DEVICE, Row
from diglot.bench.markdown import table
from diglot.bench.reports import measured_on, run_parts
from diglot.tools import measure

BACKENDS = ("cuda", "triton")
GB = 1e9
# How far a patched model may be from float32, in units of how far PyTorch's model is.
MOST_ERROR = 1.5


@dataclass(frozen=True)
class Model:
    """A model of transformers, and the batch that it gets."""

    kind: str
    settings: dict[str, int]
    batch: tuple[int, ...]

    def build(self) -> nn.Module:
        """The model in float32: the same weights in every call."""
        transformers = importlib.import_module("transformers")
        kind = getattr(transformers, self.kind)
        torch.manual_seed(0)
        with torch.device(DEVICE):
            model: nn.Module = kind(kind.config_class(**self.settings))
        return model

    def inputs(self) -> torch.Tensor:
        """Random tokens, or random images."""
        torch.manual_seed(1)
        if len(self.batch) == 2:
            return torch.randint(1000, self.batch, device=DEVICE)
        return torch.randn(self.batch, device=DEVICE)


# As published. Llama has 4 of its 16 layers here.
MODELS = {
    "BERT base": Model("BertForMaskedLM", {}, (32, 512)),
    "GPT-2": Model("GPT2LMHeadModel", {"use_cache": False}, (8, 1024)),
    "Llama 3.2 1B, 4 layers": Model(
        "LlamaForCausalLM",
        {
            "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
            "use_cache": False,
        },
        (2, 2048),
    ),
    "ViT base": Model("ViTForImageClassification", {}, (64, 3, 224, 224)),
}  # fmt: skip


def infer(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The logits."""
    with torch.inference_mode():
        logits: torch.Tensor = model(x).logits
    return logits


def train(model: Any, x: torch.Tensor) -> None:
    """Forward and backward; gradients are new ones."""
    model.zero_grad()
    model(x).logits.float().square().mean().backward()


def results_of(model: Any, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """The logits and all gradients, without dropout."""
    model.eval()
    train(model, x)
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return {"logits": [infer(model, x)], "gradients": gradients}


def error_of(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The root mean square of the differences."""
    pairs = list(zip(found, exact, strict=True))
    squares = sum((one.float() - other).square().sum().item() for one, other in pairs)
    return math.sqrt(squares / sum(one.numel() for one, _ in pairs))


def time_model(name: str) -> Iterator[Row]:
    """The rows of a model: PyTorch's, and ours in both languages."""
    made = MODELS[name]
    x = made.inputs()
    exact = results_of(made.build(), x)  # in float32
    x = x.bfloat16() if x.is_floating_point() else x
    model = made.build().bfloat16()
    models = {each: copy.deepcopy(model) for each in ("torch", *BACKENDS)}
    facts: dict[str, Row] = {}
    for provider, model in models.items():
        patched = diglot.patch(model, backend=provider) if provider in BACKENDS else None
        results = results_of(model, x)
        errors = {kind: error_of(results[kind], exact[kind]) for kind in exact}
        facts[provider] = {"errors": errors}
        if patched is not None:
            facts[provider]["replaced"] = sum(len(each.names) for each in patched.replaced)
        for kind, least in facts["torch"]["errors"].items():
            if not errors[kind] <= MOST_ERROR * least:
                raise AssertionError(
                    f"{provider}: {kind} are {errors[kind]:.3g} off, PyTorch's {least:.3g}"
                )
    for step, call in {"inference": infer, "training step": train}.items():
        for model in models.values():
            model.zero_grad()
            model.train(call is train)
        functions = {each: functools.partial(call, model, x) for each, model in models.items()}
        times = measure.interleaved(functions, budget_ms=600, cold=False)
        for provider, timing in times.items():
            figures = facts[provider] | timing.figures()
            yield {
                "op": "patched", "model": name, "workload": step, "provider": provider,
                "timer": "device", "batch": list(made.batch), "verified": True,
                "peak_bytes": measure.peak_bytes(functions[provider]), **figures,
            }  # fmt: skip


def run(folder: Path | None = None) -> Path:
    """Measures, and writes patched.json to a folder, by default to bench/results/<gpu>."""

    def tell(row: Row) -> str:
        return f"{row['workload']}, {row['provider']}: {row['time_us']:,.0f} µs"

    parts = {name: functools.partial(time_model, name) for name in MODELS}
    return run_parts("patched", parts, tell, folder)


def patched_markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/models.md."""
    lines: list[str] = []
    for report in reports:
        lines += [f"{measured_on([report])}.", ""]
        cells = []
        for group in _groups(report["rows"]):
            first = next(iter(group.values()))
            base = group["torch"]["time_us"]
            cells.append(
                [
                    first["model"],
                    "×".join(map(str, first["batch"])),
                    first["workload"],
                    f"{base / 1e3:,.2f} ms, {group['torch']['peak_bytes'] / GB:.1f} GB",
                    *(_speed(group[each], base) for each in BACKENDS),
                ]
            )
        heads = ["model", "batch", "", "PyTorch", *BACKENDS]
        lines += table(heads, cells)
        failed = [row for row in report["rows"] if "reason" in row]
        lines += [f"- {row['workload']}: {row['reason']}" for row in failed]
    return "\n".join(lines)


def _groups(rows: Sequence[Row]) -> Iterable[dict[str, Row]]:
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if "reason" not in row:
            found.setdefault((row["model"], row["workload"]), {})[row["provider"]] = row
    return found.values()


def _speed(row: Row, base: float) -> str:
    return f"{base / row['time_us']:.2f} ×, {row['peak_bytes'] / GB:.1f} GB"
