"""layer_norm: what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diglot.bench.harness import Function
from diglot.bench.norms import EPS, Operands, benchmark_of

benchmark = benchmark_of(centered=True, fused=False)


@benchmark.peer("liger", "liger_kernel.ops.layer_norm")
def _liger(ops: Any) -> dict[str, Function]:
    def differentiate(of: Operands) -> Any:
        grad, _, x = of.arrays
        return ops.layer_norm_backward(grad, x, of.weight, of.bias, of.mean, of.rstd)

    return {
        "forward": lambda of: ops.layer_norm_forward(of.arrays[0], of.weight, of.bias, EPS)[:1],
        "backward": differentiate,
    }


def _wide(of: Operands) -> Operands:
    """QuACK's takes weights of float32 alone."""
    return replace(of, weight=of.weight.float(), bias=of.bias.float())


@benchmark.peer(
    "quack",
    "quack.rmsnorm",
    operands=lambda case, tensors: tuple(map(_wide, benchmark.operands(case, tensors))),
)
def _quack(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda of: (ops.layernorm_fwd(of.arrays[0], of.weight, of.bias, EPS),),
        "backward": lambda of: ops.layernorm_bwd(
            of.arrays[2], of.weight, of.arrays[0], of.rstd, of.mean
        ),
    }


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    def forward(of: Operands) -> Any:
        return ops.layer_norm(of.arrays[0], (of.n,), of.weight, of.bias, EPS)[:1]

    def differentiate(of: Operands) -> Any:
        (grad, _, x), mask = of.arrays, [True, True, True]
        parameters = of.weight, of.bias
        return ops.layer_norm_backward(grad, x, (of.n,), of.mean, of.rstd, *parameters, mask)

    return {"forward": forward, "backward": differentiate}
