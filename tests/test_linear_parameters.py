"""The gradients of a linear layer's weight and bias: by one launch or by two, as plans say."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, needs_cuda, needs_extension
from product_cases import (
    assert_derivatives,
    assert_product,
    integers,
    laid_out,
    normal,
    surrounded,
)

import diglot
from diglot.backends.plans import plan_runs
from diglot.backends.tuning import candidate_plans
from diglot.ops.linear_parameters import _parameters_backward, parameter_gradients
from diglot.tools.gpus import named_device

HALVES = [torch.bfloat16, torch.float16]
BF16 = torch.bfloat16
NEVER, ASKED = ({"products.both.row_sums": asked} for asked in (0, 1))
TOGETHER, APART = "sums of rows", "; sum"  # what variants say
each_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
each_backend = pytest.mark.parametrize("backend", KERNELS)


def variant() -> str:
    last = diglot.last_run()
    assert last is not None and last.launcher == "linear_parameters_backward"
    return last.variant


def assert_gradients(backend, grad, input, numbers=ASKED, precision=None) -> str:
    """Asserts that they are right, and returns the plan's name."""
    with diglot.use_plans(numbers):
        of_weight, of_bias = parameter_gradients(grad, input, precision, backend)
    assert_product(of_weight, grad.mT, input)
    ones = torch.ones(1, grad.shape[0], dtype=grad.dtype, device=DEVICE)
    assert_product(of_bias[None], ones, grad)
    return variant()


# Edges of tiles and of steps along K: a tile, several of both sides, parts of them, a single row.
SIZES = [(64, 128, 256), (200, 136, 264), (130, 304, 520), (1000, 72, 24), (1, 80, 16)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_half
@each_backend
def test_one_launch(backend, dtype, sizes):
    m, n, k = sizes
    grad, input = normal(m, n, dtype=dtype), normal(m, k, dtype=dtype)
    for parts in (1, 2, 3):
        numbers = {**ASKED, f"products.{backend}.split": parts}
        name = assert_gradients(backend, grad, input, numbers)
        assert TOGETHER in name and APART not in name
        assert (" parts" in name) == (parts > 1 and m > 128)


@each_half
@each_backend
def test_operands_that_are_copied(backend, dtype):
    """Lines that begin elsewhere than TMA reads them, and surroundings that are NaN."""
    for m, n, k in ((77, 65, 33), (300, 140, 136)):
        grad, input = (surrounded(normal(m, side, dtype=dtype)) for side in (n, k))
        name = assert_gradients(backend, grad, input)
        assert TOGETHER in name and "copies of A and B" in name


@each_backend
def test_two_launches(backend):
    """Of all types and sizes."""
    grad, input = normal(1000, 136, dtype=BF16), normal(1000, 72, dtype=BF16)
    for parts in (0, 2):
        numbers = {**NEVER, f"products.{backend}.split": parts}
        for _ in range(2):  # sums lie behind the counters of parts, which must stay zero
            assert APART in assert_gradients(backend, grad, input, numbers)
    for dtype in FLOATING:
        grad, input = normal(200, 136, dtype=dtype), normal(200, 72, dtype=dtype)
        assert APART in assert_gradients(backend, grad, input, NEVER)


@needs_extension
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_the_planner_compares_both_forms(backend):
    """By times that an H200 took: one launch was 15 % faster, and 17 % slower. Triton has two."""
    variants = []
    for k in (1024, 768):
        grad, input = (torch.empty(8192, n, dtype=BF16) for n in (4096 * k // 1024, k))
        with plan_runs(named_device("NVIDIA H200")) as runs:
            parameter_gradients(grad, input, None, backend)
        with plan_runs(named_device("NVIDIA H200")) as held, diglot.use_plans("invariant"):
            parameter_gradients(grad, input, None, backend)
        assert APART in held[0].plan.variant
        variants.append(runs[0].plan.variant)
    assert (TOGETHER if backend == "cuda" else APART) in variants[0] and APART in variants[1]


@each_backend
def test_two_launches_where_one_cannot(backend):
    """Other types; operands that lie along K; one gradient for all rows; few features, in Triton;
    sizes of zero.
    """
    for dtype in (torch.float32, torch.float64):
        grad, input = normal(200, 136, dtype=dtype), normal(200, 72, dtype=dtype)
        assert APART in assert_gradients(backend, grad, input)
    with diglot.use_plans(ASKED):
        # Tensor cores would take 13 bits of each summand: the bias's gradient is no product.
        parameter_gradients(grad.float(), input.float(), "tf32", backend)
        assert APART in variant()
    grad, input = normal(200, 136, dtype=BF16), normal(200, 72, dtype=BF16)
    if backend == "cuda":
        assert APART in assert_gradients(backend, laid_out(grad, True), input)
    assert APART in assert_gradients(backend, grad[:1, :1].expand(20, 9), input[:20])
    few = assert_gradients(backend, grad[:, :16], input)
    assert (APART if backend == "triton" else TOGETHER) in few
    assert APART in assert_gradients(backend, grad[:0], input[:0])
    for n, k in ((0, 72), (136, 0)):
        with diglot.use_plans(ASKED):
            of_weight, of_bias = parameter_gradients(grad[:, :n], input[:, :k], None, backend)
        assert of_weight.shape == (n, k) and of_bias.shape == (n,)
        torch.testing.assert_close(
            of_bias.double(), grad[:, :n].double().sum(0), rtol=0.01, atol=0.01
        )


@each_half
@needs_cuda
def test_integers_are_exact(dtype):
    """In both languages, in one launch and in two, with any parts of K."""
    grad, input = integers(700, 136, dtype=dtype), integers(700, 264, dtype=dtype)
    right = grad.double().mT @ input.double(), grad.double().sum(0)
    for backend, asked, parts in itertools.product(("cuda", "triton"), (0, 1), (1, 5)):
        numbers = {"products.both.row_sums": asked, f"products.{backend}.split": parts}
        with diglot.use_plans(numbers):
            made = parameter_gradients(grad, input, None, backend)
        for own, exact in zip(made, right, strict=True):
            assert torch.equal(own, exact.to(dtype)), (backend, numbers)


@each_backend
def test_bits_do_not_change(backend):
    """Parts are added in their order, whichever ends last."""
    grad, input = normal(1000, 264, dtype=BF16), normal(1000, 264, dtype=BF16)
    with diglot.use_plans({**ASKED, f"products.{backend}.split": 4}):
        first, *others = (parameter_gradients(grad, input, None, backend) for _ in range(3))
    for other in others:
        assert all(map(torch.equal, first, other))


@each_backend
def test_special_values(backend):
    """They stay in their feature; 0 x inf, which the product has, is not in the sum."""
    grad, input = normal(150, 136, dtype=BF16), normal(150, 72, dtype=BF16)
    grad[3, 5], grad[149, 70], grad[64, 135], input[3, 0] = torch.nan, torch.inf, -torch.inf, 0
    with diglot.use_plans(ASKED):
        of_weight, of_bias = parameter_gradients(grad, input, None, backend)
    assert TOGETHER in variant()
    assert of_bias[5].isnan() and of_bias[70] == torch.inf and of_bias[135] == -torch.inf
    assert of_bias.isfinite().sum() == 133
    finite = of_bias.isfinite()
    assert of_weight[finite].isfinite().all()


@pytest.mark.parametrize("numbers", [NEVER, ASKED], ids=["two", "one"])
@each_backend
def test_layers(backend, numbers):
    """linear with all that may follow it, and mlp, whose gradients go through an activation."""
    shapes = (3, 40, 72), (136, 72), (136,)
    form = TOGETHER if numbers == ASKED else APART
    grad = normal(3, 40, 136, dtype=BF16)
    for activation in (None, "relu"):
        tensors = [normal(*s, dtype=BF16).requires_grad_() for s in shapes]
        with diglot.use_plans(numbers), diglot.record_runs() as runs:
            result = diglot.linear(*tensors, activation=activation, backend=backend)
            made = torch.autograd.grad(result, tensors, grad)
        names = [run.variant for run in runs if run.launcher == "linear_parameters_backward"]
        assert len(names) == 1 and form in names[0]
        through = grad if activation is None else grad * (result > 0)
        rows = through.reshape(120, 136)
        assert_product(made[1], rows.mT, tensors[0].detach().reshape(120, 72))
        assert_product(made[2][None], torch.ones(1, 120, dtype=BF16, device=DEVICE), rows)
    tensors += [normal(s, 136, dtype=BF16).requires_grad_() for s in (80,)]
    tensors += [normal(80, dtype=BF16).requires_grad_()]
    with diglot.use_plans(numbers), diglot.record_runs() as runs:
        result = diglot.mlp(*tensors, activation="relu", backend=backend)
        made = torch.autograd.grad(result, tensors, grad[..., :80])
    names = [run.variant for run in runs if run.launcher == "linear_parameters_backward"]
    assert len(names) == 2 and all(form in name for name in names)
    ones = torch.ones(1, 120, dtype=BF16, device=DEVICE)
    assert_product(made[4][None], ones, grad[..., :80].reshape(120, 80))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_gradient_alone(backend):
    """Then there is nothing to share: the launches are those of a product, or of a sum."""
    x, weight, bias = (normal(*s, dtype=torch.float64) for s in ((3, 4), (5, 4), (5,)))
    for chosen, launcher in ((weight, "matmul_forward"), (bias, "add_backward")):
        chosen.requires_grad_()
        with diglot.record_runs() as runs:
            diglot.linear(x, weight, bias, backend=backend).sum().backward()
        assert [run.launcher for run in runs[1:]] == [launcher]
        chosen.requires_grad_(False)
    bias = normal(1, dtype=torch.float64).requires_grad_()  # for all features
    weight.requires_grad_()
    with diglot.record_runs() as runs:
        diglot.linear(x, weight, bias, backend=backend).sum().backward()
    assert {run.launcher for run in runs[1:]} == {"matmul_forward", "add_backward"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives(backend):
    """Of the operator itself: first and second, ahead, batched, traced."""
    grad, input = (normal(*s, dtype=torch.float64).requires_grad_() for s in ((6, 5), (6, 4)))

    def own(grad, input):
        return torch.cat([t.flatten() for t in parameter_gradients(grad, input, None, backend)])

    def theirs(grad, input):
        return torch.cat([(grad.mT @ input).flatten(), grad.sum(0)])

    assert_derivatives(own, theirs, [grad, input])
    plain = grad.detach(), input.detach()
    ways = plain[0].cos(), plain[1].sin()
    for chosen in ((True, True), (True, False), (False, True)):
        given = tuple(w if c else torch.zeros_like(w) for w, c in zip(ways, chosen, strict=True))
        made, expected = (torch.func.jvp(f, plain, given) for f in (own, theirs))
        torch.testing.assert_close(made, expected)
    batch = normal(3, 6, 5, dtype=torch.float64), normal(6, 3, 4, dtype=torch.float64)
    for dims in ((0, 1), (0, None), (None, 1)):
        given = tuple(t if d is not None else p for t, d, p in zip(batch, dims, plain, strict=True))
        made, expected = (torch.func.vmap(f, dims)(*given) for f in (own, theirs))
        torch.testing.assert_close(made, expected)
    torch.library.opcheck(_parameters_backward.dispatched, (grad, input, None, backend))
    for index in (0, 1):  # of one output
        (first,) = torch.autograd.grad(
            parameter_gradients(grad, input, None, backend)[index].sum(), grad
        )
        (second,) = torch.autograd.grad((grad.mT @ input, grad.sum(0))[index].sum(), grad)
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend):
    torch._dynamo.reset()
    layer = torch.compile(diglot.linear, fullgraph=True, backend="aot_eager")
    for rows in (3, 6):
        given = [
            normal(*s, dtype=torch.float64).requires_grad_() for s in ((rows, 4), (5, 4), (5,))
        ]
        made = torch.autograd.grad(layer(*given, backend=backend).square().sum(), given)
        expected = torch.autograd.grad(F.linear(*given).square().sum(), given)
        torch.testing.assert_close(made, expected)


@each_backend
def test_a_tuner_measures_both(backend):
    grad, input = normal(300, 136, dtype=BF16), normal(300, 72, dtype=BF16)
    outs = grad.new_empty(136, 72), grad.new_empty(136)
    arguments = grad.mT, input, False, "ieee", *outs
    candidates = candidate_plans(backend, "linear", "linear_parameters_backward", *arguments)
    assert APART in candidates[0].plan.variant and candidates[0].plan.choices[0].problem.layout == (
        "TN, row sums"
    )
    (asked,) = [c for c in candidates if c.numbers == ASKED]
    assert TOGETHER in asked.plan.variant and len(asked.plan.launches) == 1
