"""A norm's backward pass: each way to share out rows, and how its sums are grouped."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from backends import CUDA, DEVICE, FLOATING, KERNELS, mostly_slow, needs_cuda, needs_extension
from norms import OPS, Norm

import diglot
from diglot.backends.choosing import use_plans
from diglot.backends.plans import Device, Plan, plan_runs
from diglot.backends.runs import plan, run
from diglot.backends.tunables import use_tunables
from diglot.triton_ops.launch.norm_backward import fitting_stages

H200 = Device(90, 132, 233_472, True)
SKIPPED = "norm_backward.cuda.skipped_shapes"
# Sums of few rows have groups, too; or short rows may have one group, too.
GROUPED = {"norm_backward.cuda.one_group_rows": 0}
ALONE = {"norm_backward.cuda.one_group_rows": 128}
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
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 3, **GROUPED}):
            norm.check("cuda")
            with plan_runs(Device(90, 132, 233_472, True)):
                arguments = (x, None, x, statistics, row, *gradients, x)
                made = plan("cuda", op, f"{op}_backward", *arguments)
        kernels.add(str(made.launches[0]))
    assert len(kernels) > 3


def planned(op: str, x: torch.Tensor, backend: str = "cuda", device: Device = H200) -> Plan:
    """A derivative with all sums."""
    fields = 1 + (op == "layer_norm")
    statistics, row = torch.empty(fields, len(x), device="meta"), x[0].clone()
    with plan_runs(device):
        arguments = (x, None, x, statistics, row, *(row,) * fields, x)
        return plan(backend, op, f"{op}_backward", *arguments)


def variant_of(op: str, x: torch.Tensor) -> str:
    return planned(op, x).variant


# Few rows, which one group has, on an H200; in CUDA C++ a single row, and rows of the grid.
FEW = {
    "triton": [(1, 768), (2, 2048), (4, 2560), (1, 50257)],
    "cuda": [(1, 768), (1, 12288), (7, 1_000_003), (3, 600_000)],
}


@needs_extension
@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_few_rows_take_one_launch(backend, op):
    """The sums of the only group are the gradients of weight and bias."""
    for shape in FEW[backend]:
        x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
        assert len(planned(op, x, backend).launches) == 1, shape
    for shape in ((9, 2048), (16, 16384), (1000, 4096), (4096, 768), (100_003, 77)):
        x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
        assert len(planned(op, x, backend).launches) == 2, shape


def test_buffers_of_loads_fit_shared_memory():
    """With the sum's gradient, three arrays are in flight. Then a row of 9216 elements of float32
    has room for two stages."""
    for n, arrays, stages in ((9216, 3, 2), (9216, 2, 3), (7168, 3, 3)):
        assert fitting_stages(H200, 3, 4 * 2048 * -(-n // 2048), arrays) == stages
    assert fitting_stages(H200._replace(shared_bytes=0), 3, 1 << 20, 3) == 3


@needs_extension
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_short_rows_may_take_one_launch(op):
    """Of a block, and of the grid."""
    for shape in ((2, 2048), (3, 2048), (20, 128_256), (54, 300_000)):
        x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
        with use_tunables(ALONE):
            assert len(planned(op, x).launches) == 1, shape


@needs_cuda
def test_blocks_of_the_grid_share_few_long_rows():
    """All run at once, and there are no more of them than multiprocessors."""
    a100 = Device(80, 108, 164 << 10, False)
    for shape, dtype, devices in (
        ((7, 1_000_003), torch.bfloat16, [H200]),
        ((7, 1_000_003), torch.float32, [H200]),
        ((54, 300_000), torch.bfloat16, [H200, a100]),
        ((11, 256_000), torch.float32, [H200, a100]),
    ):
        x = torch.empty(shape, device="meta", dtype=dtype)
        for device in devices:
            with use_tunables(ALONE):
                made = planned("layer_norm", x, device=device)
            (launch,) = made.launches
            assert made.variant.startswith("a row across the grid"), (shape, made.variant)
            assert launch.grid[0] <= device.multiprocessors and "cooperative" in launch.flags
            assert made.scratch.lifetime == "call" and made.scratch.zeroed == 16
        with use_plans("invariant"):
            assert not planned("layer_norm", x).variant.startswith("a row across the grid")
        with use_tunables({"norm_backward.cuda.grid_blocks": 1, **ALONE}):
            assert not planned("layer_norm", x).variant.startswith("a row across the grid")


ONE_GROUP = list(
    itertools.product(
        ["layer_norm", "rms_norm"], [64, 768, 77, 1001], ["both", "float32 both", "bias"]
    )
)
# `make test` has each length with both ops, and each op with all parameters.
FEW_OF_ONE_GROUP = [
    ("layer_norm", 64, "bias"),
    ("rms_norm", 64, "both"),
    ("layer_norm", 768, "both"),
    ("rms_norm", 768, "float32 both"),
    ("layer_norm", 77, "float32 both"),
    ("rms_norm", 77, "bias"),
    ("layer_norm", 1001, "both"),
    ("rms_norm", 1001, "float32 both"),
]


@pytest.mark.parametrize("backend", [CUDA])
@pytest.mark.parametrize(("op", "n", "parameters"), mostly_slow(ONE_GROUP, *FEW_OF_ONE_GROUP))
def test_every_shape_of_one_group(backend, op, n, parameters):
    """Teams of a block, of a cluster and of the grid, one after the other."""
    norm, variants = Norm.draw(op, (5, n), torch.bfloat16, parameters), set()
    for skipped in range(0, 49, 3 if n > 100 else 12):
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 1, **ALONE}):
            variants.add(norm.check(backend)[-1].variant)
    found = ("block", "cluster", "grid")[: 3 if n > 100 else 2]
    places = {"block": r"in (lanes|shared)", "cluster": "across a cluster", "grid": "the grid"}
    for place in found:
        assert any(re.search(places[place], variant) for variant in variants), (place, variants)


@needs_cuda
def test_the_model_uses_every_multiprocessor():
    """Several blocks share a row where others idle, and not where rows are many."""
    many = {(4096, 16384): "a row in shared memory", (65536, 768): "rows in lanes"}
    few = {(16, 16384): "a row across a cluster", (64, 768): "a row in shared memory"}
    alone = {(20, 128_256): "a row across the grid", (2, 2048): "a row in shared memory"}
    for held, wanted in ((ALONE, many | alone), ({}, many | few)):
        for (rows, n), variant in wanted.items():
            x = torch.empty(rows, n, device="meta", dtype=torch.bfloat16)
            with use_tunables(held):
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
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 8, **GROUPED}):
            variants.add(variant_of("rms_norm", torch.empty(40, n, device="meta", dtype=dtype)))
            Norm.draw(op, (8 if skipped % 2 else 17, n), dtype).check("cuda")
    assert not any("16-byte" in variant for variant in variants)


@needs_cuda
@pytest.mark.parametrize("n", [12, 100, 1004])
@pytest.mark.parametrize("op", OPS)
def test_rows_with_gaps_of_whole_words(op, n):
    """They begin alike, between multiples of 16 bytes; sums of groups are whole accesses."""
    for rows in (1, 9):
        norm = Norm.draw(op, (rows, n), torch.bfloat16)
        around = torch.full((rows, n + 4), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        around[:, :n] = norm.arrays[0]
        norm.arrays[0] = around[:, :n]
        for skipped in (0, 1):
            with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 4, **GROUPED}):
                norm.check("cuda")
            with use_plans("invariant"):
                norm.check("cuda")


@needs_cuda
@pytest.mark.parametrize("offset", range(9))
def test_an_input_that_begins_between_multiples_of_16_bytes(offset):
    """The memory beside it is not a number."""
    rows, n = 12, 768
    norm = Norm.draw("rms_norm", (rows, n), torch.bfloat16)
    around = torch.full((rows * n + 32,), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    array = around[offset : offset + rows * n].view(rows, n)
    norm.arrays[0] = array.copy_(norm.arrays[0])
    with use_tunables({"norm_backward.cuda.groups": 4, **GROUPED}):
        norm.check("cuda")


@pytest.mark.parametrize("backend", [CUDA])
@pytest.mark.parametrize("n", [1024, 1023])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_blocks_of_the_grid_meet_again(backend, op, n):
    """They have more rows than teams, so that they exchange sums several times."""
    norm, variants = Norm.draw(op, (60, n)), []
    for skipped in range(6):
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 1, **ALONE}):
            variants.append(norm.check(backend)[-1].variant)
    assert any(variant.startswith("a row across the grid") for variant in variants), variants


@pytest.mark.parametrize("backend", [CUDA])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_one_row_that_begins_between_multiples_of_16_bytes(backend, op):
    """It is the only one of its group. Nothing beside the gradients is written."""
    n, fields = 77, 1 + (op == "layer_norm")
    for offset in range(8):
        memory = torch.full((3, 128), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        grad, x, grad_input = (row[offset : offset + n].view(1, n) for row in memory)
        grad.normal_(), x.normal_()
        around = torch.full((fields, 128), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        results = [row[16 : 16 + n] for row in around]
        weight = torch.randn(n, device=DEVICE).bfloat16()
        wide = x.float()
        mean = wide.mean(1) if fields == 2 else torch.zeros(1, device=DEVICE)
        rstd = torch.rsqrt((wide - mean).square().mean(1) + 1e-5)
        statistics = torch.stack([mean, rstd][-fields:])
        arguments = (grad, None, x, statistics, weight, *results, grad_input)
        run(backend, op, f"{op}_backward", *arguments)
        assert "16-byte" not in diglot.last_run().variant
        normalized = (wide - mean) * rstd
        wanted = [(grad.float() * normalized)[0], grad.float()[0]]
        for result, expected in zip(results, wanted, strict=False):
            torch.testing.assert_close(result.float(), expected, rtol=2**-7, atol=1e-5)
        assert int(around.isnan().sum()) == fields * (128 - n)
        assert int(memory.isnan().sum()) == 3 * (128 - n)


@needs_cuda
@pytest.mark.parametrize("step", [77, 84, 85])
def test_rows_with_gaps(step):
    """Not a number lies in the gaps."""
    rows, n = 33, 77
    around = torch.full((rows, step), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    norm = Norm.draw("layer_norm", (rows, n), torch.bfloat16)
    around[:, :n] = norm.arrays[0]
    norm.arrays[0] = around[:, :n]
    with use_tunables({"norm_backward.cuda.groups": 8, SKIPPED: 1, **GROUPED}):
        norm.check("cuda")


@needs_cuda
@pytest.mark.parametrize("n", [1, 3, 77, 258, 1027])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_arrays_that_begin_differently(op, dtype, n):
    """Each array has its own distance from a multiple of 16 bytes. Nothing beside it is read or
    written.
    """
    rows, fields = 9, 1 + (op == "layer_norm")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    memory = torch.full((4, rows, n + 9), float("nan"), dtype=dtype, device=DEVICE)
    grad, more, x, grad_input = (memory[k, :, 1 + 2 * k :][:, :n] for k in range(4))
    for array in (grad, more, x):
        array.normal_()
    weight = torch.randn(n, device=DEVICE, dtype=dtype)
    exact = [array.double() for array in (grad, more, x)]
    mean = exact[2].mean(1) if fields == 2 else torch.zeros(rows, device=DEVICE).double()
    rstd = torch.rsqrt((exact[2] - mean[:, None]).square().mean(1) + 0.1)
    statistics = torch.stack([mean, rstd][-fields:]).to(wide)
    normalized = (exact[2] - mean[:, None]) * rstd[:, None]
    slope = exact[0] * weight.double()
    derivative = slope - normalized * (slope * normalized).mean(1, keepdim=True)
    if fields == 2:
        derivative -= slope.mean(1, keepdim=True)
    expected = [
        derivative * rstd[:, None] + exact[1],
        (exact[0] * normalized).sum(0),
        exact[0].sum(0),
    ]
    for skipped in range(4):
        results = [torch.empty(n, dtype=dtype, device=DEVICE) for _ in range(fields)]
        grad_input.fill_(float("nan"))
        with use_tunables({SKIPPED: skipped, "norm_backward.cuda.groups": 3, **GROUPED}):
            run(
                "cuda",
                op,
                f"{op}_backward",
                grad,
                more,
                x,
                statistics,
                weight,
                *results,
                grad_input,
            )
        assert "16-byte" not in diglot.last_run().variant
        eps = 4 * torch.finfo(dtype).eps
        for result, wanted in zip([grad_input, *results], expected, strict=False):
            torch.testing.assert_close(result.double(), wanted, rtol=eps, atol=16 * eps)
        assert int(memory.isnan().sum()) == 4 * rows * 9


@needs_cuda
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_blocks_that_share_a_multiprocessor(threads):
    norm = Norm.draw("layer_norm", (40, 1280), torch.bfloat16)
    held = {"norm_backward.cuda.threads": threads, "norm_backward.*.groups": 3, **GROUPED}
    with use_tunables(held):
        norm.check("cuda")


@needs_cuda
def test_teams_that_are_no_power_of_two():
    """Their sums are added up by halves: here of three teams, and of five."""
    for n, rows in ((5120, 30), (2880, 50)):
        with use_tunables({"norm_backward.cuda.groups": 2, **GROUPED}):
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
        # The sums of one group are the result.
        return 1 if need is None else (need.bytes - need.zeroed) // 4096

    named = f"norm_backward.{backend}."
    few = {f"{named}enough_groups": 8, f"{named}rows_each": 4, f"{named}one_group_rows": 0}
    with use_tunables(few):
        assert [groups_of(rows) for rows in (1, 7, 8, 9, 32, 33, 40)] == [1, 7, 8, 8, 8, 9, 10]
    assert groups_of(10**6) == {"cuda": 132, "triton": 528}[backend]


def test_a_row_that_one_program_holds_is_not_read_twice():
    """A stored plan may say that no program has rows alone, at a length that programs share."""
    x = torch.empty(512, 3072, device="meta")
    with use_tunables({"norm_backward.triton.longest_alone": 0}):
        assert planned("layer_norm", x, "triton").variant.startswith("rows in registers")
    never = {f"norm_backward.triton.longest_{way}": 0 for way in ("alone", "shared")}
    with use_tunables(never):
        assert planned("layer_norm", x, "triton").variant.startswith("a row read twice")
