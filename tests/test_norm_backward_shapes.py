"""A norm's backward pass in CUDA C++: each way to share out rows, and how its sums are grouped."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, KERNELS, needs_cuda
from norms import OPS, Norm

from diglot.backends.choosing import use_plans
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import plan
from diglot.backends.tunables import use_tunables

SKIPPED = "norm_backward.cuda.skipped_shapes"
# Rows that fill their threads, that leave lanes or whole accesses idle, and that are odd.
LENGTHS = (64, 768, 1032, 1280, 2880, 77)


@needs_cuda
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_every_shape(op, n):
    """One after the other is skipped, until clusters share rows and then rows are read twice."""
    norm, kernels = Norm.draw(op, (9, n), torch.bfloat16), set()
    x = torch.empty(9, n, device="meta", dtype=torch.bfloat16)
    statistics, row = torch.empty(1 + (op == "layer_norm"), 9, device="meta"), x[0]
    gradients = (row,) * (1 + (op == "layer_norm"))
    for skipped in range(8):
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 3}):
            norm.check("cuda")
            with plan_runs(Device(90, 132, 233_472, True)):
                arguments = (x, None, x, statistics, row, *gradients, x)
                made = plan("cuda", op, f"{op}_backward", *arguments)
        kernels.add(str(made.launches[0]))
    assert len(kernels) > 3


def variant_of(op: str, x: torch.Tensor) -> str:
    """Of a derivative with all sums, on an H200."""
    fields = 1 + (op == "layer_norm")
    statistics, row = torch.empty(fields, len(x), device="meta"), x[0].clone()
    with plan_runs(Device(90, 132, 233_472, True)):
        arguments = (x, None, x, statistics, row, *(row,) * fields, x)
        return plan("cuda", op, f"{op}_backward", *arguments).variant


@needs_cuda
def test_the_model_uses_every_multiprocessor():
    """A cluster shares a row where others idle, and not where rows are many."""
    wanted = {(16, 16384): "a row across a cluster", (4096, 16384): "a row in shared memory"}
    wanted |= {(64, 768): "a row in shared memory", (65536, 768): "rows in lanes"}
    for (rows, n), variant in wanted.items():
        x = torch.empty(rows, n, device="meta", dtype=torch.bfloat16)
        assert variant_of("layer_norm", x).startswith(variant), (rows, n)


@needs_cuda
def test_an_invariant_order_is_that_of_every_gpu():
    """Shapes do not depend on the number of multiprocessors, nor on the number of rows."""
    for n in (768, 5120, 16384, 50257):
        shapes = set()
        for multiprocessors, rows in ((132, 9), (114, 9), (66, 9), (132, 4096)):
            x = torch.empty(rows, n, device="meta", dtype=torch.bfloat16)
            arguments = (x, None, x, torch.empty(1, rows, device="meta"), x[0], x[0], x)
            device = Device(90, multiprocessors, 233_472, True)
            with use_plans("invariant"), plan_runs(device):
                launch = plan("cuda", "rms_norm", "rms_norm_backward", *arguments).launches[0]
            shapes.add((launch.kernel, launch.cluster_blocks))
        assert len(shapes) == 1, n


@needs_cuda
@pytest.mark.parametrize(
    "n", [9, 77, 769, *(pytest.param(n, marks=pytest.mark.slow) for n in (4097, 22059))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", OPS)
def test_rows_that_begin_between_multiples_of_16_bytes(op, dtype, n):
    """Neighbours share accesses; groups have a row each, or several, and teams that share them."""
    variants = set()
    for skipped in range(6 if n < 4097 else 2):
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 8}):
            variants.add(variant_of("rms_norm", torch.empty(40, n, device="meta", dtype=dtype)))
            Norm.draw(op, (8 if skipped % 2 else 17, n), dtype).check("cuda")
    assert any("peeled" in variant for variant in variants)


@needs_cuda
@pytest.mark.parametrize("n", [12, 100, 1004])
@pytest.mark.parametrize("op", OPS)
def test_peeled_rows_that_begin_alike(op, n):
    """Sums of groups have places behind a row's end, whose number is a multiple of four."""
    for rows in (1, 9):
        norm = Norm.draw(op, (rows, n), torch.bfloat16)
        around = torch.full((rows, n + 4), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        around[:, :n] = norm.arrays[0]
        norm.arrays[0] = around[:, :n]
        for skipped in (0, 1):
            with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 4}):
                norm.check("cuda")
            with use_plans("invariant"):
                norm.check("cuda")


@needs_cuda
@pytest.mark.parametrize("offset", range(9))
def test_an_input_that_begins_between_multiples_of_16_bytes(offset):
    """What is beside it is not a number."""
    rows, n = 12, 768
    norm = Norm.draw("rms_norm", (rows, n), torch.bfloat16)
    around = torch.full((rows * n + 32,), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    array = around[offset : offset + rows * n].view(rows, n)
    norm.arrays[0] = array.copy_(norm.arrays[0])
    with use_tunables({"norm_backward.cuda.groups": 4}):
        norm.check("cuda")


@needs_cuda
@pytest.mark.parametrize("step", [77, 84, 85])
def test_peeled_rows_with_gaps(step):
    """Not a number lies in the gaps."""
    rows, n = 33, 77
    around = torch.full((rows, step), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    norm = Norm.draw("layer_norm", (rows, n), torch.bfloat16)
    around[:, :n] = norm.arrays[0]
    norm.arrays[0] = around[:, :n]
    with use_tunables({"norm_backward.cuda.groups": 8, SKIPPED: 1}):
        norm.check("cuda")


@needs_cuda
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_blocks_that_share_a_multiprocessor(threads):
    norm = Norm.draw("layer_norm", (40, 1280), torch.bfloat16)
    with use_tunables({"norm_backward.cuda.threads": threads, "norm_backward.*.groups": 3}):
        norm.check("cuda")


@needs_cuda
def test_teams_that_are_no_power_of_two():
    """Their sums are added up by halves: here of three teams, and of five."""
    for n, rows in ((5120, 30), (2880, 50)):
        with use_tunables({"norm_backward.cuda.groups": 2}):
            Norm.draw("layer_norm", (rows, n), torch.bfloat16).check("cuda")


@pytest.mark.parametrize("backend", KERNELS)
def test_groups_of_few_rows(backend):
    """A row each up to enough groups, then several rows each, up to the most groups."""

    def groups_of(rows: int) -> int:
        x = torch.empty(rows, 1024, device="meta", dtype=torch.bfloat16)
        statistics, row = torch.empty(1, rows, device="meta"), x[0]
        arguments = (x, None, x, statistics, row, row, x)
        with plan_runs(Device(90, 132, 233_472, True)):
            need = plan(backend, "rms_norm", "rms_norm_backward", *arguments).scratch
        # In Triton, the sums of one group are the result.
        return 1 if need is None else (need.bytes - need.zeroed) // 4096

    named = f"norm_backward.{backend}."
    with use_tunables({f"{named}enough_groups": 8, f"{named}rows_each": 4}):
        assert [groups_of(rows) for rows in (1, 7, 8, 9, 32, 33, 40)] == [1, 7, 8, 8, 8, 9, 10]
    assert groups_of(10**6) == {"cuda": 132, "triton": 528}[backend]
