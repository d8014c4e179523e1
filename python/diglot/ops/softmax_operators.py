"""What the contracts of softmax and log_softmax share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.checks import check_dim, check_dtype, check_tensor
from diglot.ops.linear_backward import LinearBackward, Tensors
from diglot.ops.operator import is_direct

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
REAL_DTYPES = (
    *DTYPES,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


class SoftmaxOperators:
    """The operators `diglot::<name>` and `diglot::<name>_backward` of a function of rows.

    Args:
        name: of the op and its launchers.
        tangent: from a direction, the output, the dimension and the dtype, the derivative of the
            output along it, in PyTorch's operators; None where the derivative is symmetric, so that
            the backward pass is it.
        slope: as `LinearBackward` takes it.
    """

    def __init__(
        self,
        name: str,
        tangent: Callable[..., torch.Tensor] | None,
        slope: Callable[..., torch.Tensor],
    ) -> None:
        self.name = name

        def forward(
            input: torch.Tensor, dim: int, dtype: torch.dtype, backend: str
        ) -> torch.Tensor:
            out = torch.empty_like(input, dtype=dtype)
            dim = check_dim(name, dim, input)
            run(backend, name, f"{name}_forward", input, dim, out)
            return out

        def backward(
            grad_output: torch.Tensor,
            output: torch.Tensor,
            dim: int,
            dtype: torch.dtype,
            backend: str,
        ) -> torch.Tensor:
            if grad_output.shape != output.shape or grad_output.dtype != output.dtype:
                raise ValueError(
                    f"{name}_backward: grad_output must have the shape and dtype of output, "
                    f"{tuple(output.shape)} and {output.dtype}, not {tuple(grad_output.shape)} and "
                    f"{grad_output.dtype}"
                )
            out = torch.empty_like(output, dtype=dtype)
            dim = check_dim(name, dim, output)
            run(backend, name, f"{name}_backward", grad_output, output, dim, out)
            return out

        def own_tangent(
            direction: torch.Tensor,
            output: torch.Tensor,
            dim: int,
            dtype: torch.dtype,
            backend: str,
        ) -> torch.Tensor:
            direction = direction.to(output.dtype)
            if tangent is not None:
                return tangent(direction, output, dim)
            return self._pair.call_backward(direction, output, dim, output.dtype, backend)

        arguments = "int dim, ScalarType dtype, str backend) -> Tensor"
        self._pair = LinearBackward(
            f"{name}(Tensor input, {arguments}",
            f"{name}_backward(Tensor grad_output, Tensor output, {arguments}",
            forward=forward,
            fake=_like_input,
            backward=backward,
            backward_fake=_like_output,
            save=_save,
            tangent=own_tangent,
            slope=lambda g, y, d, dim, dtype, transposed: slope(g, y, d, dim, transposed),
            vmap=self._batch,
            backward_vmap=self._batch_backward,
        )

    def __call__(
        self, input: torch.Tensor, dim: int, dtype: torch.dtype | None, backend: str | None
    ) -> torch.Tensor:
        """Checks arguments and calls the op, as `diglot.softmax` says."""
        direct = is_direct(input)
        if not direct:
            check_tensor(self.name, "input", input)
        dim = check_dim(self.name, dim, input)
        if dtype is None:
            if input.dtype not in DTYPES:
                check_dtype(self.name, "input", input, DTYPES)
            dtype = input.dtype
            if dtype in HALVES and not input.is_meta:
                if torch.is_autocast_enabled(input.device.type):
                    dtype = torch.float32
        elif dtype is not input.dtype:
            if dtype not in DTYPES:
                raise TypeError(
                    f"{self.name}: dtype must be None, float32, float16, bfloat16 or float64, "
                    f"not {dtype!r}"
                )
            check_dtype(self.name, "input", input, REAL_DTYPES)
            if not (dtype is torch.float32 and input.dtype in HALVES):
                input = input.to(dtype)
                direct = is_direct(input)
        elif dtype not in DTYPES:
            check_dtype(self.name, "input", input, DTYPES)
        chosen = choose(self.name, input.device, backend)
        if not direct:
            return self._pair.forward.indirect(input, dim, dtype, chosen)
        return self._pair.forward.direct(input.requires_grad, input, dim, dtype, chosen)

    def _batch(
        self,
        info: Any,
        in_dims: tuple[Any, ...],
        input: torch.Tensor,
        dim: int,
        dtype: torch.dtype,
        backend: str,
    ) -> Any:
        batch = in_dims[0]
        if input.dim() == 1:  # of numbers, each a row of its own
            result = self._pair.forward(input.requires_grad, input.unsqueeze(1), 1, dtype, backend)
            return result.squeeze(1), 0
        dim %= input.dim() - 1
        dim += dim >= batch
        return self._pair.forward(input.requires_grad, input, dim, dtype, backend), batch

    def _batch_backward(
        self,
        info: Any,
        in_dims: tuple[Any, ...],
        grad_output: torch.Tensor,
        output: torch.Tensor,
        dim: int,
        dtype: torch.dtype,
        backend: str,
    ) -> Any:
        grad_output, output = (
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((grad_output, output), in_dims[:2], strict=True)
        )
        if output.dim() == 1:
            both = grad_output.unsqueeze(1), output.unsqueeze(1)
            return self._pair.call_backward(*both, 1, dtype, backend).squeeze(1), 0
        dim = dim % (output.dim() - 1) + 1
        return self._pair.call_backward(grad_output, output, dim, dtype, backend), 0


def _like_input(input: torch.Tensor, dim: int, dtype: torch.dtype, backend: str) -> torch.Tensor:
    return torch.empty_like(input, dtype=dtype)


def _like_output(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    return torch.empty_like(output, dtype=dtype)


def _save(inputs: tuple[Any, ...], output: torch.Tensor) -> tuple[Tensors, tuple[Any, ...]]:
    input, dim, _, _ = inputs
    return (output,), (dim, input.dtype)
