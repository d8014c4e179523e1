"""A sum of two arrays and its layer norm: the launcher, of the kernel that norms one array. Twin of
csrc/ops/add_layer_norm.cu.
"""

from diglot.triton_ops.layer_norm import add_layer_norm_forward

__all__ = ["add_layer_norm_forward"]
