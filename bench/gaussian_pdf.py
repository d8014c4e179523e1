"""gaussian_pdf: cases, providers, bars."""

from __future__ import annotations

import math

import torch

import diglot
from diglot.bench.elementwise import benchmark_of, on_device, small
from diglot.bench.harness import RECORDED, Bar, Function

BIG, OPTIONS = (8192, 8192), [{"terms": 22}]
# What a copy to or from the host moves in a second over PCIe of the fifth generation. The kernel is
# to work through an array at twice that, for copies to hide it.
HOST_COPY_TB_PER_S = 0.05

benchmark = benchmark_of(
    "gaussian_pdf",
    [*on_device(("forward", "backward"), OPTIONS, BIG), *small(OPTIONS, (torch.float32,))],
    [
        Bar(
            "TB/s of the input",
            lambda row: row["timer"] == "device" and row["direction"] == "forward",
            lambda row, _: row["tb_per_s"] / 2,
            lambda row: 2 * HOST_COPY_TB_PER_S,
        ),
    ],
    keywords=lambda case: {"mean": 0.0, "std": 1.0, **case.options},
)

benchmark.ours(
    {
        "forward": diglot.gaussian_pdf,
        RECORDED: diglot.gaussian_pdf,
        "backward": torch.ops.diglot.gaussian_pdf_backward,
    }
)


def _formula(x: torch.Tensor, mean: float, std: float, terms: int) -> torch.Tensor:
    """The definition in eager PyTorch, a kernel per operation. PyTorch has no op of its own."""
    wide, total = x.float(), torch.zeros_like(x, dtype=torch.float32)
    for i in range(terms):
        z = (wide - mean + (i - terms // 2) / 100) / std
        total = total + torch.exp(-0.5 * z * z)
    return (total / (math.sqrt(2 * math.pi) * std * terms)).to(x.dtype)


def _gradient(
    grad: torch.Tensor, x: torch.Tensor, mean: float, std: float, terms: int
) -> torch.Tensor:
    """Its derivative, likewise."""
    wide, total = x.float(), torch.zeros_like(x, dtype=torch.float32)
    for i in range(terms):
        z = (wide - mean + (i - terms // 2) / 100) / std
        total = total - z * torch.exp(-0.5 * z * z)
    return (grad * total / (math.sqrt(2 * math.pi) * std * std * terms)).to(x.dtype)


FORMULAS: dict[str, Function] = {"forward": _formula, "backward": _gradient}
benchmark.compiled(FORMULAS)
benchmark.way("formula", FORMULAS)
