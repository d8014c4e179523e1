"""The ops' contracts: public functions, validation, differentiation, registration."""

from diglot.ops.add import add
from diglot.ops.clip_grad_norm import clip_grad_norm_
from diglot.ops.dropout import dropout
from diglot.ops.gelu import gelu
from diglot.ops.global_softmax import global_softmax
from diglot.ops.grid_barrier_check import GridBarrierCheck, grid_barrier_check
from diglot.ops.log_softmax import log_softmax
from diglot.ops.softmax import softmax
from diglot.ops.standardize import standardize

__all__ = [
    "GridBarrierCheck",
    "add",
    "clip_grad_norm_",
    "dropout",
    "gelu",
    "global_softmax",
    "grid_barrier_check",
    "log_softmax",
    "softmax",
    "standardize",
]
