"""layer_norm: what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.norms import EPS, Function, Operands, benchmark_of
from bench.rows import optional


def _peers() -> dict[str, dict[str, Function]]:
    """Liger's launchers and QuACK's; the latter take weights of float32 alone."""
    peers: dict[str, dict[str, Function]] = {}
    liger = [
        optional("liger_kernel.ops.layer_norm", f"layer_norm_{direction}")
        for direction in ("forward", "backward")
    ]
    if None not in liger:

        def differentiate(of: Operands) -> Any:
            grad, _, x = of.arrays
            return liger[1](grad, x, of.weight, of.bias, of.mean, of.rstd)

        peers["liger"] = {
            "forward": lambda of: liger[0](of.arrays[0], of.weight, of.bias, EPS)[:1],
            "backward": differentiate,
        }
    quack = [optional("quack.rmsnorm", f"layernorm_{direction}") for direction in ("fwd", "bwd")]
    if None not in quack:
        peers["quack"] = {
            "prepare": lambda of: replace(of, weight=of.weight.float(), bias=of.bias.float()),
            "forward": lambda of: (quack[0](of.arrays[0], of.weight, of.bias, EPS),),
            "backward": lambda of: quack[1](
                of.arrays[2], of.weight, of.arrays[0], of.rstd, of.mean
            ),
        }
    return peers


benchmark = benchmark_of(centered=True, fused=False, peers=_peers())
