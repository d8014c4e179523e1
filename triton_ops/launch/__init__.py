"""Host code of the Triton kernels: planners of each kind of op, and what starts a plan's kernels.

The twin of csrc/include/diglot/launch, under the same file names.
"""
