"""The ops' contracts: public functions, validation, differentiation, registration."""

from diglot.ops.add import add
from diglot.ops.add_layer_norm import add_layer_norm
from diglot.ops.add_rms_norm import add_rms_norm
from diglot.ops.addmm import addmm
from diglot.ops.baddbmm import baddbmm
from diglot.ops.bmm import bmm
from diglot.ops.clip_grad_norm_ import clip_grad_norm_
from diglot.ops.dropout import dropout
from diglot.ops.gaussian_pdf import gaussian_pdf
from diglot.ops.gelu import gelu
from diglot.ops.global_softmax import global_softmax
from diglot.ops.grid_barrier_check import GridBarrierCheck, grid_barrier_check
from diglot.ops.grouped_mm import grouped_mm
from diglot.ops.layer_norm import layer_norm
from diglot.ops.linear import linear
from diglot.ops.log_softmax import log_softmax
from diglot.ops.matmul import matmul
from diglot.ops.mlp import mlp
from diglot.ops.moe import moe
from diglot.ops.rms_norm import rms_norm
from diglot.ops.scaled_mm import scaled_mm
from diglot.ops.softmax import softmax
from diglot.ops.standardize import standardize

__all__ = [
    "GridBarrierCheck",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "addmm",
    "baddbmm",
    "bmm",
    "clip_grad_norm_",
    "dropout",
    "gaussian_pdf",
    "gelu",
    "global_softmax",
    "grid_barrier_check",
    "grouped_mm",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "mlp",
    "moe",
    "rms_norm",
    "scaled_mm",
    "softmax",
    "standardize",
]
