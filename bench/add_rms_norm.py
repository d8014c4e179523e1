"""add_rms_norm: what it is compared with."""

from __future__ import annotations

from typing import Any

from bench.norms import EPS, Function, Operands, benchmark_of
from bench.rms_norm import LLAMA
from bench.rows import optional


def _peers() -> dict[str, dict[str, Function]]:
    """Liger's launchers and QuACK's."""
    peers: dict[str, dict[str, Function]] = {}
    liger = [
        optional("liger_kernel.ops.fused_add_rms_norm", f"fused_add_rms_norm_{direction}")
        for direction in ("forward", "backward")
    ]
    settings = optional("liger_kernel.ops.utils", "calculate_settings")
    if None not in (*liger, settings):

        def differentiate(of: Operands) -> Any:
            (grad, more, x), (block, warps) = of.arrays, settings(of.n)
            rest = (0.0, LLAMA, block, warps, 2, False)
            of_input, _, of_weight = liger[1](grad, more, x, of.weight, of.rstd, *rest)
            return of_input, of_weight

        peers["liger"] = {
            "forward": lambda of: liger[0](*of.arrays, of.weight, EPS, 0.0, "llama")[:2],
            "backward": differentiate,
        }
    quack = [optional("quack.rmsnorm", f"rmsnorm_{direction}") for direction in ("fwd", "bwd")]
    if None not in quack:

        def differentiate_quack(of: Operands) -> Any:
            grad, more, x = of.arrays
            return quack[1](x, of.weight, grad, of.rstd, more, has_residual=True)[:2]

        def forward(of: Operands) -> Any:
            x, residual = of.arrays
            return quack[0](x, of.weight, residual=residual, eps=EPS)[:2]

        peers["quack"] = {"forward": forward, "backward": differentiate_quack}
    return peers


benchmark = benchmark_of(centered=False, fused=True, peers=_peers())
