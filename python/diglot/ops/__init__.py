"""The ops' contracts: public functions, validation, differentiation, registration."""

from diglot.ops.add import add
from diglot.ops.clip_grad_norm import clip_grad_norm_
from diglot.ops.gelu import gelu
from diglot.ops.grid_barrier_check import GridBarrierCheck, grid_barrier_check

__all__ = ["GridBarrierCheck", "add", "clip_grad_norm_", "gelu", "grid_barrier_check"]
