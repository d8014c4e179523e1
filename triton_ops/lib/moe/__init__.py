"""A mixture of experts: rows on their way to experts and back, and activations."""
