"""What the norms share: rows of every length, layouts, parameters, derivatives."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from backends import (
    BACKENDS,
    DEVICE,
    FLOATING,
    KERNELS,
    by_turns,
    examples,
    launched,
    mostly_slow,
    needs_cuda,
    needs_extension,
    sum_error,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from norms import FUSED, OPS, PARAMETERS, PLAIN, Norm, guarded, is_centered, only_written

import diglot
from diglot.backends.plans import Device, plan_runs
from diglot.backends.runs import observe_runs, plan
from diglot.backends.tunables import use_tunables

ROWS = [1, 2, 7, 8, 127, 128, 256, 1000, 1024, 2048, 4096, 4099]
FUSED_ROWS = [1, 8, 127, 1024, 4099]  # their kernels are instances of the others'
LONG = [8192, 9001, 16384, 32768, 40_004, 65_536, 70_001, 131_072]


def kernels_of(op: str) -> list[str]:
    """The launchers of a forward and a backward pass."""
    return [f"{op}_forward", f"{op.removeprefix('add_')}_backward"]


@pytest.mark.parametrize(
    ("op", "n"),
    [*itertools.product(PLAIN, ROWS), *itertools.product(FUSED, FUSED_ROWS)],
)
@pytest.mark.parametrize("backend", KERNELS)
def test_row_lengths(backend, op, n):
    """In float32, against the oracle; the record names what ran."""
    runs = Norm.draw(op, (3 if n < 1000 else 2, n)).check(backend)
    assert [run.launcher for run in runs] == kernels_of(op)
    assert {run.backend for run in runs} == {backend} and all(run.variant for run in runs)


# Lengths of rows, and how the variants begin that run forward and backward, in float32.
LANES, REGISTERS, SHARED = "rows in lanes", "a row in registers", "a row in shared memory"
CLUSTER, HELD, TOGETHER = "a row across a cluster", "rows in registers", "a row shared by programs"
VARIANTS = {
    "cuda": {
        7: (LANES, LANES),
        64: (LANES, LANES),
        256: (LANES, SHARED),
        512: (REGISTERS, SHARED),
        4096: (REGISTERS, SHARED),
        4099: (REGISTERS, SHARED),
        40_004: (CLUSTER, CLUSTER),
        # The interpreter has no room for that number of blocks at once.
        148_001: (CLUSTER, "a row across the grid" if DEVICE == "cuda" else "a row read twice"),
    },
    "triton": {7: (HELD, HELD), 4099: (HELD, HELD), 33_000: (TOGETHER, TOGETHER)},
}


# Long rows take seconds: `make test` has them of one op. test_rows_read_twice has the longest.
UP_TO = [("layer_norm", 5000), ("add_rms_norm", 41_000)]


@pytest.mark.parametrize(
    ("op", "longest"), mostly_slow([*UP_TO, *((op, 10**6) for op, _ in UP_TO)], *UP_TO)
)
@pytest.mark.parametrize("backend", KERNELS)
def test_variants(backend, op, longest):
    """By the length of a row; each is right, and named."""
    for n, wanted in VARIANTS[backend].items():
        if n > longest:
            continue
        runs = Norm.draw(op, (2, n)).check(backend)
        for run, variant in zip(runs, wanted, strict=True):
            assert run.variant.startswith(variant), (n, run)
            assert ("16-byte accesses" in run.variant) == (n % 4 == 0), (n, run)


@needs_cuda
@pytest.mark.parametrize("few_rows", [pytest.param(0, marks=pytest.mark.slow), 264])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_shapes_of_forward(op, dtype, few_rows):
    """Rows about the limits of compiled shapes. The parts that warps hold of a row have other means
    than the row."""
    for accesses in (1, 90, 97, 160, 192, 193, 513, 1537, 2305):
        for parameters in PARAMETERS if accesses == 193 else ("both",):
            norm = Norm.draw(op, (3, accesses * 16 // dtype.itemsize), dtype, parameters)
            for array in norm.arrays:
                array += torch.linspace(-2, 5, array.shape[1], device=DEVICE).to(dtype)
                array += torch.tensor([[0], [40], [-1]], device=DEVICE)
            with use_tunables({"norm_forward.cuda.few_rows": few_rows}):
                norm.assert_right(norm("cuda"))


@needs_extension
@pytest.mark.parametrize(
    ("op", "n", "few", "many"),
    [
        ("layer_norm", 512, LANES, LANES),
        ("layer_norm", 768, REGISTERS, LANES),
        ("rms_norm", 1536, REGISTERS, LANES),
        ("rms_norm", 1544, REGISTERS, REGISTERS),
        ("layer_norm", 18_432, REGISTERS, REGISTERS),
        ("layer_norm", 18_440, CLUSTER, SHARED),
        ("rms_norm", 18_440, CLUSTER, CLUSTER),
    ],
)
def test_few_rows_are_planned_otherwise(op, n, few, many):
    """In bfloat16 on an H200."""
    for rows, variant in ((132, few), (4096, many)):
        x = torch.empty(rows, n, dtype=torch.bfloat16)
        with plan_runs(Device(90, 132, 233_472, True, name="h200")) as runs:
            getattr(diglot, op)(x, (n,), x[0], backend="cuda")
        assert runs[-1].plan.variant == f"{variant}, 16-byte accesses"


@needs_extension
@pytest.mark.parametrize(
    ("op", "accesses"),
    [
        ("layer_norm", {64: 4, 72: 5, 96: 3, 112: 4, 144: 5, 160: 5, 192: 6}),
        ("rms_norm", {64: 4, 72: 5, 96: 6, 112: 4, 144: 5, 160: 5, 192: 6}),
        ("add_layer_norm", {64: 4, 72: 6, 112: 4, 160: 6}),
        ("add_rms_norm", {64: 4}),
    ],
)
def test_lanes_have_as_many_accesses_as_leave_the_fewest_idle(op, accesses):
    """Of many rows of bfloat16, by the accesses of a row."""
    for count, wanted in accesses.items():
        x = torch.empty(4096, 8 * count, dtype=torch.bfloat16)
        others = (x,) if op.startswith("add") else ()
        with (
            plan_runs(Device(90, 132, 233_472, True, name="h200")) as runs,
            diglot.use_plans("model"),
        ):
            getattr(diglot, op)(x, *others, (8 * count,), x[0], backend="cuda")
        plan = runs[-1].plan
        assert plan.variant.startswith(LANES), (count, plan)
        assert f"64, {wanted}, " in plan.order[0].kernel, (count, plan)


@needs_cuda
@pytest.mark.parametrize(
    ("op", "dtype", "n"),
    [
        ("add_layer_norm", torch.bfloat16, 196_616),
        ("add_rms_norm", torch.float16, 196_616),
        ("add_layer_norm", torch.float32, 262_208),
    ],
    ids=str,
)
def test_long_rows_of_two_arrays(op, dtype, n):
    """A cluster's registers hold rows that are longer than those of most shapes."""
    norm = Norm.draw(op, (2, n), dtype)
    with diglot.use_plans("model"):
        norm.assert_right(norm("cuda"))
    # The interpreter has no room for the threads of the longest at once.
    is_held = DEVICE == "cuda" or n < 200_000
    place = CLUSTER if is_held else "a row read twice"
    assert diglot.last_run().variant == f"{place}, 16-byte accesses"


@needs_cuda
@pytest.mark.parametrize(
    ("op", "dtype", "n", "accesses"),
    [
        ("layer_norm", torch.float32, 100_001, ""),
        ("add_layer_norm", torch.float32, 114_692, ", 16-byte accesses"),
        pytest.param(
            "add_rms_norm", torch.float32, 114_692, ", 16-byte accesses", marks=pytest.mark.slow
        ),
        pytest.param("rms_norm", torch.bfloat16, 150_001, "", marks=pytest.mark.slow),
        pytest.param(
            "rms_norm", torch.float64, 32_770, ", 16-byte accesses", marks=pytest.mark.slow
        ),
        pytest.param(
            "layer_norm", torch.float16, 240_008, ", 16-byte accesses", marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_rows_read_twice(op, dtype, n, accesses):
    """By clusters; the longest have not all of their sums in shared memory."""
    n *= 2 if DEVICE == "cuda" else 1  # clusters of sixteen blocks, interpreted of eight
    with use_tunables({"norm_backward.cuda.one_group_rows": 0}):
        run = Norm.draw(op, (3, n), dtype).check("cuda")[-1]
    assert run.variant == f"a row read twice{accesses}"


READ_TWICE = {
    "norm_backward.cuda.longest_held": 0,
    "norm_backward.triton.longest_alone": 0,
    "norm_backward.triton.longest_shared": 0,
    "norm_backward.*.groups": 2,
    "norm_backward.*.one_group_rows": 0,
}
MISALIGNED = "a weight that is not aligned"
SHORT_TWICE = [  # rows that fit, but are read twice all the same
    *(("layer_norm", torch.float32, 8203, of) for of in ("none", "bias", "float32 weight")),
    ("add_layer_norm", torch.float32, 8204, MISALIGNED),
]
LONG_TWICE = [
    *(("layer_norm", torch.float32, 100_001, of) for of in ("none", "bias", "float32 weight")),
    *(("rms_norm", torch.bfloat16, 150_001, of) for of in ("none", "float32 weight")),
    ("add_layer_norm", torch.float32, 114_692, MISALIGNED),
    ("add_rms_norm", torch.float32, 114_692, MISALIGNED),
    ("rms_norm", torch.float64, 32_770, MISALIGNED),
]


@needs_cuda
@pytest.mark.parametrize(
    ("op", "dtype", "n", "parameters"),
    mostly_slow([*SHORT_TWICE, *LONG_TWICE], *SHORT_TWICE),
    ids=str,
)
def test_parameters_of_rows_read_twice(op, dtype, n, parameters):
    """Of weights that are not aligned an element is accessed at a time."""
    is_short = n < 9000
    n *= 2 if DEVICE == "cuda" and not is_short else 1
    norm = Norm.draw(op, (3, n), dtype, "both" if parameters == MISALIGNED else parameters)
    if parameters == MISALIGNED:
        norm.parameters[0] = torch.randn(n + 1, device=DEVICE).to(dtype)[1:]
    held = {**READ_TWICE, "norm_backward.cuda.streaming_blocks": 1} if is_short else {}
    with use_tunables({"norm_backward.cuda.one_group_rows": 0, **held}):
        assert norm.check("cuda")[-1].variant == "a row read twice"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [*LONG, 262_144, 300_001])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_long_rows(backend, op, n, dtype):
    Norm.draw(op, (2, n), dtype).check(backend)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [*itertools.product(PLAIN, FLOATING), *itertools.product(FUSED, [torch.bfloat16])],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_the_oracle(backend, op, dtype):
    """Rows that are wide, far from zero, or short; of float16 and bfloat16 too."""
    for shape, scale, offset in (((5, 33), 1, 0), ((2, 1500), 2, 30), ((9, 8), 0.01, 0)):
        norm = Norm.draw(op, shape, dtype)
        for array in norm.arrays:
            array.mul_(scale).add_(offset)
        norm.check(backend)


@pytest.mark.parametrize(
    ("op", "parameters"),
    [*itertools.product(PLAIN, PARAMETERS), *itertools.product(FUSED, ["none", "float32 both"])],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters(backend, op, parameters):
    """Each there or not, of the input's dtype or of float32, as its gradient is."""
    for shape in ((4, 61), (2, 512)):
        Norm.draw(op, shape, torch.bfloat16, parameters).check(backend)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_gradient_alone(backend, op):
    """Only the requested gradient is computed, and equals that of all together."""
    norm = Norm.draw(op, (5, 40)).require_grad()
    grads = [torch.randn(5, 40, device=DEVICE) for _ in norm.arrays]
    together = torch.autograd.grad(norm(backend), norm.tensors, grads)
    for i, tensor in enumerate(norm.tensors):
        for other in norm.tensors:
            other.requires_grad_(other is tensor)
        (alone,) = torch.autograd.grad(norm(backend), [tensor], grads)
        torch.testing.assert_close(alone, together[i])


@pytest.mark.parametrize("op", FUSED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_one_output(backend, op):
    """Of the sum alone nothing is computed, and the parameters have none."""
    norm = Norm.draw(op, (5, 40)).require_grad()
    grad = torch.randn(5, 40, device=DEVICE)
    out, total = norm(backend)
    with diglot.record_runs() as runs:
        gradients = torch.autograd.grad(total, norm.tensors, grad, True, allow_unused=True)
    assert not runs
    assert all(torch.equal(g, grad) for g in gradients[:2])
    assert gradients[2:] == (None,) * len(norm.parameters)
    gradients = torch.autograd.grad(out, norm.tensors, grad)
    norm.assert_right_gradients(gradients, grad)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_several_dimensions(backend, op):
    """Several dimensions make a row, and one, several or none are around it."""
    for shape, dims in (((3, 2, 5, 7), 2), ((2, 3, 4, 8), 1), ((6, 8), 2), ((2, 1, 9, 1), 3)):
        norm = Norm.draw(op, shape, torch.float32, "both", dims)
        norm.check(backend)
        transposed = norm.arrays[0].detach().transpose(0, -1).contiguous().transpose(0, -1)
        Norm(op, [transposed, *norm.arrays[1:]], norm.parameters, dims).check(backend)


@pytest.mark.parametrize("layout", [*LAYOUTS, "negative bit", "rows apart", "one column"])
@pytest.mark.parametrize("op", ["layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend, op, layout):
    """Of the input, of a residual of another one, and of the gradients."""
    makes = {
        "negative bit": lambda x: torch.complex(x, x).conj().imag,
        "rows apart": lambda x: x[::2, 1:-2],
        "one column": lambda x: x[:, 5:6],
    }
    make = makes.get(layout) or LAYOUTS[layout]
    x, residual, grad = (make(torch.randn(32, 32, device=DEVICE)) for _ in range(3))
    for others in ((residual, grad), (residual.contiguous(), grad[..., :1].expand_as(grad))):
        drawn = Norm.draw(op, x.shape)
        arrays = [x, others[0]][: len(drawn.arrays)]
        norm = Norm(op, [a.detach() for a in arrays], drawn.parameters).require_grad()
        results = norm(backend)
        norm.assert_right(results)
        grads = [others[1]] * len(arrays)
        gradients = torch.autograd.grad(results, norm.tensors, grads)
        norm.assert_right_gradients(gradients, *grads)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_any_layout(backend, op):
    norm = Norm.draw(op, (4, 6, 8), dims=2)
    wide = torch.randn(8, 12, device=DEVICE)
    for layout in (wide.t()[::2], wide[:6, 2:10], wide[:1, :1].expand(6, 8)):
        parameters = [layout.detach() for _ in norm.parameters]
        Norm(op, [a.detach() for a in norm.arrays], parameters, 2).check(backend)


@pytest.mark.parametrize(
    ("shape", "dims"), [((0,), 1), ((3, 0), 1), ((0, 3), 1), ((2, 0, 4), 2), ((1,), 1)], ids=str
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend, op, shape, dims):
    """As torch: rows of nothing are nothing, and of no rows the gradients of parameters are 0."""
    norm = Norm.draw(op, shape, dims=dims).require_grad()
    leaves = [t.detach().double().requires_grad_() for t in norm.tensors]
    results, expected = norm(backend), norm.theirs(*leaves)
    gradients = torch.autograd.grad([r.sum() for r in results], norm.tensors)
    wanted = torch.autograd.grad([r.sum() for r in expected], leaves)
    for own, theirs in zip((*results, *gradients), (*expected, *wanted), strict=True):
        torch.testing.assert_close(own, theirs.float(), rtol=1e-5, atol=1e-4)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("special", [[NAN], [INF], [-INF], [INF, -INF]], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend, op, special):
    """In one row, at its ends; the others go on as they are."""
    for n in (5, 300, 3000):
        for at in (0, n - len(special)):
            norm = Norm.draw(op, (3, n), parameters="none")
            norm.arrays[-1][1, at : at + len(special)] = torch.tensor(special, device=DEVICE)
            # On a GPU PyTorch's RMS norm takes rows with infinities otherwise than on a CPU.
            results = norm(backend)
            expected = norm.theirs(*(t.double().cpu() for t in norm.tensors))
            for own, theirs in zip(results, expected, strict=True):
                torch.testing.assert_close(
                    own.double().cpu(), theirs, rtol=1e-5, atol=1e-5, equal_nan=True
                )


WRITTEN = list(itertools.product(OPS, [torch.float32, torch.bfloat16, torch.float64]))
MOST_WRITTEN = [case for i, case in enumerate(WRITTEN) if (i // 3 + i) % 3 != 2]  # two types each


@pytest.mark.parametrize(("op", "dtype"), mostly_slow(WRITTEN, *MOST_WRITTEN), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_element_is_written_and_no_other(backend, op, dtype):
    """Rows whose beginnings are aligned or not, with guards around all that is written."""
    compute = torch.promote_types(dtype, torch.float32)
    for rows, n in ((5, 64), (5, 61), (2, 1024), (3, 1021)):
        norm = Norm.draw(op, (rows, n), dtype)
        expected = {}
        for which, offset in (("torch", 0), (backend, 0), (backend, 1), (backend, 3)):
            statistics = guarded((1 + is_centered(op), rows), compute)
            outs = [guarded((rows, n), dtype, offset) for _ in norm.arrays]
            given = (*norm.arrays, *norm.parameters, norm.eps)
            for made in ([statistics, *outs], [(None, None), *outs]):
                launched(which, f"{op}_forward", *given, *(out for out, _ in made))
                made = [pair for pair in made if pair[0] is not None]
                compare_and_check_guards(made[::-1], expected, offset, dtype)


def compare_and_check_guards(made, expected, offset, dtype):
    for i, (out, memory) in enumerate(made):
        wanted = expected.setdefault(i, out.clone())
        rounding, error = 2 * torch.finfo(out.dtype).eps, sum_error(out.dtype)
        most = max(rounding, error / 2)
        torch.testing.assert_close(out, wanted, rtol=max(rounding, error), atol=most)
        assert only_written(out, memory), (i, offset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", KERNELS)
def test_every_gradient_is_written_and_no_other(backend, op, dtype):
    """Of each parameter or none; statistics are the forward pass's."""
    compute = torch.promote_types(dtype, torch.float32)
    for rows, n in ((5, 64), (5, 61), (2, 1024), (3, 37)):
        norm = Norm.draw(op, (rows, n), dtype)
        fields = len(norm.parameters)
        x, grad, more = (torch.randn(rows, n, device=DEVICE).to(dtype) for _ in range(3))
        mean = x.mean(1, dtype=compute) if is_centered(op) else torch.zeros(rows, device=DEVICE)
        square = (x.to(compute) - mean[:, None]).square().mean(1)
        statistics = torch.stack([mean.to(compute), torch.rsqrt(square + norm.eps)][-fields:])
        for asked in ((True,) * fields, (False,) * fields, (False, True)[-fields:]):
            expected = {}
            for which, offset in (("torch", 0), (backend, 1)):
                made = [guarded((n,), dtype, offset) if is_asked else None for is_asked in asked]
                made.append(guarded((rows, n), dtype, offset))
                outs = [None if m is None else m[0] for m in made]
                launched(
                    which,
                    f"{op}_backward",
                    *(grad, more, x, statistics, norm.parameters[0]),
                    *outs,
                )
                made = [m for m in made if m is not None]
                compare_and_check_guards(made, expected, offset, dtype)


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_of_groups(backend, op):
    """Fewer rows than groups, and several to each: the same sums."""
    with use_tunables({"norm_backward.*.groups": 3, "norm_backward.*.one_group_rows": 0}):
        for rows in (1, 2, 10):
            for n in (40, 61):
                Norm.draw(op, (rows, n)).check(backend)
            # The sums of one group are the result.
            groups = 0 if rows == 1 else min(rows, 3)
            assert bytes_of_sums(backend, op, rows, 40) == groups * (1 + is_centered(op)) * 160


SHORT = [(op, of) for op in PLAIN for of in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("op", "dtype"), mostly_slow(SHORT, SHORT[0], SHORT[-1]), ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_short_rows_read_twice(backend, op, dtype):
    """In several batches, by one block or program and by several, of a group that has more rows."""
    block = {"norm_backward.cuda.streaming_blocks": 1, "norm_backward.triton.tile_elements": 1024}
    for rows, n, more in ((9, 40, {}), (5, 1030, {}), (3, 8200, block), (3, 8203, block)):
        with use_tunables({**READ_TWICE, **more}):
            # CUDA's groups are whole accesses of 4 sums.
            kept = (n + 3) // 4 * 4 if backend == "cuda" else n
            assert bytes_of_sums(backend, op, rows, n) == 2 * (1 + is_centered(op)) * kept * 4
            run = Norm.draw(op, (rows, n), dtype).check(backend)[-1]
        assert run.variant.startswith("a row read twice"), run
        assert ("16-byte accesses" in run.variant) == (n % 8 == 0), run


def bytes_of_sums(backend: str, op: str, rows: int, n: int) -> int:
    """What groups keep of a backward pass in float32, until it is added up."""
    x, row = torch.empty(rows, n, device=DEVICE), torch.empty(n, device=DEVICE)
    fields = 1 + is_centered(op)
    statistics = torch.empty(fields, rows, device=DEVICE)
    made = plan(backend, op, f"{op}_backward", x, None, x, statistics, row, *[row] * fields, x)
    need = made.scratch
    return 0 if need is None else need.bytes - need.zeroed


@needs_extension
@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", KERNELS)
def test_sums_of_groups_do_not_depend_on_the_device(backend, op):
    """Their memory is that of the row's length and the number of rows: so is their order."""

    def bytes_of(shape: tuple[int, int], multiprocessors: int, asked: bool = True) -> int:
        x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
        fields = 1 + is_centered(op)
        statistics = torch.empty(fields, shape[0], device="meta")
        parameter = torch.empty(shape[1], device="meta", dtype=torch.bfloat16)
        gradients = [parameter if asked else None] * fields
        arguments = (x, None, x, statistics, parameter, *gradients, x)
        with plan_runs(Device(90, multiprocessors, 233_472, True)):
            need = plan(backend, op, f"{op}_backward", *arguments).scratch
        return 0 if need is None else need.bytes - need.zeroed

    for shape in ((1000, 4096), (100_000, 4096), (5, 4096), (5000, 20_000)):
        assert bytes_of(shape, 132) == bytes_of(shape, 78) > 0
        assert bytes_of(shape, 132, asked=False) == 0
    assert bytes_of((10**6, 4096), 132) == bytes_of((10**5, 4096), 132) > bytes_of((5, 4096), 132)


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_are_deterministic(backend, op):
    """Every bit of them, again and again."""
    shapes = [(9, 96)]
    if DEVICE == "cuda":
        shapes += [(4096, 1024), (4097, 1000), (300, 65_536), (3000, 16_384), (100, 262_144)]
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            norm = Norm.draw(op, shape, dtype).require_grad()
            grad = torch.randn(shape, device=DEVICE).to(dtype)
            first = None
            for _ in range(2 if DEVICE == "cpu" else 5):
                gradients = torch.autograd.grad(norm(backend), norm.tensors, grad)
                first = first or gradients
                assert all(torch.equal(*pair) for pair in zip(gradients, first, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(32768, 1024), (5000, 4096), (1111, 16_384), (999, 65_537)])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_many_rows(backend, op, shape, dtype):
    """More than groups: sums over rows are right too."""
    Norm.draw(op, shape, dtype).check(backend)


@settings(max_examples=examples(20))
@given(data=st.data())
@pytest.mark.parametrize("backend", KERNELS)
def test_properties(backend, data):
    """Mean 0 and variance 1; what a row is multiplied by, or has added, changes nothing."""
    rows = data.draw(st.sampled_from([1, 2, 5]))
    n = data.draw(st.sampled_from([2, 3, 8, 33, 64, 130, 257]))
    # Integers, none of them twice in a row, times powers of two: their products are exact.
    x = torch.randint(-9, 9, (rows, n), device=DEVICE).float() * n + torch.arange(n, device=DEVICE)
    scale = 2.0 ** data.draw(st.integers(-3, 3))
    normal = diglot.layer_norm(x, n, eps=0.0, backend=backend)
    assert normal.double().mean(1).abs().max() < 1e-5
    torch.testing.assert_close(
        normal.double().square().mean(1),
        torch.ones(rows, device=DEVICE).double(),
        rtol=1e-5,
        atol=0,
    )
    moved = diglot.layer_norm(x * scale + 64 * scale, n, eps=0.0, backend=backend)
    torch.testing.assert_close(moved, normal, rtol=1e-5, atol=2e-5)
    rms = diglot.rms_norm(x, n, eps=0.0, backend=backend)
    squares = rms.double().square().mean(1)
    torch.testing.assert_close(squares, torch.ones_like(squares), rtol=1e-5, atol=0)
    assert torch.equal(diglot.rms_norm(x * scale, n, eps=0.0, backend=backend), rms)
    # An RMS norm of what has no mean is a layer norm.
    centered = x - x.mean(1, True)
    torch.testing.assert_close(
        diglot.rms_norm(centered, n, eps=0.0, backend=backend), normal, rtol=1e-4, atol=1e-4
    )


@settings(max_examples=examples(12))
@given(data=st.data())
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_against_float64(backend, op, data):
    """PyTorch's own, which the oracle's formulas are not."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 5, 8]), min_size=1, max_size=3))
    dims = data.draw(st.integers(1, len(shape)))
    dtype = data.draw(st.sampled_from(FLOATING))
    parameters = data.draw(st.sampled_from(list(PARAMETERS)))
    norm = Norm.draw(op, shape, dtype, parameters, dims, eps=0.1).require_grad()
    grads = [torch.randn(shape, device=DEVICE).to(dtype) for _ in norm.arrays]
    gradients = torch.autograd.grad(norm(backend), norm.tensors, grads)
    leaves = [t.detach().double().requires_grad_() for t in norm.tensors]
    if op in FUSED:  # the sum that was normalized is a rounded one
        leaves[0] = (norm.arrays[0] + norm.arrays[1]).detach().double().requires_grad_()
        leaves[1] = torch.zeros_like(leaves[0], requires_grad=True)
    expected = torch.autograd.grad(norm.theirs(*leaves), leaves, [g.double() for g in grads])
    for gradient, wanted in zip(gradients, expected, strict=True):
        eps = 8 * torch.finfo(gradient.dtype).eps
        size = max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(gradient.double(), wanted, rtol=eps, atol=eps * 4 * size)


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", KERNELS)
def test_rows_do_not_know_of_each_other(backend, op):
    """By the planner's own plans, no bit of a row depends on the number of few rows, or on the
    row's place. Measured plans may sum in other orders. A peeled row is the exception: where it
    begins between multiples of 16 bytes sets how its elements are shared out.
    """
    for shape in ((50, 96), (40, 61), (7, 3000)):
        norm = Norm.draw(op, shape)
        with diglot.use_plans("model"):
            (whole,) = norm(backend)
        for row in (0, shape[0] // 2, shape[0] - 1):
            one = Norm(op, [norm.arrays[0][row : row + 1].clone()], norm.parameters)
            with diglot.use_plans("model"):
                (alone,) = one(backend)
            if backend == "cuda" and row * shape[1] % 4 == 0:
                assert torch.equal(alone[0], whole[row])
            else:  # how many rows a program has is another layout of its threads
                torch.testing.assert_close(alone[0], whole[row], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("op", FUSED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_fused_is_the_composition(backend, op, dtype):
    """It is the norm of the sum as it is rounded. The order of a row's sums may differ: then the
    last bit may too, in 16 bits.
    """
    for shape in ((5, 64), (3, 61), (2, 1030)):
        norm = Norm.draw(op, shape, dtype)
        out, total = norm(backend)
        assert torch.equal(total, norm.arrays[0] + norm.arrays[1])
        plain = Norm(op.removeprefix("add_"), [total], norm.parameters, eps=norm.eps)
        rounding = max(1e-6, torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
        torch.testing.assert_close(out, plain(backend)[0], rtol=rounding, atol=1e-6)


@pytest.mark.parametrize(("backend", "op"), by_turns((op,) for op in OPS))
def test_operator(backend, op):
    ops, norm = torch.ops.diglot, Norm.draw(op, (3, 2, 5), dims=2).require_grad()
    arguments = (*norm.arrays, *norm.parameters, 2, 1e-5, backend)
    torch.library.opcheck(getattr(ops, op).default, arguments)
    if op in PLAIN:
        x, grad, more = (torch.randn(3, 2, 5, device=DEVICE, requires_grad=True) for _ in range(3))
        statistics = torch.rand(1 + is_centered(op), 3, device=DEVICE)
        kind, backward = torch.float32, getattr(ops, f"{op}_backward").default
        for given_more, *kinds in ((more, kind, kind), (None, kind, None)):
            dtypes = kinds[-len(statistics) :]
            arguments = (grad, given_more, x, statistics, norm.parameters[0], *dtypes)
            torch.library.opcheck(backward, (*arguments, 1e-5, backend))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend, op):
    """First and second derivatives, backward and forward; of kernels along random directions."""
    fast = backend != "torch"
    cases = [("both", (2, 3, 2), 2), ("none", (3, 4), 1), ("bias", (2, 4), 1)]
    for parameters, shape, dims in cases[: 1 if fast else 3]:
        norm = Norm.draw(op, shape, torch.float64, parameters, dims, eps=1e-2).require_grad()
        check = {"check_forward_ad": True, "check_batched_grad": not fast, "fast_mode": fast}
        torch.autograd.gradcheck(norm.call_on(backend), norm.tensors, **check)
        check = {"check_fwd_over_rev": not fast, "fast_mode": fast}
        torch.autograd.gradgradcheck(norm.call_on(backend), norm.tensors, **check)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_third_derivative(backend, op):
    norm = Norm.draw(op, (2, 4), torch.float64, eps=0.1).require_grad()
    weights = [torch.randn(2, 4, device=DEVICE, dtype=torch.float64) for _ in range(4)]
    results = []
    for values in (norm(backend), norm.written_out()):
        value = sum(values)
        for weight in weights[:3]:
            tensor = norm.tensors[0]
            (value,) = torch.autograd.grad((value * weight).sum(), tensor, create_graph=True)
        results.append(
            torch.autograd.grad((value * weights[3]).sum(), norm.tensors[: len(norm.arrays) + 1])
        )
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend, op):
    """A batch of inputs goes through one launch; of weights, each through its own."""
    func = torch.func
    theirs = Norm.draw(op, (5, 6))

    def own(x, *parameters):
        return Norm(op, [x], list(parameters))(backend)[0]

    def reference(x, *parameters):
        return theirs.written_out(x, *parameters)[0]

    parameters = theirs.parameters
    x = torch.randn(4, 5, 6, device=DEVICE)
    for batch, shape in ((0, (4, 5, 6)), (1, (4, 5, 6)), (2, (5, 6, 3)), (0, (7, 6))):
        x = torch.randn(shape, device=DEVICE)
        with diglot.record_runs() as runs:
            result = func.vmap(lambda t: own(t, *parameters), in_dims=batch)(x)
        assert len(runs) == 1
        expected = torch.stack([reference(t, *parameters) for t in x.unbind(batch)])
        torch.testing.assert_close(result, expected)
    many = [torch.stack([p, 2 * p, p.cos()]) for p in parameters]
    x = torch.randn(3, 5, 6, device=DEVICE)
    torch.testing.assert_close(*(func.vmap(f)(x, *many) for f in (own, reference)))
    torch.testing.assert_close(
        *(func.vmap(f, in_dims=(None, *(0 for _ in many)))(x[0], *many) for f in (own, reference))
    )

    def loss(f):
        return lambda *t: (f(*t) * torch.arange(6, device=DEVICE)).sum()

    numbers = tuple(range(1 + len(parameters)))
    for which in (0, numbers):
        pair = [
            func.vmap(func.grad(loss(f), which), in_dims=(0, *(None for _ in many)))(x, *parameters)
            for f in (own, reference)
        ]
        torch.testing.assert_close(*pair)
    given = (x[0], *parameters)
    tangents = tuple(t.cos() for t in given)
    torch.testing.assert_close(*(func.jvp(f, given, tangents) for f in (own, reference)))
    row = (x[0, 0], *parameters)
    torch.testing.assert_close(*(func.jacrev(f, numbers)(*row) for f in (own, reference)))
    torch.testing.assert_close(*(func.jacfwd(f, numbers)(*row) for f in (own, reference)))
    pair = [func.hessian(loss(f), numbers)(*row) for f in (own, reference)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backend", "op", "dynamic"),
    by_turns([("layer_norm", False), ("rms_norm", True), ("add_layer_norm", True)]),
)
def test_compiled(backend, op, dynamic):
    torch._dynamo.reset()

    def block(norm_inputs, parameters, dims):
        norm = Norm(op, [t * 2 for t in norm_inputs], parameters, dims)
        return [t.sin() for t in norm(backend)]

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape, dims in (((4, 8), 1), ((3, 8), 1), ((5, 2, 6), 2)):
        norm = Norm.draw(op, shape, dims=dims).require_grad()
        own = compiled(norm.arrays, norm.parameters, dims)
        doubled = [2 * t if i < len(norm.arrays) else t for i, t in enumerate(norm.tensors)]
        theirs = [t.sin() for t in norm.theirs(*doubled)]
        grads = [torch.randn(shape, device=DEVICE) for _ in own]
        torch.testing.assert_close(own, theirs)
        pair = [torch.autograd.grad(results, norm.tensors, grads) for results in (own, theirs)]
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_meta_and_fake(op):
    from torch._subclasses.fake_tensor import FakeTensorMode

    norm = Norm.draw(op, (4, 6), torch.bfloat16)
    with FakeTensorMode() as mode:
        arrays = [mode.from_tensor(a).t().contiguous().t() for a in norm.arrays]
        faked = [mode.from_tensor(p) for p in norm.parameters]
        for fake in Norm(op, arrays, faked)("torch"):
            assert (fake.shape, fake.stride(), fake.dtype) == ((4, 6), (6, 1), torch.bfloat16)
    arrays, parameters = ([t.to("meta") for t in of] for of in (norm.arrays, norm.parameters))
    for meta in Norm(op, arrays, parameters)("torch"):
        assert (meta.shape, meta.dtype, meta.device.type) == ((4, 6), torch.bfloat16, "meta")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend, op, dtype):
    """The norm in float32, as PyTorch's on a GPU; the sum before it in what it is of."""
    norm = Norm.draw(op, (30, 10), dtype, "float32 both").require_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        results = norm(backend)
    assert results[0].dtype == torch.float32
    total = sum(norm.arrays).detach() if op in FUSED else norm.arrays[0].detach()
    if op in FUSED:
        assert results[1].dtype == dtype
    plain = Norm(op.removeprefix("add_"), [total.float()], norm.parameters)
    plain.assert_right(results[:1])
    results[0].sum().backward()
    assert all(t.grad.dtype == t.dtype for t in norm.tensors)


ONES = torch.ones(2, 3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], 2), TypeError, "input must be a torch.Tensor, not list"),
        ((torch.arange(3), 3), TypeError, "input must have one of the dtypes float32.*not int64"),
        ((ONES.to(torch.complex64), 3), TypeError, "not complex64"),
        ((ONES.to_sparse(), 3), TypeError, "input must be a dense tensor"),
        ((ONES, ()), ValueError, "normalized_shape must have at least one dimension"),
        ((ONES, (2,)), ValueError, r"\(2, 3\) does not end with \(2,\)"),
        ((ONES, 2), ValueError, r"\(2, 3\) does not end with \(2,\)"),
        ((ONES, (1, 2, 3)), ValueError, "normalized_shape must match the last dimensions"),
        ((torch.ones(()), (1,)), ValueError, r"\(\) does not end with \(1,\)"),
        ((ONES, (3.0,)), TypeError, "normalized_shape must be .* integers, not of float"),
        ((ONES, None), TypeError, "normalized_shape must be .* integers, not of NoneType"),
        ((ONES, "3"), TypeError, "normalized_shape must be .* integers, not of str"),
        ((ONES, 3, torch.ones(2)), ValueError, r"weight must have the shape .*\(3,\), not \(2,\)"),
        ((ONES, 3, torch.ones(1, 3)), ValueError, "weight must have the shape"),
        ((ONES, 3, 1.0), TypeError, "weight must be a torch.Tensor, not float"),
        ((ONES, 3, torch.ones(3).double()), TypeError, "weight must have the dtype of input"),
        ((ONES, 3, torch.ones(3).half()), TypeError, "weight must .* torch.float32, not .*float16"),
        ((ONES.double(), 3, torch.ones(3)), TypeError, "weight must have the dtype of input"),
        ((ONES.half(), 3, torch.ones(3).bfloat16()), TypeError, "float16 or float32, not"),
        ((ONES, 3, torch.ones(3, device="meta")), ValueError, "weight must be on the device of"),
    ],
)
def test_bad_arguments(op, arguments, error, message):
    if op in FUSED:
        arguments = (arguments[0], *arguments)
    with pytest.raises(error, match=f"{op}: .*{message}"):
        getattr(diglot, op)(*arguments)


@pytest.mark.parametrize("op", ["layer_norm", "add_layer_norm"])
def test_bad_bias(op):
    x, arrays = torch.ones(2, 3).half(), 2 if op in FUSED else 1
    function, given = getattr(diglot, op), [x] * arrays
    with pytest.raises(ValueError, match=f"{op}: bias must have the shape"):
        function(*given, 3, None, torch.ones(4).half())
    with pytest.raises(TypeError, match=f"{op}: weight and bias must have one dtype"):
        function(*given, 3, torch.ones(3).half(), torch.ones(3))
    with pytest.raises(TypeError, match=f"{op}: eps must be a real number"):
        function(*given, 3, eps="small")


@pytest.mark.parametrize("op", FUSED)
@pytest.mark.parametrize(
    ("residual", "error", "message"),
    [
        (torch.ones(3), ValueError, "residual must have the shape of input"),
        (torch.ones(2, 3).half(), TypeError, "residual must have the dtype of input"),
        (torch.ones(2, 3, device="meta"), ValueError, "residual must have the device of input"),
        (None, TypeError, "residual must be a torch.Tensor, not NoneType"),
    ],
)
def test_bad_residual(op, residual, error, message):
    with pytest.raises(error, match=f"{op}: {message}"):
        getattr(diglot, op)(torch.ones(2, 3), residual, 3)


@pytest.mark.parametrize("op", PLAIN)
def test_bad_gradients(op):
    backward = getattr(torch.ops.diglot, f"{op}_backward")
    fields = 1 + is_centered(op)
    x, statistics = torch.ones(2, 3, device=DEVICE), torch.ones(fields, 2, device=DEVICE)
    rest = (statistics, None, *[None] * fields, 1e-5, "torch")
    for grad in (torch.ones(2, device=DEVICE), x.double()):
        with pytest.raises(ValueError, match="grad_output must have the shape and dtype of"):
            backward(grad, None, x, *rest)
        with pytest.raises(ValueError, match="grad_sum must have the shape and dtype of"):
            backward(x, grad, x, *rest)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules(backend):
    """PyTorch's modules with another forward: parameters, states, text."""
    x = torch.randn(2, 3, 4, device=DEVICE)
    own, theirs = diglot.nn, torch.nn
    for kind, arguments, options in (
        ("LayerNorm", (4,), {}),
        ("LayerNorm", ((3, 4), 1e-3), {"bias": False}),
        ("LayerNorm", (torch.Size([4]),), {"elementwise_affine": False}),
        ("RMSNorm", ([3, 4],), {}),
        ("RMSNorm", (4, 1e-3), {"elementwise_affine": False}),
    ):
        module = getattr(own, kind)(*arguments, **options, device=DEVICE, backend=backend)
        reference = getattr(theirs, kind)(*arguments, **options, device=DEVICE)
        assert isinstance(module, type(reference))
        for parameter in reference.parameters():
            torch.nn.init.normal_(parameter)
        module.load_state_dict(reference.state_dict())
        torch.testing.assert_close(module(x), reference(x))
        assert diglot.last_run().backend == backend
        assert repr(module) == f"diglot.nn.{repr(reference)[:-1]}, backend={backend!r})"
    with pytest.raises(ValueError, match="backend"):
        diglot.nn.RMSNorm(4, backend="rocm")


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_transposed_results(backend, name):
    """As in attention, where heads are normalized and then become an outer dimension."""
    x = torch.randn(2, 3, 4, 8, device=DEVICE, requires_grad=True)
    weight = torch.randn(8, device=DEVICE, requires_grad=True)
    grad = torch.randn(2, 4, 3, 8, device=DEVICE)
    made = getattr(diglot, name)(x, 8, weight, eps=1e-5, backend=backend).transpose(1, 2)
    expected = getattr(torch.nn.functional, name)(x, (8,), weight, eps=1e-5).transpose(1, 2)
    ours, theirs = (torch.autograd.grad(y, (x, weight), grad) for y in (made, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_autocast_takes_parameters_of_16_bits(name):
    """Beside an input of float32, which a norm under autocast returned before, they are widened."""
    x, weight = torch.randn(3, 8, device=DEVICE), torch.randn(8, device=DEVICE).bfloat16()
    expected = getattr(diglot, name)(x, 8, weight.float(), eps=1e-5, backend="torch")
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in range(2):  # the second call is of a kind that is known
            made = getattr(diglot, name)(x, 8, weight, eps=1e-5, backend="torch")
            assert made.dtype == torch.float32 and torch.equal(made, expected)
    with pytest.raises(TypeError, match="weight must have the dtype of input"):
        getattr(diglot, name)(x, 8, weight, eps=1e-5, backend="torch")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_are_for_who_differentiates(backend, op):
    """Without gradients none are allocated or written, and the results are the same."""
    norm = Norm.draw(op, (5, 24))
    given = []
    with observe_runs(lambda _, arguments: given.append(arguments[len(norm.tensors) + 1])):
        plain = norm(backend)
        with torch.no_grad():
            norm.require_grad()(backend)
        recorded = norm(backend)
    assert given[:2] == [None, None]
    assert given[2].shape == (1 + is_centered(op), 5) and given[2].isfinite().all()
    for own, other in zip(plain, recorded, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_of_any_strides(backend):
    """As a caller of the operator, or torch.vmap, may have them."""
    x, grad = torch.randn(2, 6, 24, device=DEVICE)
    _, statistics = torch.ops.diglot.layer_norm(x, None, None, 1, 1e-5, backend)
    moved = statistics.t().contiguous().t()
    arguments = (None, None, None, 1e-5, backend)
    wanted, own = (
        torch.ops.diglot.layer_norm_backward(grad, None, x, given, *arguments)[0]
        for given in (statistics, moved)
    )
    assert not moved.is_contiguous() and torch.equal(own, wanted)
    _, statistics = torch.ops.diglot.standardize(x, 1e-5, backend)
    spread = torch.zeros(4, device=DEVICE)[::2].copy_(statistics)
    wanted, own = (
        torch.ops.diglot.standardize_backward(grad, x, given, 1e-5, backend)
        for given in (statistics, spread)
    )
    assert torch.equal(own, wanted)
