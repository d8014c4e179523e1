"""Measured numbers as data, by GPU: `tunables/`."""
