"""softmax: what is called, and what it is compared with."""

from __future__ import annotations

import torch

import diglot
from bench.rows import Function, benchmark_of, optional


def _gradient(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    wide, out = grad.float(), y.float()
    return (out * (wide - (wide * out).sum(dim, True))).to(grad.dtype)


def _peers() -> dict[str, dict[str, Function]]:
    """Liger's launchers and QuACK's, without their autograd functions."""
    peers: dict[str, dict[str, Function]] = {}
    liger = [
        optional("liger_kernel.ops.softmax", "_softmax_forward"),
        optional("liger_kernel.ops.softmax", "_softmax_backward"),
        optional("liger_kernel.ops.utils", "calculate_settings"),
    ]
    if None not in liger:

        def differentiate(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
            block, warps = liger[2](y.shape[-1])
            return liger[1](grad, y, block, warps, y.shape[-1] > block)

        peers["liger"] = {"forward": lambda x, dim: liger[0](x)[0], "backward": differentiate}
    quack = [optional("quack.softmax", name) for name in ("softmax_fwd", "softmax_bwd")]
    if None not in quack:
        peers["quack"] = {
            "forward": lambda x, dim: quack[0](x),
            "backward": lambda grad, y, dim: quack[1](grad, y),
        }
    return peers


benchmark = benchmark_of(
    "softmax",
    ours={
        "forward": lambda backend, x, dim: diglot.softmax(x, dim, backend=backend),
        "backward": lambda backend, grad, y, dim: torch.ops.diglot.softmax_backward(
            grad, y, dim, y.dtype, backend
        ),
    },
    eager={
        "forward": torch.softmax,
        "backward": lambda grad, y, dim: torch.ops.aten._softmax_backward_data(
            grad, y, dim, y.dtype
        ),
    },
    formulas={"forward": torch.softmax, "backward": _gradient},
    saved=torch.softmax,
    peers=_peers(),
)
