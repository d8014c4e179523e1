"""add_rms_norm: what it is compared with. FlagGems' overwrites its input, and is left out."""

from __future__ import annotations

import importlib
from typing import Any

from diglot.bench.harness import Function
from diglot.bench.norms import EPS, Operands, benchmark_of
from diglot.bench.rms_norm import LLAMA

benchmark = benchmark_of(centered=False, fused=True)


@benchmark.peer("liger", "liger_kernel.ops.fused_add_rms_norm")
def _liger(ops: Any) -> dict[str, Function]:
    settings = importlib.import_module("liger_kernel.ops.utils").calculate_settings

    def differentiate(of: Operands) -> Any:
        (grad, more, x), (block, warps) = of.arrays, settings(of.n)
        rest = (0.0, LLAMA, block, warps, 2, False)
        made = ops.fused_add_rms_norm_backward(grad, more, x, of.weight, of.rstd, *rest)
        return made[0], made[2]

    def forward(of: Operands) -> Any:
        return ops.fused_add_rms_norm_forward(*of.arrays, of.weight, EPS, 0.0, "llama")[:2]

    return {"forward": forward, "backward": differentiate}


@benchmark.peer("quack", "quack.rmsnorm")
def _quack(ops: Any) -> dict[str, Function]:
    def differentiate(of: Operands) -> Any:
        grad, more, x = of.arrays
        return ops.rmsnorm_bwd(x, of.weight, grad, of.rstd, more, has_residual=True)[:2]

    def forward(of: Operands) -> Any:
        x, residual = of.arrays
        return ops.rmsnorm_fwd(x, of.weight, residual=residual, eps=EPS)[:2]

    return {"forward": forward, "backward": differentiate}
