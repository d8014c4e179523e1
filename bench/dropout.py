"""dropout: cases, providers, bars. Ours are called without a seed, as users do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import diglot
from diglot.bench.elementwise import benchmark_of, copy_bar, is_big, on_device, small
from diglot.bench.harness import (
    OURS,
    RECORDED,
    Call,
    Case,
    ErrorOf,
    Function,
    Tensors,
    host_bar,
    normal,
    recorded,
)
from diglot.ops.random_seed import seed_tensor
from diglot.reference.dropout import SPEC, dropout_oracle
from diglot.reference.specs import Expected, nbytes
from diglot.tools.accuracy import measure_error

OPTIONS = [{"p": 0.1}]
SEED = SPEC.constants["seed"]


@dataclass(frozen=True)
class Ours:
    """A call of ours, of whose mask the seed is known; what others drop, they alone know.

    Attributes:
        seed: the one that is given; None: the call draws it, as it does for a user.
    """

    function: Callable[[], Any]
    seed: int | None = None

    def __call__(self) -> Any:
        return self.function()

    def with_seed(self, device: torch.device) -> tuple[torch.Tensor, int]:
        """A result, and the seed that it is of: one that is drawn is drawn again."""
        if self.seed is not None:
            return self(), self.seed
        generator = torch.default_generator
        if device.type == "cuda":
            generator = torch.cuda.default_generators[device.index]
        before = generator.get_state()
        result = self()
        generator.set_state(before)
        return result, int(seed_tensor(device, None, None))


def _inputs(case: Case) -> Tensors:
    return recorded(case, normal([case.shape], case.dtype))


def _error(case: Case, tensors: Tensors, call: Call) -> ErrorOf:
    """Against the mask of the seed; of others, against their own, which must be of p's share."""
    (x,), p = (t.detach() for t in tensors), case.options["p"]
    if isinstance(call, Ours):
        result, seed = call.with_seed(x.device)
        return ErrorOf.of([measure_error(result.detach(), SPEC.forward(x, p, seed))])
    result = call().detach()
    mask = (result != 0) | (x == 0)
    deviation = math.sqrt(p * (1 - p) / x.numel())
    if abs(1 - p - mask.double().mean().item()) > 6 * deviation:
        return ErrorOf(math.inf, math.inf, math.inf, 1.0)
    expected = Expected(
        lambda x, mask: dropout_oracle(x, p, mask), (x, mask), {"input": x}, x.dtype
    )
    return ErrorOf.of([measure_error(result, expected)])


benchmark = benchmark_of(
    "dropout",
    [*on_device(("forward", "backward"), OPTIONS), *small(OPTIONS)],
    [
        copy_bar(lambda row: 0.95, lambda row: is_big(row) and row["dtype"] != "float16"),
        host_bar(cuda=(8, 14), triton=(18, 26)),
    ],
    inputs=_inputs,
    expected=None,
    error=_error,
    bytes_moved=lambda case, tensors: 2 * nbytes(tensors[0]),
    operands=lambda case, tensors: _operands(case, tensors),
)


def _ours(backend: str, case: Case, tensors: Tensors) -> Call:
    (x,), p = tensors, case.options["p"]
    if case.direction == "backward":
        seed = torch.full((), SEED, device=x.device)  # that of the forward pass, which kept it
        backward = torch.ops.diglot.dropout_backward
        return Ours(lambda: backward(x, seed, 0, p, backend), SEED)
    return Ours(lambda: diglot.dropout(x, p, backend=backend))


for language in OURS:
    benchmark.provider(language)(functools.partial(_ours, language))


def _operands(case: Case, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The input; of a backward pass the gradient, and a mask of PyTorch's."""
    if case.direction != "backward":
        return tensors
    return *tensors, torch.rand(case.shape, device=tensors[0].device) >= case.options["p"]


def _torch_backward(grad: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return torch.ops.aten.native_dropout_backward(grad, mask, 1 / (1 - p))


def _formula(x: torch.Tensor, p: float) -> torch.Tensor:
    """The definition written out in eager PyTorch, a kernel per operation."""
    mask = torch.rand(x.shape, device=x.device) >= p
    return x * mask / (1 - p)


def _gradient(grad: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return grad * mask / (1 - p)


OF_TORCH: dict[str, Function] = {"forward": F.dropout, "backward": _torch_backward}
FORMULAS: dict[str, Function] = {"forward": _formula, "backward": _gradient}
benchmark.way("torch", OF_TORCH | {RECORDED: F.dropout}, code=[F.dropout])
benchmark.compiled(OF_TORCH)
benchmark.way("formula", FORMULAS)


@benchmark.peer("flag_gems", "flag_gems.ops")
def _flag_gems(ops: Any) -> dict[str, Function]:
    return {
        "forward": lambda x, p: ops.dropout(x, p)[0],
        "backward": lambda grad, mask, p: ops.dropout_backward(grad, mask, 1 / (1 - p)),
    }
