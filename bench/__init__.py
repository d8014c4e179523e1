"""Benchmarks: one file per op, the measuring they share, and what a result was measured on."""
