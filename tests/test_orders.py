"""The order of summation that a plan states: plans of equal order give equal bits."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict

import pytest
import torch
from backends import DEVICE, KERNELS

import diglot
from diglot.backends.choosing import use_plans
from diglot.backends.plans import KernelLaunch, Order
from diglot.backends.registry import INTERPRET
from diglot.backends.runs import observe_runs, plan, run
from diglot.backends.tunables import use_tunables
from diglot.backends.tuning import candidate_plans
from diglot.tools.tune import _outputs

pytestmark = pytest.mark.skipif(not INTERPRET, reason="the tuner compares plans on a GPU")


def softmax(x, backend, dim=-1):
    return diglot.softmax(x, dim, backend=backend)


def layer_norm(x, backend):
    w, b = (torch.ones(x.shape[-1], requires_grad=True) for _ in range(2))
    return diglot.layer_norm(x, x.shape[-1:], w, b, backend=backend)


def rms_norm(x, backend):
    return diglot.rms_norm(x, x.shape[-1:], None, backend=backend)


def standardize(x, backend):
    return diglot.standardize(x, backend=backend)


def launches_of(op, x, backend):
    """The launches of a call, forward and backward, with their arguments."""
    found = []
    x = x.detach().requires_grad_()
    with observe_runs(lambda record, arguments: found.append((record, arguments))):
        output = op(x, backend)
        output.backward(torch.sin(3 * x.detach()))
    return [(r.backend, r.op, r.launcher, *arguments) for r, arguments in found]


def tried(launch, also=(), plans=99):
    """The orders of many plans of a launch, each with its results.

    `plans`: how many of the tuner's there are at most. `also`: tunables of further ones.
    """
    numbers = [candidate.numbers for candidate in candidate_plans(*launch)]
    # Some that differ in two tunables.
    pairs = itertools.pairwise(numbers[1:])
    numbers += [{**a, **b} for a, b in pairs if a.keys() != b.keys()]
    numbers = numbers[:plans]
    for given, held in [*((given, {}) for given in numbers), *(({}, held) for held in also)]:
        with use_plans(given), use_tunables(held):
            outputs = _outputs(launch[2], launch[3:])
            for output in outputs:
                output.fill_(torch.nan)
            run(*launch)
            yield plan(*launch).order, [output.clone() for output in outputs]


def equal(results, others):
    return all(map(functools.partial(torch.allclose, rtol=0, atol=0), results, others))


def bits_by_order(plans):
    """How many plans there are, and by order the distinct results."""
    found, count = defaultdict(list), 0
    for order, results in plans:
        count += 1
        if not any(equal(results, known) for known in found[order]):
            found[order].append(results)
    return count, found


# Calls that lead to plans of every kind: teams of a warp, block and cluster, shared rows, tiles
# that are read twice, columns, two launches, chunks of the array.
CASES = {
    "rows in lanes": (softmax, (5, 48)),
    "a row of a block": (softmax, (3, 1200)),
    "odd rows": (softmax, (3, 1001)),
    "long rows": (softmax, (2, 40000)),
    "columns": (functools.partial(softmax, dim=0), (90, 8)),
    "a norm": (layer_norm, (7, 300)),
    "long rows of a norm": (rms_norm, (2, 20000)),
    "whole arrays": (standardize, (3, 9000)),
}
FAST = {
    "cuda": ("rows in lanes", "a row of a block", "odd rows", "columns"),
    "triton": ("rows in lanes", "columns"),
}
# Numbers that no tuner changes, since results depend on them.
HELD = [
    {"rows.both.planned_rows": 1 << 16},
    {"norm_backward.*.enough_groups": 2},
    {"norm_backward.cuda.sum_side": 256},
    {"norm_backward.triton.summed_groups": 2},
    {"rows.cuda.tallest": 0, "rows.both.chunk_elements": 8},
    {"rows.cuda.tallest": 0, "rows.both.chunk_elements": 16, "rows.both.many_chunks": 3},
    {"rows.cuda.tallest": 0, "rows.both.chunk_elements": 16, "rows.both.many_chunks": 4},
    {"rows.triton.tall": 0, "rows.both.chunk_elements": 8},
    {"global.*.most_chunks": 2},
    {"global.triton.most_folded.*": 2},
    {"global.*.few_tiles": 1},
]


def cases():
    for (name, case), kernels in itertools.product(CASES.items(), KERNELS):
        backend = kernels if isinstance(kernels, str) else kernels.values[0]
        marks = [] if isinstance(kernels, str) else list(kernels.marks)
        marks += [] if name in FAST[backend] else [pytest.mark.slow]
        yield pytest.param(backend, *case, marks=marks, id=f"{name}-{backend}")


@pytest.mark.parametrize(("backend", "op", "shape"), list(cases()))
def test_equal_orders_give_equal_bits(backend, op, shape):
    """Over many plans of each launch; many of them state the same order."""
    for launch in launches_of(op, torch.randn(shape, device=DEVICE), backend):
        count, found = bits_by_order(tried(launch, HELD))
        assert count > len(found) > 1, launch[2]
        for order, results in found.items():
            assert len(results) == 1, (launch[2], order)


@pytest.mark.parametrize("backend", KERNELS)
def test_orders_that_differ_are_told_apart(backend):
    """By numbers alone: the kernel, its grid and its threads are equal, and the bits are not."""
    field = "norm_backward.cuda.sum_side" if backend == "cuda" else "norm_backward.triton.groups.*"
    values = (1, 256) if backend == "cuda" else (2, 3)
    x = torch.randn(1500, 4, device=DEVICE)
    launch = launches_of(layer_norm, x, backend)[-1]
    (first, bits), (second, others) = tried(launch, [{field: value} for value in values], plans=0)
    assert first != second and not equal(bits, others)
    assert first[-1]._replace(numbers=()) == second[-1]._replace(numbers=())


def test_an_order_is_short_and_readable():
    name = (
        "void diglot::(anonymous namespace)::f<diglot::Shape<(diglot::Team)1>, float>(int, g(*)())"
    )
    launch = KernelLaunch(name, (7, 2, 1), (256, 1, 1), 64, 2, (), (("", 3), ("tiles", 5)))
    order = launch.order
    assert order.kernel == "(anonymous namespace)::f<Shape<(Team)1>, float>"
    assert str(order) == f"{order.kernel}: 7x2 blocks of 256 threads, clusters of 2, tiles 5"
    # Memory and flags are no part of it; every number is.
    assert launch._replace(shared_bytes=0, flags=("pdl",)).order == order
    assert launch._replace(numbers=(("", 4), ("tiles", 5))).order != order
    assert isinstance(order, Order) and hash(order)


@pytest.mark.parametrize("backend", KERNELS)
def test_explain_states_the_order(backend):
    x = torch.randn(3, 300, device=DEVICE)
    text = str(diglot.explain(diglot.softmax, x, -1))
    (made,) = diglot.explain(diglot.softmax, x, -1).plans[backend]
    assert made.order and all(f"       {order}\n" in text for order in made.order)
