"""add_layer_norm: of its peers only PyTorch has the norm, after an addition."""

from __future__ import annotations

from diglot.bench.norms import benchmark_of

benchmark = benchmark_of(centered=True, fused=True)
