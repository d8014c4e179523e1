"""gelu: cases, providers, bars."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import diglot
from diglot.bench.elementwise import benchmark_of, copy_bar, on_device, small
from diglot.bench.harness import RECORDED, Function, Row, graph_bar, host_bar

FORMS = [{"approximate": form} for form in ("tanh", "none")]


def _share(row: Row) -> float:
    if row["direction"] == "backward":
        return 0.95
    return 0.97 if row["options"]["approximate"] == "tanh" else 0.93


benchmark = benchmark_of(
    "gelu",
    [*on_device(("forward", "backward"), FORMS), *small(FORMS)],
    [copy_bar(_share), graph_bar(), host_bar(cuda=(3, 8), triton=(9, 14))],
)

benchmark.ours(
    {
        "forward": diglot.gelu,
        RECORDED: diglot.gelu,
        "backward": torch.ops.diglot.gelu_backward,
    }
)
benchmark.way(
    "torch",
    {"forward": F.gelu, RECORDED: F.gelu, "backward": torch.ops.aten.gelu_backward},
    code=[F.gelu],
)


def _formula(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The definition written out in eager PyTorch, a kernel per operation."""
    if approximate == "tanh":
        factor = math.sqrt(2 / math.pi)
        return 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gradient(grad: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Its derivative, likewise."""
    if approximate == "tanh":
        factor = math.sqrt(2 / math.pi)
        t = torch.tanh(factor * (x + 0.044715 * x * x * x))
        slope = factor * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


FORMULAS: dict[str, Function] = {"forward": _formula, "backward": _gradient}
benchmark.compiled(FORMULAS)
benchmark.way("formula", FORMULAS)


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    return {"forward": ops.gelu, "backward": ops.gelu_backward}
