"""Kernels of `diglot.distributed`."""
