"""Rows in Triton that begin between multiples of 16 bytes."""

from __future__ import annotations

import itertools

import pytest
import torch
from apart import run_apart
from backends import DEVICE, launched, mostly_slow, sum_error
from norms import OPS as NORMS
from norms import Norm

import diglot
from diglot.backends.tunables import use_tunables
from diglot.triton_ops.launch import norm_backward, row_splits

ALWAYS = {
    "rows.triton.peeled_elements": 16,
    "norm_backward.triton.peeled_elements.*": 16,
}
SMALL = {
    "rows.triton.alone_elements": 64,
    "norm_forward.triton.alone": 64,
    "norm_forward.triton.alone_peeled": 64,
    "rows.triton.shared.0.bytes": 1024,
    "norm_forward.triton.shared.*.*.bytes": 1024,
    "norm_forward.triton.shared_peeled.*.*.*.bytes": 1024,
}
# Ways to hold a row, and how a variant's name begins.
WAYS = {
    "a program": ({"rows.triton.latency.programs": 0}, "rows in registers"),
    "many warps": ({"rows.triton.latency.elements": 1}, "rows in registers"),
    "weights late": ({"norm_forward.triton.held.*.*.*.*.early": 0}, "rows in registers"),
    "programs together": (SMALL, "a row shared by programs"),
    "two passes": (
        {
            "rows.triton.alone_elements": "never",
            "norm_forward.triton.alone": "never",
            "norm_forward.triton.alone_peeled": "never",
            "rows.triton.most_held": 64,
            "rows.triton.tile_elements": 256,
            "rows.triton.tile_warps": 1,
        },
        "a row read twice",
    ),
}
DTYPES = [
    torch.float32,
    torch.bfloat16,
    pytest.param(torch.float64, marks=pytest.mark.slow),
]
LENGTHS = [(9, 527), (3, 777), (2, 1283)]


SLOW = ("programs together", "many warps")
MOST_WAYS = [pytest.param(way, marks=[pytest.mark.slow] if way in SLOW else []) for way in WAYS]


@pytest.mark.parametrize("way", MOST_WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["softmax_forward", "log_softmax_backward"])
def test_rows_of_odd_lengths(name, dtype, way):
    """Dense rows, or with gaps between them; guards around the output stay as they are."""
    tunables, kind = WAYS[way]
    for rows, n in LENGTHS:
        for offset, pitch in ((0, n), (3, n + 4)):

            def draw(rows=rows, n=n, offset=offset, pitch=pitch):
                memory = torch.randn(rows * pitch + 64, device=DEVICE).to(dtype)
                return memory, memory[offset : offset + rows * pitch].view(rows, pitch)[:, :n]

            inputs = [draw()[1] for _ in range(1 if "forward" in name else 2)]
            if len(inputs) == 2:
                inputs[1].copy_(torch.log_softmax(inputs[1].double(), 1))
            memory, out = draw()
            memory.fill_(77)
            expected = torch.empty_like(inputs[0])
            with use_tunables(ALWAYS | tunables):
                variant = launched("triton", name, *inputs, 1, out)
            assert variant.startswith(kind) and variant.endswith("edges apart"), variant
            launched("torch", name, *inputs, 1, expected)
            error = max(2 * torch.finfo(dtype).eps, sum_error(dtype))
            torch.testing.assert_close(out, expected, rtol=error, atol=error)
            out.fill_(77)
            assert (memory == 77).all()


OF_NORMS = list(itertools.product(NORMS, ["none", "both", "float32 both"]))
# Each norm and each of the first two once or twice; a fused norm has the kernels of the other.
FEW_OF_NORMS = [
    ("layer_norm", "both"),
    ("rms_norm", "both"),
    ("add_layer_norm", "both"),
    ("add_rms_norm", "none"),
]


@pytest.mark.parametrize("way", MOST_WAYS)
@pytest.mark.parametrize(("op", "parameters"), mostly_slow(OF_NORMS, *FEW_OF_NORMS))
def test_norms_of_odd_lengths(op, parameters, way):
    """Copies of weight and bias begin where rows do, whatever their dtype."""
    parameters = parameters if "layer" in op else parameters.replace("both", "weight")
    tunables, kind = WAYS[way]
    for dtype in (torch.float32, torch.bfloat16):
        for rows, n in LENGTHS[1:]:
            with use_tunables(ALWAYS | tunables):
                runs = Norm.draw(op, (rows, n), dtype, parameters).check("triton")
            assert runs[0].variant.startswith(kind), runs
            assert runs[0].variant.endswith("edges apart"), runs


ODD = list(itertools.product(["layer_norm", "add_rms_norm"], [torch.float32, torch.bfloat16]))


@pytest.mark.parametrize(("op", "dtype"), mostly_slow(ODD, ODD[1], ODD[2]), ids=str)
def test_gradients_of_odd_rows(op, dtype):
    """All rows of a group begin alike: of as many groups as an access has elements, or of one row.
    Otherwise elements are accessed one by one.
    """
    few = {"norm_backward.triton.groups": 8, "norm_backward.triton.enough_groups": 8}
    two = {"norm_backward.triton.groups": 2}
    split = {
        "norm_backward.triton.longest_alone": 64,
        "norm_backward.triton.shared.*.*.held": 256,
        "norm_backward.triton.shared_peeled.*.*.held": 256,
    }
    for rows, tunables, kind, is_peeled in (
        (19, few, "rows in registers", True),
        (19, two, "rows in registers", False),
        (1, split, "a row shared by programs", True),
        (3, split | two, "a row shared by programs", False),
    ):
        with use_tunables(ALWAYS | tunables):
            run = Norm.draw(op, (rows, 777), dtype).check("triton")[-1]
        assert run.variant.startswith(kind), run
        assert run.variant.endswith("edges apart") == is_peeled, run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["layer_norm", "add_rms_norm"])
def test_rows_of_more_parts_than_programs_need(op, dtype, monkeypatch):
    """Parts that are no power of two, and less than a program may hold."""

    def one_more(n, splits, line, access, room, together):
        part = -(-n // ((splits + 1) * line)) * line
        return *row_splits.pieces_of(part, access), splits + 1

    for module in (row_splits, norm_backward):
        monkeypatch.setattr(module, "choose_parts", one_more)
    split = SMALL | {
        "norm_backward.triton.longest_alone": 64,
        "norm_backward.triton.shared_peeled.*.*.held": 256,
    }
    for rows in (1, 3):  # the interpreter has one group, whose rows begin otherwise
        with use_tunables(ALWAYS | split):
            norm = Norm.draw(op, (rows, 777), dtype, "both" if "layer" in op else "weight")
            forward, backward = norm.check("triton")
        for run in (forward, backward)[: 2 if rows == 1 else 1]:
            assert run.variant.startswith("a row shared by programs"), run
            assert run.variant.endswith("edges apart"), run


def test_more_parts_where_groups_come_in_multiples():
    """Of an H200's 264 programs, eight take a row of 50257: 32 groups of seven leave 40 out."""
    assert row_splits.choose_parts(50264, 7, 64, 2048, 264, 1) == (2048, 4, 7)
    assert row_splits.choose_parts(50264, 7, 64, 2048, 264, 8) == (2048, 4, 8)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("op", ["layer_norm", "add_rms_norm"])
def test_gradients_of_rows_of_wide_accesses(op, is_split):
    """Rows between multiples of 16 bytes have the widest accesses that fit them."""
    tunables = {"norm_backward.triton.peeled_elements.*": "never"}
    if is_split:
        tunables["norm_backward.triton.longest_alone"] = 64
        tunables["norm_backward.triton.shared.*.*.held"] = 256
    for dtype, n, bytes in (
        (torch.bfloat16, 778, 4),
        (torch.bfloat16, 780, 8),
        (torch.float32, 778, 8),
    ):
        with use_tunables(tunables):
            run = Norm.draw(op, (5, n), dtype).check("triton")[-1]
        assert run.variant.endswith(f", {bytes}-byte accesses"), run
        assert run.variant.startswith("a row shared" if is_split else "rows in registers"), run


@pytest.mark.parametrize("op", ["layer_norm", "add_rms_norm"])
def test_gradients_of_narrow_rows(op):
    """Single elements of two bytes are loaded one turn ahead, several rows at a time."""
    for rows in (1, 5, 16, 17, 100):
        tunables = {"norm_backward.triton.groups": 3, "norm_backward.triton.enough_groups": 3}
        with use_tunables(tunables):
            run = Norm.draw(op, (rows, 77), torch.bfloat16).check("triton")[-1]
        assert run.variant == "rows in registers, blocks of 32 by 3", run


def test_arrays_that_lie_otherwise():
    """Where one begins elsewhere, or has other strides, or another dtype, no row is peeled."""
    n = 521
    x = torch.randn(4 * n + 8, device=DEVICE)
    rows = x[: 4 * n].view(4, n)
    padded = torch.randn(4, n + 2, device=DEVICE)[:, :n]
    cases = (
        (rows, rows.clone(), True),
        (x[1 : 4 * n + 1].view(4, n), rows.clone(), False),
        (padded, rows.clone(), False),
        (rows.bfloat16(), rows.clone(), False),
    )
    for given, out, is_peeled in cases:
        variant = launched("triton", "softmax_forward", given, 1, out)
        assert ("edges apart" in variant) == is_peeled, variant
        torch.testing.assert_close(out, torch.softmax(given.float(), 1), rtol=1e-5, atol=1e-6)


def test_long_rows_are_shared_however_they_lie():
    x = torch.randn(2, 1003, device=DEVICE)[:, 1:1000]
    out = torch.empty(2, 999, device=DEVICE)
    with use_tunables(SMALL):
        variant = launched("triton", "softmax_forward", x, 1, out)
    assert variant == "a row shared by programs, blocks of 256", variant
    torch.testing.assert_close(out, torch.softmax(x, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_extreme_values_in_edges(op):
    """An edge's elements count like others: here they decide."""
    x = torch.randn(8, 263, device=DEVICE)
    x[:, 0], x[:, -1] = 40, 50
    with use_tunables(ALWAYS):
        if op == "softmax":
            result = diglot.softmax(x, backend="triton")
            torch.testing.assert_close(result, torch.softmax(x, 1), rtol=1e-5, atol=1e-6)
        else:
            result = diglot.layer_norm(x, (263,), backend="triton")
            expected = torch.nn.functional.layer_norm(x, (263,))
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert diglot.last_run().variant.endswith("edges apart")


COMPILED = """
import re
import torch
import diglot
from triton.backends.compiler import GPUTarget
from diglot.backends.plans import Device, plan_runs

h200 = Device(90, 132, 228 << 10, True, name="h200")
for op, n in (("softmax", 777), ("softmax", 50257), ("layer_norm", 5001)):
    x = torch.empty(8192, n, dtype=torch.bfloat16)
    with plan_runs(h200) as runs, torch.no_grad():
        if op == "softmax":
            diglot.softmax(x, backend="triton")
        else:
            diglot.layer_norm(x, (n,), torch.empty(n, dtype=x.dtype), backend="triton")
    kernel = runs[-1].plan.launches[-1].specialization.compile(GPUTarget("cuda", 90, 32))
    ptx = kernel.asm["ptx"]
    loads = len(re.findall(r"cp\\.async\\.c[ag]|ld\\.global[^;]*\\.v4", ptx))
    single = len(re.findall(r"ld\\.global[^;]*\\.b16", ptx))
    assert single <= 3, (op, n, single)  # the edges of the row, of weight and bias
    stores = len(re.findall(r"st\\.global[^;]*\\.v4", ptx))
    assert loads >= stores > 0, (op, n, loads, stores)
print("compiled")
"""


@pytest.mark.ahead_of_time
def test_peeled_rows_have_accesses_of_16_bytes():
    done = run_apart(COMPILED)
    assert done.stdout == "compiled\n", done.stderr
