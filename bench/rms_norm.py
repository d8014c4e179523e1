"""rms_norm: what it is compared with."""

from __future__ import annotations

import importlib
from typing import Any

from diglot.bench.harness import Function
from diglot.bench.norms import EPS, Operands, benchmark_of

LLAMA = 0  # Liger's number of the mode that computes in float32, as the forward pass returns it

benchmark = benchmark_of(centered=False, fused=False)


def _liger() -> dict[str, Function]:
    ops = importlib.import_module("liger_kernel.ops.rms_norm")
    settings = importlib.import_module("liger_kernel.ops.utils").calculate_settings

    def differentiate(of: Operands) -> Any:
        # Not in place, which would overwrite the gradient that all providers share.
        (grad, _, x), (block, warps) = of.arrays, settings(of.n)
        rest = (0.0, LLAMA, block, warps, False, None)
        return ops.rms_norm_backward(grad, x, of.weight, of.rstd, *rest)

    def forward(of: Operands) -> Any:
        return ops.rms_norm_forward(of.arrays[0], of.weight, EPS, 0.0, "llama", None)[:1]

    return {"forward": forward, "backward": differentiate}


def _quack() -> dict[str, Function]:
    ops = importlib.import_module("quack.rmsnorm")
    return {
        "forward": lambda of: ops.rmsnorm_fwd(of.arrays[0], of.weight, eps=EPS)[:1],
        "backward": lambda of: ops.rmsnorm_bwd(of.arrays[2], of.weight, of.arrays[0], of.rstd)[:2],
    }


def _flag_gems() -> dict[str, Function]:
    ops = importlib.import_module("flag_gems.ops.rms_norm")

    def differentiate(of: Operands) -> Any:
        grad, _, x = of.arrays
        return ops.rms_norm_backward(grad, x, of.rstd, (of.n,), of.weight, EPS)

    return {
        "forward": lambda of: ops.rms_norm_forward(of.arrays[0], (of.n,), of.weight, EPS)[:1],
        "backward": differentiate,
    }


benchmark.peer("liger", "liger_kernel", _liger)
benchmark.peer("quack", "quack", _quack)
benchmark.peer("flag_gems", "flag_gems", _flag_gems)
