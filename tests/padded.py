"""A function whose results show what lies beyond its arguments, captured by buckets."""

from __future__ import annotations

import torch
from torch import nn

from diglot.graphs import capture

BATCH_AND_LENGTH = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
BUCKETS = {"batch": (1, 2, 4), "length": (4, 8)}
MIXED = [(4, 8), (3, 7), (1, 1), (1, 3), (2, 2), (4, 1), (1, 8), (3, 4), (2, 5), (2, 8), (1, 4)]


def make_pooled():
    """A function that reads padding: its sums over it would show the padding's values."""
    linear = nn.Linear(4, 3).requires_grad_(False)

    def pooled(x, mask):
        hidden = linear(x) * mask[..., None]
        return {"rows": hidden.sum(1), "all": [hidden, mask.sum()], "kind": "sum"}

    return pooled


def request(batch, length):
    """Its arguments."""
    return torch.randn(batch, length, 4), torch.ones(batch, length)


def capture_pooled(function, **options):
    """The function by buckets."""
    options = {"dims": BATCH_AND_LENGTH, "buckets": BUCKETS, "max_padding": 8, **options}
    return capture(function, request(2, 5), **options)


def check_pooled(graphed, function, sizes):
    """Compares results for requests of some sizes."""
    for batch, length in sizes:
        x, mask = request(batch, length)
        found, expected = graphed(x, mask), function(x, mask)
        assert found["kind"] == "sum"
        torch.testing.assert_close(found["rows"], expected["rows"])
        torch.testing.assert_close(found["all"], expected["all"])
