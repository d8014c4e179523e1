"""The norms as one function, their operands, and how their results are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from backends import DEVICE

import diglot
from diglot.reference.norm import Exact
from diglot.tools.accuracy import measure_error

PLAIN = ["layer_norm", "rms_norm"]
FUSED = ["add_layer_norm", "add_rms_norm"]
OPS = [*PLAIN, *FUSED]

# Which parameters there are, and whether they are of float32 or of the input's dtype.
PARAMETERS = {
    "none": ("", False),
    "weight": ("w", False),
    "bias": ("b", False),
    "both": ("wb", False),
    "float32 weight": ("w", True),
    "float32 both": ("wb", True),
}


def is_centered(op: str) -> bool:
    return "layer" in op


@dataclass
class Norm:
    """A call of a norm: its arguments, and whether what comes of it is right.

    Attributes:
        op: its name.
        arrays: the input, and the residual of a fused op.
        parameters: weight, bias: tensors or None; of an RMS norm the weight alone.
        dims: how many dimensions a row has.
        eps: a number.
    """

    op: str
    arrays: list[torch.Tensor]
    parameters: list[torch.Tensor | None] = field(default_factory=list)
    dims: int = 1
    eps: float = 1e-5

    @staticmethod
    def draw(
        op: str,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        parameters: str = "both",
        dims: int = 1,
        eps: float = 1e-5,
    ) -> Norm:
        names, is_wide = PARAMETERS[parameters]
        of = torch.float32 if is_wide and dtype != torch.float64 else dtype
        arrays = [_normal(shape, dtype) for _ in range(2 if op in FUSED else 1)]
        row = shape[len(shape) - dims :]
        made = [_normal(row, of) if name in names else None for name in "wb"]
        return Norm(op, arrays, made[: 1 + is_centered(op)], dims, eps)

    @property
    def row(self) -> torch.Size:
        return self.arrays[0].shape[self.arrays[0].dim() - self.dims :]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [*self.arrays, *(p for p in self.parameters if p is not None)]

    def require_grad(self) -> Norm:
        for tensor in self.tensors:
            tensor.requires_grad_()
        return self

    def __call__(self, backend: str) -> tuple[torch.Tensor, ...]:
        """The output, and the sum of a fused op."""
        named = dict(zip(("weight", "bias"), self.parameters, strict=False))
        function = getattr(diglot, self.op)
        result = function(*self.arrays, self.row, **named, eps=self.eps, backend=backend)
        return result if isinstance(result, tuple) else (result,)

    def call_on(self, backend: str) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The call as a function of `tensors`."""

        def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = iter(tensors)
            arrays = [next(given) for _ in self.arrays]
            parameters = [None if p is None else next(given) for p in self.parameters]
            return Norm(self.op, arrays, parameters, self.dims, self.eps)(backend)

        return function

    def theirs(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The same by PyTorch's functions; `tensors` stand for the call's own, if any."""
        given = iter(tensors or self.tensors)
        arrays = [next(given) for _ in self.arrays]
        parameters = [None if p is None else next(given) for p in self.parameters]
        x = arrays[0] if len(arrays) == 1 else arrays[0] + arrays[1]
        function = F.layer_norm if is_centered(self.op) else F.rms_norm
        out = function(x, self.row, *parameters, eps=self.eps)
        return (out,) if len(arrays) == 1 else (out, x)

    def written_out(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The same by the definition, whose derivatives are right to any order.

        PyTorch's layer_norm (2.13) takes mean and rstd for constants in its third derivatives, and
        in the forward-mode ones of its second.
        """
        given = iter(tensors or self.tensors)
        arrays = [next(given) for _ in self.arrays]
        weight, bias = (*(None if p is None else next(given) for p in self.parameters), None)[:2]
        x = arrays[0] if len(arrays) == 1 else arrays[0] + arrays[1]
        dims = tuple(range(-self.dims, 0))
        y = x - x.mean(dims, True) if is_centered(self.op) else x
        out = y * torch.rsqrt(y.square().mean(dims, True) + self.eps)
        out = out if weight is None else out * weight
        out = out if bias is None else out + bias
        return (out,) if len(arrays) == 1 else (out, x)

    def exact(self) -> Exact:
        """The float64 oracle: of a fused op, of the sum as it is rounded."""
        x = self.arrays[0] if len(self.arrays) == 1 else self.arrays[0] + self.arrays[1]
        weight, bias = (*self.parameters, None, None)[:2]
        return Exact(x.detach(), weight, bias, self.dims, self.eps, is_centered(self.op))

    def assert_right(self, results: Sequence[torch.Tensor]) -> None:
        """Of the outputs: every element, in its dtype and contiguous."""
        if self.op in FUSED:
            assert torch.equal(results[1], self.arrays[0] + self.arrays[1])
        for result in results:
            assert result.is_contiguous()
        error = measure_error(results[0].detach(), self.exact().output())
        assert error.failing == 0, error

    def assert_right_gradients(
        self,
        gradients: Sequence[torch.Tensor],
        grad_output: torch.Tensor,
        grad_sum: torch.Tensor | None = None,
    ) -> None:
        """Of the gradients of `tensors`."""
        expected = self.exact().gradients(grad_output, grad_sum)
        names = ["input"] * len(self.arrays) + [
            name
            for name, p in zip(("weight", "bias"), self.parameters, strict=False)
            if p is not None
        ]
        for name, gradient in zip(names, gradients, strict=True):
            error = measure_error(gradient, expected[name], output=name)
            assert error.failing == 0, error

    def check(self, backend: str) -> list[diglot.LastRun]:
        """Forward and backward, against the oracle; what ran."""
        self.require_grad()
        grads = [torch.randn_like(self.arrays[0]) for _ in self.arrays]
        with diglot.record_runs() as runs:
            results = self(backend)
            gradients = torch.autograd.grad(results, self.tensors, grads)
        self.assert_right(results)
        self.assert_right_gradients(gradients, *grads)
        return runs


def _normal(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tuple(shape), device=DEVICE).to(dtype)


def guarded(shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> tuple[Any, Any]:
    """An output that starts `offset` elements into memory filled with 77, and that memory."""
    memory = torch.full((math.prod(shape) + 64,), 77.0, device=DEVICE).to(dtype)
    return memory[offset : offset + math.prod(shape)].view(tuple(shape)), memory


def only_written(out: torch.Tensor, memory: torch.Tensor) -> bool:
    """Whether nothing around a guarded output was."""
    out.fill_(77)
    return bool((memory == 77).all())
