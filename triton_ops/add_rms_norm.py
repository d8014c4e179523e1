"""A sum of two arrays and its RMS norm: the launcher, of the kernel that norms one array. Twin of
csrc/ops/add_rms_norm.cu.
"""

from diglot.triton_ops.rms_norm import add_rms_norm_forward

__all__ = ["add_rms_norm_forward"]
