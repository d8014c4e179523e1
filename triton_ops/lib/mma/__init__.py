"""Tensor cores: products of tiles."""
