"""mlp: cases, providers, bars. A case's shape is (tokens, hidden size, features); the layer between
has four times the features. A step is the forward pass, and the gradients of all five inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import diglot
from diglot.bench import products
from diglot.bench.harness import (
    AUTOTUNED,
    Bar,
    Benchmark,
    Case,
    Function,
    Row,
    Rows,
    Tensors,
    normal,
    speed_over_torch,
)
from diglot.reference.mlp import SPEC
from diglot.reference.specs import Expected, nbytes

TOKENS = 8192
STEP = "backward, after forward"
# By features, the bounds of a step's speed over eager PyTorch.
STEP_BARS = {768: (1.15, 1.10), 1024: (1.10, 1.06), 2048: (1.04, 1.01), 4096: (1.00, 0.97)}
PRODUCTS = {"forward": 2, STEP: 6}


def _inputs(case: Case) -> Tensors:
    """The input, both layers' weights and biases, which keep its scale; of a step, the gradient."""
    tokens, hidden, features = case.shape
    shapes: list[tuple[int, ...]] = [(tokens, features), (hidden, features), (hidden,)]
    shapes += [(features, hidden), (features,)]
    if case.direction != STEP:
        return _scaled(*normal(shapes, case.dtype))
    grad, *tensors = normal([(tokens, features), *shapes], case.dtype)
    return (grad, *(t.requires_grad_() for t in _scaled(*tensors)))


def _scaled(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensors:
    return x, w1 / w1.shape[1] ** 0.5, b1, w2 / w2.shape[1] ** 0.5, b2


def _expected(case: Case, tensors: Tensors) -> Expected | tuple[Expected, ...]:
    if case.direction == STEP:
        return tuple(SPEC.backward(*tensors).values())
    expected: Expected = SPEC.forward(*tensors)
    return expected


def _bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, and the result; of a step the gradients of all inputs."""
    results = tensors[1:] if case.direction == STEP else tensors[:1]
    return sum(map(nbytes, (*tensors, *results)))


def _flops(case: Case, tensors: Tensors) -> int:
    return PRODUCTS[case.direction] * products.flops(case, tensors)


@torch.compiler.disable
def _gradients(result: Tensor, tensors: Tensors, grad: Tensor) -> Tensors:
    return torch.autograd.grad(result, tensors, grad)


def _both(layers: Function) -> Mapping[str, Function]:
    """The function of the layers, and a step of it. torch.compile compiles the layers alone."""

    def step(grad: Tensor, *tensors: Tensor, **options: str) -> Tensors:
        return _gradients(layers(*tensors, **options), tensors, grad)

    return {"forward": layers, STEP: step}


def _layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _formula(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.gelu(x @ w1.mT + b1) @ w2.mT + b2


def _is_step(row: Row) -> bool:
    return row["direction"] == STEP


def _over_autotuned(row: Row, rows: Rows) -> float:
    return float(rows[AUTOTUNED]["time_us"] / row["time_us"])


benchmark = Benchmark(
    op="mlp",
    cases=[
        *(
            Case(
                direction,
                torch.bfloat16,
                (TOKENS, 4 * features, features),
                autotuned=direction == STEP,
            )
            for direction in PRODUCTS
            for features in STEP_BARS
        ),
        Case("forward", torch.float32, (64, 64, 64), timer="host"),
    ],
    inputs=_inputs,
    expected=_expected,
    bytes_moved=_bytes_moved,
    flops=_flops,
    shape=products.square,
    keywords=lambda case: {},
    takes=products.is_product,
    on_demand=products.ON_DEMAND,
    bars=[
        Bar(
            "speed over PyTorch, forward and backward",
            _is_step,
            speed_over_torch,
            lambda row: products.by_language(*STEP_BARS[row["shape"][-1]])(row),
        ),
        Bar(
            "speed over torch.compile (max-autotune), forward and backward",
            _is_step,
            _over_autotuned,
            products.by_language(1.00, 0.97),
        ),
        products.HOST_BAR,
    ],
)

benchmark.ours(_both(diglot.mlp))
benchmark.way("torch", _both(_layers), code=[_layers])
benchmark.compiled(_both(_layers), code=[_layers])
benchmark.way("formula", _both(_formula), code=[_formula])
