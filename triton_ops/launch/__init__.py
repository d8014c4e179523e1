"""Host code of the Triton kernels: planners for each kind of op, and the start of a plan's kernels.

The twin of csrc/include/diglot/launch, under the same file names.
"""
