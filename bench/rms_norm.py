"""rms_norm: what it is compared with."""

from __future__ import annotations

import importlib
from typing import Any

from diglot.bench.harness import Function
from diglot.bench.norms import EPS, Operands, benchmark_of

LLAMA = 0  # Liger's number of the mode that computes in float32, as the forward pass returns it

benchmark = benchmark_of(centered=False, fused=False)


@benchmark.peer("liger", "liger_kernel.ops.rms_norm")
def _liger(ops: Any) -> dict[str, Function]:
    settings = importlib.import_module("liger_kernel.ops.utils").calculate_settings

    def differentiate(of: Operands) -> Any:
        # Not in place, which would overwrite the gradient that all providers share.
        (grad, _, x), (block, warps) = of.arrays, settings(of.n)
        rest = (0.0, LLAMA, block, warps, False, None)
        return ops.rms_norm_backward(grad, x, of.weight, of.rstd, *rest)

    def forward(of: Operands) -> Any:
        return ops.rms_norm_forward(of.arrays[0], of.weight, EPS, 0.0, "llama", None)[:1]

    return {"forward": forward, "backward": differentiate}


@benchmark.peer("quack", "quack.rmsnorm")
def _quack(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda of: ops.rmsnorm_fwd(of.arrays[0], of.weight, eps=EPS)[:1],
        "backward": lambda of: ops.rmsnorm_bwd(of.arrays[2], of.weight, of.arrays[0], of.rstd)[:2],
    }


@benchmark.peer("flag_gems", "flag_gems.ops.rms_norm")
def _flag_gems(ops: Any) -> dict[str, Function]:
    def differentiate(of: Operands) -> Any:
        grad, _, x = of.arrays
        return ops.rms_norm_backward(grad, x, of.rstd, (of.n,), of.weight, EPS)

    return {
        "forward": lambda of: ops.rms_norm_forward(of.arrays[0], (of.n,), of.weight, EPS)[:1],
        "backward": differentiate,
    }
