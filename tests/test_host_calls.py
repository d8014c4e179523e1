"""How many calls an eager call of an op makes in Python: its host time grows with them.

They are counted without a GPU, and a busy machine counts the same. Whoever saves calls lowers the
limits. `diglot bench` measures microseconds.
"""

from __future__ import annotations

import gc
import re
import sys

import pytest
import torch

import diglot
from diglot.backends import runs
from diglot.define.direct import Kinds

X, Y = torch.randn(2, 4096)
ROWS, RESIDUAL = torch.randn(2, 64, 64)
WEIGHT, BIAS = torch.randn(2, 64)
MATRIX = torch.randn(64, 64)
BATCH, OTHER, ADDED = torch.randn(3, 1, 64, 64)
OPS = {
    "add": lambda x: diglot.add(x, Y, backend="torch"),
    "dropout": lambda x: diglot.dropout(x, 0.1, backend="torch"),
    "gaussian_pdf": lambda x: diglot.gaussian_pdf(x, terms=22, backend="torch"),
    "gelu": lambda x: diglot.gelu(x, backend="torch"),
    "log_softmax": lambda x: diglot.log_softmax(x, -1, backend="torch"),
    "softmax": lambda x: diglot.softmax(x, -1, backend="torch"),
    "add_layer_norm": lambda x: diglot.add_layer_norm(
        x, RESIDUAL, (64,), WEIGHT, BIAS, backend="torch"
    ),
    "add_rms_norm": lambda x: diglot.add_rms_norm(x, RESIDUAL, (64,), WEIGHT, backend="torch"),
    "layer_norm": lambda x: diglot.layer_norm(x, (64,), WEIGHT, BIAS, backend="torch"),
    "rms_norm": lambda x: diglot.rms_norm(x, (64,), WEIGHT, backend="torch"),
    "addmm": lambda x: diglot.addmm(RESIDUAL, x, MATRIX, backend="torch"),
    "baddbmm": lambda x: diglot.baddbmm(ADDED, x, OTHER, backend="torch"),
    "bmm": lambda x: diglot.bmm(x, OTHER, backend="torch"),
    "matmul": lambda x: diglot.matmul(x, MATRIX, backend="torch"),
}
# Calls of Python's functions and of C's, with an input that requires no gradient and with one.
# Counted with Python 3.11; later versions inline some.
LIMITS = {
    "add": ((12, 16), (14, 17)),
    "dropout": ((12, 13), (15, 14)),
    "gaussian_pdf": ((12, 14), (15, 15)),
    "gelu": ((11, 12), (14, 13)),
    "log_softmax": ((15, 14), (19, 15)),
    "softmax": ((15, 14), (19, 15)),
    "add_layer_norm": ((16, 23), (25, 27)),
    "add_rms_norm": ((18, 22), (27, 26)),
    "layer_norm": ((16, 21), (24, 25)),
    "rms_norm": ((18, 20), (26, 24)),
    "addmm": ((24, 24), (27, 25)),
    "baddbmm": ((25, 25), (28, 26)),
    "bmm": ((19, 17), (22, 18)),
    "matmul": ((17, 16), (20, 17)),
}


def count_calls(function, x: torch.Tensor) -> tuple[int, int]:
    """The calls of Python's functions and of C's."""
    counts = {"call": 0, "c_call": 0}

    def count(frame, event, argument):
        if event in counts:
            counts[event] += 1

    sys.setprofile(count)
    try:
        function(x)
    finally:
        sys.setprofile(None)
    return counts["call"], counts["c_call"]


@pytest.mark.parametrize("op", OPS)
def test_calls(op, monkeypatch):
    """Of a call whose kind is known, of a launcher that does nothing."""
    monkeypatch.setattr(runs, "_observers", ())
    monkeypatch.setitem(runs._launchers, ("torch", f"{op}_forward"), lambda *_: "nothing")
    gc.unfreeze()  # the collector does not list what conftest.py has frozen
    for kinds in (each for each in gc.get_objects() if type(each) is Kinds):
        monkeypatch.setattr(kinds, "_known", ({}, {}))  # of earlier tests, which cost a call each
    x = BATCH if "bmm" in op else ROWS if re.search("norm|softmax|mm|mat", op) else X
    for input, limit in zip((x, x.clone().requires_grad_()), LIMITS[op], strict=True):
        OPS[op](input)
        # The garbage collector may call something beside.
        found = min(count_calls(OPS[op], input) for _ in range(5))
        assert found[0] <= limit[0] and found[1] <= limit[1], (found, limit)
