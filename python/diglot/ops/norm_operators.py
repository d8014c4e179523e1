"""What the contracts of the norms of rows share: operators and derivatives.

A norm is one of the last dimensions of its input, a row: the layer norm, which subtracts a row's
mean and has a weight and a bias, or the RMS norm, which does not and has a weight. Each is a
function of an input, or of an input and a residual that are added first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.batching import batch_at, batch_first, one_by_one
from diglot.define.operator import Operator
from diglot.ops.add import add
from diglot.ops.autocast import autocast_to_float32, is_autocast_to_float32
from diglot.ops.checks import FLOATING, check_dtype, check_tensor
from diglot.ops.global_memory import compute_dtype
from diglot.ops.norm_checks import check_parameters, check_residual, check_shape
from diglot.ops.numbers import check_number, fixed
from diglot.reference.norm import Normalized, wide

Tensors = tuple[Tensor, ...]


class Forward(NamedTuple):
    """What a norm is given.

    Attributes:
        arrays: the input, (*outer, *row), and the residual that is added first if there is one.
        parameters: weight and bias, or weight, (*row); None for one that is not given.
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


class Backward(NamedTuple):
    """What a norm's backward pass is given.

    Attributes:
        grad_output, grad_sum: gradients of the outputs, of the shape and dtype of `input`; None for
            that of a sum that has none.
        input: of the forward pass, or its sum.
        statistics: (fields, *outer).
        eps, backend: of the forward pass.
        weight: of the forward pass.
        weight_dtype, bias_dtype: of the parameter; None where its gradient is not asked for.
    """

    grad_output: Tensor
    grad_sum: Tensor | None
    input: Tensor
    statistics: Tensor
    eps: float
    backend: str
    weight: Tensor | None = None
    weight_dtype: torch.dtype | None = None
    bias_dtype: torch.dtype | None = None

    @property
    def rank(self) -> int:
        """How many dimensions are not of a row."""
        return self.statistics.dim() - 1


class NormOperators:
    """`diglot::<name>`, `diglot::add_<name>` and `diglot::<name>_backward`, the backward pass of
    both.

    Args:
        name: "layer_norm" or "rms_norm".
        centered: whether it is the former.
    """

    def __init__(self, name: str, centered: bool) -> None:
        self.name, self.centered = name, centered
        self.parameters = ("weight", "bias") if centered else ("weight",)
        # The statistics of a row: mean and 1/sqrt(variance + eps), or the latter of the mean
        # square.
        self.fields = 2 if centered else 1
        self.launchers = {each: f"{each}_forward" for each in (name, f"add_{name}")}
        self.forward = self._define(("input",))
        self.forward_of_sum = self._define(("input", "residual"))
        self.backward = self._define_backward()

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
            parameters: weight and bias, or weight; None for one that is not.
            eps: added to the variance or the mean square.
            backend: as given.

        Returns:
            The output, or the output and the sum.
        """
        is_fused = len(arrays) == 2
        operator = self.forward_of_sum if is_fused else self.forward
        name = operator.signature.name
        given = [p for p in parameters if p is not None]
        # What a kind says of tensors is checked once for each kind, their sizes in every call.
        kind = operator.known(*arrays, *given)
        if kind is None:
            self._check_tensors(name, arrays, parameters)
        input = arrays[0]
        row = check_shape(name, normalized_shape, input)
        if is_fused and (kind is None or arrays[1].shape != input.shape):
            check_residual(name, input, arrays[1])
        if type(eps) is not float:
            eps = float(fixed(check_number(name, "eps", eps)))
        if is_autocast_to_float32(input) if kind is None else kind.facts:
            # As the two ops do one after the other, of which PyTorch runs the norm in float32.
            total = add(*arrays, backend=backend) if is_fused else input
            widened = tuple([None if p is None else autocast_to_float32(p) for p in parameters])
            out = self((autocast_to_float32(total),), normalized_shape, widened, eps, backend)
            return (out, total) if is_fused else out
        for parameter in given:
            if kind is None or parameter.shape != row:
                check_parameters(name, input, row, parameters)
                break
        if kind is None:
            kind = operator.learn_checked(is_autocast_to_float32(input), *arrays, *given)
        dims, chosen = len(row), choose(name, kind.device, backend)
        if kind.is_direct and not kind.is_recorded:  # nobody asks for statistics
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

    def _run(self, name: str, given: Forward, statistics: Tensor | None) -> Tensors:
        """Allocates and writes the output, and the sum of two arrays.

        Args:
            name: the operator's.
            given: its arguments.
            statistics: written too; None if nobody asks for them.
        """
        arrays, parameters, dims, eps, backend = given
        is_dense = dims == 1
        for tensor in (*arrays, *parameters):
            if tensor is not None and not tensor.is_contiguous():
                is_dense = False
        results = tuple(map(torch.empty_like if is_dense else _contiguous_like, arrays))
        if arrays[0].numel() == 0:
            if statistics is not None:
                statistics.fill_(torch.nan)
            return results
        rows, vectors, written = arrays, parameters, results
        if not is_dense:
            rank = arrays[0].dim() - dims
            rows = tuple([_as_rows(array, rank) for array in arrays])
            vectors = tuple([_as_rows(parameter, 0) for parameter in parameters])
            written = tuple([_as_rows(result, rank) for result in results])
        eps = eps if type(eps) is float else fixed(eps)
        launcher = self.launchers[name]
        run(backend, name, launcher, *rows, *vectors, eps, statistics, *written[::-1])
        return results

    def _statistics_of(self, given: Forward) -> Tensor:
        input = given.arrays[0]
        outer = tuple(input.shape)[: input.dim() - given.dims]
        # Sizes one by one: PyTorch parses them faster than a tuple.
        dtype = compute_dtype(input.dtype)
        return torch.empty(self.fields, *outer, dtype=dtype, device=input.device)

    def _define(self, arrays: tuple[str, ...]) -> Operator:
        """The op of an input, or of the sum of two arrays."""
        is_fused = len(arrays) == 2
        name = f"add_{self.name}" if is_fused else self.name
        names, read = (*arrays, *self.parameters), READ[name]

        def fake(*args: Any) -> Tensors:
            given = read(*args)
            made = [_contiguous_like(array) for array in given.arrays]
            return (*made, self._statistics_of(given))

        def forward(*args: Any) -> Tensors:
            given = read(*args)
            statistics = self._statistics_of(given)
            return (*self._run(name, given, statistics), statistics)

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
            given = (grad_output, grad_sum, *ctx.saved_tensors)
            of_input, *made = self.backward(*given, *dtypes, ctx.eps, ctx.backend)
            by_parameters = [g if d else None for g, d in zip(made, dtypes, strict=True)]
            return (*[of_input for _ in arrays], *by_parameters)

        def tangents(ctx: Any, *directions: Any) -> Any:
            input, _, weight = ctx.saved_tensors
            by: dict[str, Any] = dict(zip(names, directions, strict=False))
            rows = Normalized.of(input, ctx.dims, ctx.eps, self.centered)
            summed = [wide(by[which]) for which in arrays if by[which] is not None]
            along = _total(summed, wide(input))
            parts = []
            if summed:
                projected = rows.project(along)
                parts.append(projected if weight is None else projected * weight)
            if by["weight"] is not None:
                parts.append(by["weight"] * rows.values)
            if by.get("bias") is not None:
                parts.append(wide(by["bias"]).expand_as(rows.values))
            of_output = _total(parts, input)
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

    def _define_backward(self) -> Operator:
        """The gradients of the input and of each parameter whose dtype is given.

        Its derivatives are made of PyTorch's operators. The statistics are those of the input,
        whose derivatives hold theirs, and they have none.
        """
        name = f"{self.name}_backward"
        tensors = ("grad_output", "grad_sum", "input", "statistics", "weight")
        dtypes = [f"{which}_dtype" for which in self.parameters]
        names = (*tensors, *dtypes, "eps", "backend")

        def read(args: tuple[Any, ...]) -> Backward:
            return Backward(**dict(zip(names, args, strict=True)))

        def dtypes_of(given: Backward) -> list[torch.dtype | None]:
            return [getattr(given, which) for which in dtypes]

        def fake(*args: Any) -> Tensors:
            given = read(args)
            input, row = given.input, given.input.shape[given.rank :]
            return (
                _contiguous_like(input),
                *[input.new_empty(row if d else (0,), dtype=d) for d in dtypes_of(given)],
            )

        def forward(*args: Any) -> Tensors:
            given = read(args)
            input, rank = given.input, given.rank
            for which in ("grad_output", "grad_sum"):
                grad = getattr(given, which)
                if grad is not None and (grad.shape != input.shape or grad.dtype != input.dtype):
                    raise ValueError(
                        f"{name}: {which} must have the shape and dtype of input, "
                        f"{tuple(input.shape)} and {input.dtype}, not {tuple(grad.shape)} and "
                        f"{grad.dtype}"
                    )
            grad_input, *made = results = fake(*args)
            if input.numel() == 0:
                for gradient in made:
                    gradient.zero_()
                return results
            asked = [g if d else None for g, d in zip(made, dtypes_of(given), strict=True)]
            rows = [_as_rows(t, rank) for t in (given.grad_output, given.grad_sum, input)]
            vectors = [_as_rows(vector, 0) for vector in (given.weight, *asked)]
            statistics = given.statistics.contiguous()  # torch.vmap moves their dimensions
            run(
                given.backend,
                self.name,
                name,
                *rows,
                statistics,
                *vectors,
                _as_rows(grad_input, rank),
            )
            return results

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> list[Any]:
            given = read(inputs)
            ctx.has_sum, ctx.dims = given.grad_sum is not None, given.input.dim() - given.rank
            ctx.dtypes, ctx.eps = dtypes_of(given), given.eps
            return [given.grad_output, given.input, given.weight]

        def parts_of(ctx: Any) -> tuple[Any, ...]:
            grad_output, input, weight = ctx.saved_tensors
            rows = Normalized.of(input, ctx.dims, ctx.eps, self.centered)
            g = wide(grad_output)
            return rows, g, g if weight is None else g * weight, weight

        def gradients(ctx: Any, along: Any, *by_parameters: Any) -> tuple[Any, ...]:
            rows, g, scaled, weight = parts_of(ctx)
            input, of_weight = ctx.saved_tensors[1], None
            given = [p if d else None for p, d in zip(by_parameters, ctx.dtypes, strict=True)]
            by: dict[str, Any] = dict(zip(self.parameters, given, strict=True))
            to_grad, to_input = [], []
            if along is not None:
                projected = rows.project(wide(along))
                to_input.append(rows.bend(scaled, wide(along)))
                to_grad.append(projected if weight is None else projected * weight)
                if weight is not None:
                    of_weight = rows.sum_rows(g * projected).to(weight.dtype)
            if by["weight"] is not None:
                to_grad.append(by["weight"] * rows.values)
                to_input.append(rows.project(by["weight"] * g))
            if by.get("bias") is not None:
                to_grad.append(wide(by["bias"]).expand_as(g))
            return (
                _total(to_grad, input),
                along if ctx.has_sum else None,
                _total(to_input, input),
                None,
                of_weight,
            )

        def tangents(ctx: Any, *directions: Any) -> Tensors:
            rows, g, scaled, weight = parts_of(ctx)
            input = ctx.saved_tensors[1]
            by: dict[str, Any] = dict(zip(tensors, directions, strict=True))
            by_grad, by_input = by["grad_output"], by["input"]
            to_input, to_weight, to_bias, to_scaled = [], [], [], []
            if by_grad is not None:
                to_scaled.append(wide(by_grad) if weight is None else wide(by_grad) * weight)
                to_weight.append(rows.sum_rows(by_grad * rows.values))
                to_bias.append(rows.sum_rows(wide(by_grad)))
            if by["weight"] is not None:
                to_scaled.append(g * by["weight"])
            if to_scaled:
                to_input.append(rows.project(sum(to_scaled)))
            if by["grad_sum"] is not None:
                to_input.append(wide(by["grad_sum"]))
            if by_input is not None:
                to_input.append(rows.bend(scaled, wide(by_input)))
                to_weight.append(rows.sum_rows(g * rows.project(wide(by_input))))
            row = input.shape[input.dim() - ctx.dims :]
            of_parameters = [
                _total(parts, input.new_empty(row, dtype=dtype)) if dtype else input.new_zeros((0,))
                for parts, dtype in zip((to_weight, to_bias), ctx.dtypes, strict=False)
            ]
            return _total(to_input, input), *of_parameters

        def batch(operator: Operator, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            given, dims = read(args), dict(zip(names, in_dims, strict=True))
            if dims["weight"] is not None or any(dtypes_of(given)):
                return one_by_one(operator, info, in_dims, *args)
            first = batch_first(info, in_dims, (given.grad_output, given.grad_sum, given.input))
            statistics = batch_at(1, info, dims["statistics"], given.statistics)
            results = operator(*first, statistics, *args[4:])
            return results, (0, *[None for _ in self.parameters])

        options = ", ".join(f"ScalarType? {which}" for which in dtypes)
        return Operator(
            f"{name}(Tensor grad_output, Tensor? grad_sum, Tensor input, Tensor statistics, "
            f"Tensor? weight, {options}, float eps, str backend) -> "
            f"({', '.join(['Tensor'] * (1 + len(dtypes)))})",
            forward=forward,
            fake=fake,
            save=save,
            backward=gradients,
            jvp=tangents,
            vmap=batch,
        )


def _contiguous_like(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _as_rows(tensor: Any, rank: int) -> Any:
    """The dimensions from `rank` on as one, of unit stride: a view where there is one."""
    if tensor is None:
        return None
    if tensor.dim() > rank + 1:
        tensor = tensor.flatten(rank)
    if tensor.is_contiguous() or tensor.stride(-1) == 1:
        return tensor
    # Of a dimension of one element the stride says nothing, and may be anything.
    return tensor.contiguous() if tensor.shape[-1] != 1 else tensor


def _total(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of tensors, of the dtype of `like`; without any, zeros like it."""
    return sum(parts[1:], parts[0]).to(like.dtype) if parts else torch.zeros_like(like)
