"""The common part of the norms' contracts: operators and derivatives.

A norm works on the last dimensions of its input, a row. The layer norm subtracts a row's mean, and
has a weight and a bias. The RMS norm subtracts nothing, and has only a weight. Each is a function
of an input, or of the sum of an input and a residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.batching import batch_first, one_by_one
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.autocast import autocast_to_float32, is_autocast_to_float32
from diglot.ops.checks import FLOATING, check_dtype, check_tensor
from diglot.ops.global_memory import compute_dtype
from diglot.ops.norm_backward import define_backward
from diglot.ops.norm_checks import check_parameters, check_residual, check_shape
from diglot.ops.norm_rows import Tensors, as_rows, contiguous_like, sum_like
from diglot.ops.numbers import check_number, fixed
from diglot.reference.norm import Normalized, wide


class Forward(NamedTuple):
    """The arguments of a norm.

    Attributes:
        arrays: the input, (*outer, *row), and the residual that is added first if there is one.
        parameters: weight and bias, or weight, (*row); None for a missing one.
        dims: how many dimensions a row has.
        eps: added to the variance or the mean square.
        backend: already chosen.
    """

    arrays: Tensors
    parameters: tuple[Tensor | None, ...]
    dims: int
    eps: float
    backend: str


# From the arguments of each operator.
READ: dict[str, Callable[..., Forward]] = {
    "layer_norm": lambda input, weight, bias, dims, eps, backend: Forward(
        (input,), (weight, bias), dims, eps, backend
    ),
    "rms_norm": lambda input, weight, dims, eps, backend: Forward(
        (input,), (weight,), dims, eps, backend
    ),
    "add_layer_norm": lambda input, residual, weight, bias, dims, eps, backend: Forward(
        (input, residual), (weight, bias), dims, eps, backend
    ),
    "add_rms_norm": lambda input, residual, weight, dims, eps, backend: Forward(
        (input, residual), (weight,), dims, eps, backend
    ),
}


class NormOperators:
    """The operators `diglot::<name>` and `diglot::add_<name>`, and the backward pass of both,
    `diglot::<name>_backward`.

    Args:
        name: "layer_norm" or "rms_norm".
        centered: whether it is "layer_norm".
    """

    def __init__(self, name: str, centered: bool) -> None:
        self.name, self.centered = name, centered
        self.parameters = ("weight", "bias") if centered else ("weight",)
        # The statistics of a row: mean and 1/sqrt(variance + eps), or only 1/sqrt(mean square +
        # eps).
        self.fields = 2 if centered else 1
        self.launchers = {each: f"{each}_forward" for each in (name, f"add_{name}")}
        self.forward = self._define(("input",))
        self.forward_of_sum = self._define(("input", "residual"))
        self.backward = define_backward(name, self.parameters, centered)

    def __call__(
        self,
        arrays: tuple[Any, ...],
        normalized_shape: Any,
        parameters: tuple[Any, ...],
        eps: Any,
        backend: str | None,
    ) -> Any:
        """Checks arguments and calls the op, as `diglot.layer_norm` and the others say.

        Args:
            arrays: the input, and the residual if there is one.
            normalized_shape: of a row.
            parameters: weight and bias, or weight; None for a missing one.
            eps: added to the variance or the mean square.
            backend: as given.

        Returns:
            The output, or the output and the sum.
        """
        is_fused = len(arrays) == 2
        operator = self.forward_of_sum if is_fused else self.forward
        name = operator.signature.name
        present = [p for p in parameters if p is not None]
        # The facts of a kind are checked once for each kind, sizes in every call.
        kind = operator.known(*arrays, *present)
        if kind is None:
            self._check_tensors(name, arrays, parameters)
        input = arrays[0]
        row = check_shape(name, normalized_shape, input)
        if is_fused and (kind is None or arrays[1].shape != input.shape):
            check_residual(name, input, arrays[1])
        if type(eps) is not float:
            eps = float(fixed(check_number(name, "eps", eps)))
        if (
            any([is_autocast_to_float32(tensor) for tensor in (input, *present)])
            if kind is None
            else kind.facts
        ):
            if kind is None:
                operator.learn_checked(True, *arrays, *present)
            # As with two separate ops: PyTorch would run the norm in float32.
            total = add(*arrays, backend=backend) if is_fused else input
            widened = tuple([None if p is None else autocast_to_float32(p) for p in parameters])
            out = self((autocast_to_float32(total),), normalized_shape, widened, eps, backend)
            return (out, total) if is_fused else out
        for parameter in present:
            if kind is None or parameter.shape != row:
                check_parameters(name, input, row, parameters)
                break
        if kind is None:
            kind = operator.learn_checked(False, *arrays, *present)
        dims, chosen = len(row), choose(name, kind.device, backend)
        if kind.is_direct and not kind.is_recorded:  # statistics are not needed
            results = self._run(name, Forward(arrays, parameters, dims, eps, chosen), None)
            return results if is_fused else results[0]
        results = kind.call(*arrays, *parameters, dims, eps, chosen)
        if kind.is_direct:
            return results
        return results[:2] if is_fused else results[0]

    def _check_tensors(self, name: str, arrays: Sequence[Any], parameters: Sequence[Any]) -> None:
        for which, tensor in zip(("input", "residual"), arrays, strict=False):
            check_tensor(name, which, tensor)
        check_dtype(name, "input", arrays[0], FLOATING)
        for which, tensor in zip(self.parameters, parameters, strict=True):
            if tensor is not None:
                check_tensor(name, which, tensor)

    def _run(self, name: str, call: Forward, statistics: Tensor | None) -> Tensors:
        """Allocates and writes the output, and the sum of two arrays.

        Args:
            name: the operator's.
            call: its arguments.
            statistics: written too; None if they are not needed.
        """
        arrays, parameters, dims, eps, backend = call
        is_dense = dims == 1
        for tensor in (*arrays, *parameters):
            if tensor is not None and not tensor.is_contiguous():
                is_dense = False
        results = tuple(map(torch.empty_like if is_dense else contiguous_like, arrays))
        if arrays[0].numel() == 0:
            if statistics is not None:
                statistics.fill_(torch.nan)
            return results
        rows, vectors, written = arrays, parameters, results
        if not is_dense:
            rank = arrays[0].dim() - dims
            rows = tuple([as_rows(array, rank) for array in arrays])
            vectors = tuple([as_rows(parameter, 0) for parameter in parameters])
            written = tuple([as_rows(result, rank) for result in results])
        eps = eps if type(eps) is float else fixed(eps)
        launcher = self.launchers[name]
        run(backend, name, launcher, *rows, *vectors, eps, statistics, *written[::-1])
        return results

    def _statistics_of(self, call: Forward) -> Tensor:
        input = call.arrays[0]
        outer = tuple(input.shape)[: input.dim() - call.dims]
        # Sizes one by one: PyTorch parses them faster than a tuple.
        dtype = compute_dtype(input.dtype)
        return torch.empty(self.fields, *outer, dtype=dtype, device=input.device)

    def _define(self, arrays: tuple[str, ...]) -> Operator:
        """The op of an input, or of the sum of two arrays."""
        is_fused = len(arrays) == 2
        name = f"add_{self.name}" if is_fused else self.name
        names, read = (*arrays, *self.parameters), READ[name]

        def fake(*args: Any) -> Tensors:
            call = read(*args)
            made = [contiguous_like(array) for array in call.arrays]
            return (*made, self._statistics_of(call))

        def forward(*args: Any) -> Tensors:
            call = read(*args)
            statistics = self._statistics_of(call)
            return (*self._run(name, call, statistics), statistics)

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> tuple[Any, ...]:
            *tensors, ctx.dims, ctx.eps, ctx.backend = inputs
            parameters = tensors[len(arrays) :]
            ctx.dtypes = [None if p is None else p.dtype for p in parameters]
            return output[1] if is_fused else inputs[0], output[-1], parameters[0]

        def gradients(ctx: Any, grad_output: Any, grad_sum: Any = None) -> tuple[Any, ...]:
            if grad_output is None:
                return (*[grad_sum for _ in arrays], *[None for _ in self.parameters])
            asked = zip(ctx.dtypes, ctx.needs_input_grad[len(arrays) :], strict=False)
            dtypes = [dtype if is_asked else None for dtype, is_asked in asked]
            operands = (grad_output, grad_sum, *ctx.saved_tensors)
            of_input, *made = self.backward(*operands, *dtypes, ctx.eps, ctx.backend)
            by_parameters = [g if d else None for g, d in zip(made, dtypes, strict=True)]
            return (*[of_input for _ in arrays], *by_parameters)

        def tangents(ctx: Any, *directions: Any) -> Any:
            input, _, weight = ctx.saved_tensors
            by: dict[str, Any] = dict(zip(names, directions, strict=False))
            rows = Normalized.compute(input, ctx.dims, ctx.eps, self.centered)
            summed = [wide(by[which]) for which in arrays if by[which] is not None]
            along = sum_like(summed, wide(input))
            parts = []
            if summed:
                projected = rows.project(along)
                parts.append(projected if weight is None else projected * weight)
            if by["weight"] is not None:
                parts.append(by["weight"] * rows.values)
            if by.get("bias") is not None:
                parts.append(wide(by["bias"]).expand_as(rows.values))
            of_output = sum_like(parts, input)
            return (of_output, along.to(input.dtype)) if is_fused else of_output

        def batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            count = len(arrays)
            if any(dim is not None for dim in in_dims[count : operator.signature.tensors]):
                return one_by_one(operator, info, in_dims, *args)
            results = operator(*batch_first(info, in_dims, args[:count]), *args[count:])
            return results, (*[0 for _ in arrays], 1)

        tensors = [f"Tensor {which}" for which in arrays]
        tensors += [f"Tensor? {which}" for which in self.parameters]
        returns = "Tensor, Tensor sum" if is_fused else "Tensor"
        return Operator(
            f"{name}({', '.join(tensors)}, int dims, float eps, str backend) -> "
            f"({returns}, Tensor statistics)",
            forward=forward,
            fake=fake,
            save=save,
            backward=gradients,
            jvp=tangents,
            vmap=batch,
        )
