"""linear: layers of published models, one with GELU, gradients, providers, bars."""

from __future__ import annotations

import functools
import random

import torch
import torch.nn.functional as F
from torch import Tensor

import diglot
from diglot.bench import models, products
from diglot.bench.harness import (
    Bar,
    Benchmark,
    Call,
    Case,
    Function,
    OtherCall,
    Row,
    Tensors,
    normal,
    speed_over_torch,
)
from diglot.ops.linear_parameters import parameter_gradients
from diglot.reference.gelu import gelu_oracle
from diglot.reference.linear import SPEC
from diglot.reference.matmul import expected_product
from diglot.reference.mlp import SLOPE
from diglot.reference.specs import Expected, nbytes

SEED, CASES = 26, 60
MOST_TOKENS = 1 << 14
MOST_BYTES = 4 << 30  # of input, weight and output
BIAS, GELU = "bias", "bias and GELU"  # what an option says of a layer that has more than a product
WITH_BIAS = 4  # one layer in this number: models.json does not say which have one
TOKENS = 8192
# By K, the bounds of the speed over PyTorch's two kernels.
GELU_BARS = {1024: (1.25, 1.20), 2048: (1.12, 1.08), 4096: (1.04, 1.02)}
PLAIN = "plain product"  # our other way to compare with
# Directions whose shape is that of the layer: gradients of input and weight, of weight and bias.
# Our other ways to the latter are both kinds of plans.
BACKWARD, PARAMETERS = "backward", "gradients of parameters"
GRADIENTS = {BACKWARD: ("input", "weight"), PARAMETERS: ("weight", "bias")}
LAUNCHES = {
    "two launches": {"products.both.row_sums": 0},
    "one launch": {"products.both.row_sums": 1},
}
TRAINED = [
    *((TOKENS, n, k) for f in (768, 1024, 4096) for n, k in ((4 * f, f), (f, 4 * f))),
    (2048, 4096, 4096),
]


def layers(seed: int = SEED, count: int = CASES) -> list[tuple[int, int, int]]:
    """Shapes (tokens, N, K) of layers of published models, the same for the same seed.

    A layer is a projection of the hidden size, or one to or from the intermediate size.
    """
    chance = random.Random(f"linear {seed}")
    published = models.published()
    drawn: list[tuple[int, int, int]] = []
    while len(drawn) < count:
        model = chance.choice(published)
        hidden, inner = model.hidden_size, model.intermediate_size
        n, k = chance.choice(models.sides_of(hidden, inner))
        shape = (models.tokens(chance, 1, MOST_TOKENS), n, k)
        if 2 * (shape[0] * (n + k) + n * k) <= MOST_BYTES and shape not in drawn:
            drawn.append(shape)
    return drawn


def _cases() -> list[Case]:
    options = [{"with": BIAS} if i % WITH_BIAS == WITH_BIAS - 1 else {} for i in range(CASES)]
    return [
        *(
            Case("forward", torch.bfloat16, shape, of)
            for shape, of in zip(layers(), options, strict=True)
        ),
        *(Case("forward", torch.bfloat16, (TOKENS, 4 * k, k), {"with": GELU}) for k in GELU_BARS),
        Case("forward", torch.float32, (64, 64, 64), {"with": BIAS}, timer="host"),
        *(Case(PARAMETERS, torch.bfloat16, shape) for shape in TRAINED),
        *(Case(BACKWARD, torch.bfloat16, shape) for shape in TRAINED[::2]),
    ]


def _has_gelu(case: Case) -> bool:
    return case.options.get("with") == GELU


def _inputs(case: Case) -> Tensors:
    m, n, k = case.shape
    if case.direction in GRADIENTS:
        of_weight = [(n, k)] if case.direction == BACKWARD else []
        return normal([(m, n), (m, k), *of_weight], case.dtype)
    return normal([(m, k), (n, k), *([(n,)] if "with" in case.options else [])], case.dtype)


def _expected(case: Case, tensors: Tensors) -> Expected | tuple[Expected, ...]:
    if case.direction in GRADIENTS:
        grad, x, *weights = tensors
        weight = weights[0] if weights else x.new_zeros(grad.shape[1], x.shape[1])
        made = SPEC.backward(grad, x, weight, grad[0])
        return tuple(made[name] for name in GRADIENTS[case.direction])
    x, weight, *bias = tensors
    sums = expected_product(x, weight.mT, bias[0] if bias else None, case.dtype)
    if not _has_gelu(case):
        return sums
    assert sums.allowance is not None
    return Expected(gelu_oracle, sums.tensors, {}, case.dtype, SLOPE * sums.allowance)


def _bytes_moved(case: Case, tensors: Tensors) -> int:
    m, n, k = case.shape
    if case.direction not in GRADIENTS:
        return products.bytes_moved(case, tensors)
    beside = m * k if case.direction == BACKWARD else n
    return sum(map(nbytes, tensors)) + (n * k + beside) * case.dtype.itemsize


def _flops(case: Case, tensors: Tensors) -> int:
    return products.flops(case, tensors) * (2 if case.direction == BACKWARD else 1)


def _is_layer(row: Row) -> bool:
    is_forward = (row["direction"], row["timer"]) == ("forward", "device")
    return is_forward and row["options"].get("with") != GELU


def _is_activated(row: Row) -> bool:
    return row["options"].get("with") == GELU


benchmark = Benchmark(
    op="linear",
    cases=_cases(),
    inputs=_inputs,
    expected=_expected,
    bytes_moved=_bytes_moved,
    flops=_flops,
    shape=products.square,
    keywords=lambda case: {"activation": "gelu"} if _has_gelu(case) else {},
    takes=products.is_product,
    on_demand=products.ON_DEMAND,
    bars=[
        Bar(
            "speed over the faster of cuBLAS and QuACK, layers of published models",
            _is_layer,
            products.speed_over_libraries,
            products.by_language(0.90, 0.85),
            mean=products.by_language(1.00, 0.97),
        ),
        Bar(
            "speed over own plain product, with bias and GELU",
            _is_activated,
            products.over(PLAIN),
            products.by_language(0.97, 0.95),
        ),
        Bar(
            "speed over PyTorch's two kernels, with bias and GELU",
            _is_activated,
            speed_over_torch,
            lambda row: products.by_language(*GELU_BARS[row["shape"][-1]])(row),
        ),
        products.HOST_BAR,
    ],
)


def _parameters(grad: Tensor, x: Tensor, *, backend: str) -> Tensors:
    return parameter_gradients(grad, x, None, backend)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, *, backend: str) -> Tensors:
    """The launches of a backward pass."""
    of_weight = diglot.matmul(grad.mT, x, backend=backend)
    return diglot.matmul(grad, weight, backend=backend), of_weight


benchmark.ours({"forward": diglot.linear, BACKWARD: _backward, PARAMETERS: _parameters})


def _plain(backend: str, case: Case, tensors: Tensors) -> Call | None:
    """The product alone, without the bias and what follows it."""
    if not _has_gelu(case):
        return None
    x, weight, _ = tensors
    call = functools.partial(diglot.linear, x, weight, backend=backend)
    return OtherCall(call, lambda: expected_product(x, weight.mT, None, case.dtype))


products.other_way(benchmark, PLAIN, _plain)


def _launched(numbers: dict[str, int], backend: str, case: Case, tensors: Tensors) -> Call | None:
    """By one kind of plans, whichever are the default."""
    if case.direction != PARAMETERS:
        return None
    return products.with_plans(numbers, functools.partial(_parameters, *tensors, backend=backend))


for _way, _numbers in LAUNCHES.items():
    products.other_way(benchmark, _way, functools.partial(_launched, _numbers))


@benchmark.provider("torch", F.linear, F.gelu)
def _torch(case: Case, tensors: Tensors) -> Call:
    """PyTorch's layer, and its GELU in a second kernel; its product and its sum for gradients."""
    if case.direction in GRADIENTS:
        return functools.partial(FORMULAS[case.direction], *tensors)
    layer = functools.partial(F.linear, *tensors)
    return (lambda: F.gelu(layer())) if _has_gelu(case) else layer


def _sums(grad: Tensor, x: Tensor) -> Tensors:
    return grad.mT @ x, grad.sum(0)


def _layer(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """The definition, a kernel for each operation in eager PyTorch."""
    sums = input @ weight.mT
    sums = sums if bias is None else sums + bias
    return sums if activation is None else F.gelu(sums)


def _products(grad: Tensor, x: Tensor, weight: Tensor) -> Tensors:
    return grad @ weight, grad.mT @ x


FORMULAS: dict[str, Function] = {"forward": _layer, BACKWARD: _products, PARAMETERS: _sums}
benchmark.compiled(FORMULAS)
benchmark.way("formula", FORMULAS)
products.quack(
    benchmark,
    lambda case: (case.direction, case.dtype) == ("forward", torch.bfloat16) and not case.options,
    lambda case, tensors: (tensors[0], tensors[1].mT),
)
