"""rms_norm: what it is compared with."""

from __future__ import annotations

from typing import Any

from bench.norms import EPS, Function, Operands, benchmark_of
from bench.rows import optional


def _peers() -> dict[str, dict[str, Function]]:
    """Liger's launchers and QuACK's."""
    peers: dict[str, dict[str, Function]] = {}
    liger = [
        optional("liger_kernel.ops.rms_norm", f"rms_norm_{direction}")
        for direction in ("forward", "backward")
    ]
    settings = optional("liger_kernel.ops.utils", "calculate_settings")
    if None not in (*liger, settings):

        def differentiate(of: Operands) -> Any:
            # Not in place, which would overwrite the gradient that all providers share.
            (grad, _, x), (block, warps) = of.arrays, settings(of.n)
            rest = (0.0, LLAMA, block, warps, False, None)
            return liger[1](grad, x, of.weight, of.rstd, *rest)

        peers["liger"] = {
            "forward": lambda of: liger[0](of.arrays[0], of.weight, EPS, 0.0, "llama", None)[:1],
            "backward": differentiate,
        }
    quack = [optional("quack.rmsnorm", f"rmsnorm_{direction}") for direction in ("fwd", "bwd")]
    if None not in quack:
        peers["quack"] = {
            "forward": lambda of: quack[0](of.arrays[0], of.weight, eps=EPS)[:1],
            "backward": lambda of: quack[1](of.arrays[2], of.weight, of.arrays[0], of.rstd)[:2],
        }
    return peers


LLAMA = 0  # Liger's number of the mode that computes in float32, as the forward pass returns it

benchmark = benchmark_of(centered=False, fused=False, peers=_peers())
