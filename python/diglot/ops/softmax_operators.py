"""The common part of the contracts of softmax and log_softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.batching import batch_first
from diglot.define.operator import Operator
from diglot.define.pair import DifferentiablePair
from diglot.ops.autocast import is_autocast_to_float32
from diglot.ops.checks import FLOATING, check_dim, check_dtype, check_tensor

HALVES = (torch.float16, torch.bfloat16)
REAL_DTYPES = (
    *FLOATING,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


class SoftmaxOperators:
    """`diglot::<name>` and `diglot::<name>_backward`, of a function of rows.

    Args:
        name: of the op and its launchers.
        slope: as `DifferentiablePair` takes it, without the dtype among the options.
        tangent: from a direction, the output and the dimension, the derivative of the output along
            the direction, in PyTorch's operators. None if the derivative is symmetric: it is then
            the backward pass.
    """

    def __init__(
        self,
        name: str,
        slope: Callable[..., torch.Tensor],
        tangent: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        self.name = name
        forward_name, backward_name = f"{name}_forward", f"{name}_backward"

        # Direct calls pass both dispatches without a call of PyTorch.
        def positive(dim: int, tensor: torch.Tensor) -> int:
            return dim if 0 <= dim < tensor.dim() else check_dim(name, dim, tensor)

        def empty_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            if dtype is tensor.dtype:
                return torch.empty_like(tensor)
            return torch.empty_like(tensor, dtype=dtype)

        def forward(
            input: torch.Tensor, dim: int, dtype: torch.dtype, backend: str
        ) -> torch.Tensor:
            out = empty_like(input, dtype)
            run(backend, name, forward_name, input, positive(dim, input), out)
            return out

        def backward(
            grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, backend: str
        ) -> torch.Tensor:
            out = empty_like(output, dtype)
            run(backend, name, backward_name, grad, output, positive(dim, output), out)
            return out

        def along(
            direction: torch.Tensor,
            output: torch.Tensor,
            dim: int,
            dtype: torch.dtype,
            backend: str,
        ) -> torch.Tensor:
            direction = direction.to(output.dtype)
            if tangent is not None:
                return tangent(direction, output, dim)
            return self._pair.backward(direction, output, dim, output.dtype, backend)

        self._pair = DifferentiablePair(
            f"{name}(Tensor input, int dim, ScalarType dtype, str backend) -> (Tensor output)",
            f"{name}_backward(Tensor grad_output, Tensor output, int dim, ScalarType dtype, "
            "str backend) -> Tensor",
            forward=forward,
            fake=lambda input, dim, dtype, backend: torch.empty_like(input, dtype=dtype),
            backward=backward,
            fake_backward=lambda grad, y, dim, dtype, backend: torch.empty_like(y, dtype=dtype),
            options=lambda inputs: (inputs[1], inputs[0].dtype, inputs[3]),
            tangent=along,
            slope=lambda g, y, d, dim, dtype, transposed: slope(g, y, d, dim, transposed),
            vmap=_batch,
            check=self._check,
        )

    def __call__(
        self, input: torch.Tensor, dim: int, dtype: torch.dtype | None, backend: str | None
    ) -> torch.Tensor:
        """Checks arguments and calls the op, as `diglot.softmax` says."""
        kind = self._pair.known(input) or self._pair.learn(input)
        dim = check_dim(self.name, dim, input)
        if dtype is None:
            dtype = kind.facts
            if dtype not in FLOATING:
                check_dtype(self.name, "input", input, FLOATING)
        elif dtype is not input.dtype:
            if dtype not in FLOATING:
                raise TypeError(
                    f"{self.name}: dtype must be None, float32, float16, bfloat16 or float64, "
                    f"not {dtype!r}"
                )
            check_dtype(self.name, "input", input, REAL_DTYPES)
            if not (dtype is torch.float32 and input.dtype in HALVES):
                input = input.to(dtype)
                kind = self._pair.known(input) or self._pair.learn(input)
        elif dtype not in FLOATING:
            check_dtype(self.name, "input", input, FLOATING)
        return kind.call(input, dim, dtype, choose(self.name, kind.device, backend))

    def _check(self, input: torch.Tensor) -> torch.dtype:
        """The default dtype of the result."""
        check_tensor(self.name, "input", input)
        return torch.float32 if is_autocast_to_float32(input) else input.dtype


def _batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """The batching rule, forward and backward."""
    *arrays, dim, dtype, backend = args
    arrays = batch_first(info, in_dims, arrays)
    rank = arrays[0].dim() - 1
    if rank == 0:  # numbers, each of them a row
        arrays = [array.unsqueeze(1) for array in arrays]
        return operator(*arrays, 1, dtype, backend).squeeze(1), 0
    return operator(*arrays, dim % rank + 1, dtype, backend), 0
