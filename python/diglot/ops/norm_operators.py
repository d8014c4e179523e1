"""What the contracts of the norms of rows share: operators, derivatives, checks.

A norm is one of the last dimensions of its input, a row: the layer norm, which subtracts a row's
mean and has a weight and a bias, or the RMS norm, which does not and has a weight. Each is a
function of an input, or of an input and a residual that are added first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.ops.add import add
from diglot.ops.autocast import autocast_to_float32
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.global_memory import compute_dtype
from diglot.ops.numbers import check_number, fixed
from diglot.ops.operator import Operator, is_direct
from diglot.reference.norm import Normalized, wide

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HALVES = (torch.float16, torch.bfloat16)

Tensors = tuple[torch.Tensor, ...]


class NormOperators:
    """`diglot::<name>`, `diglot::add_<name>` and `diglot::<name>_backward`, the backward pass of
    both.

    Args:
        name: "layer_norm" or "rms_norm".
        centered: whether it is the former.
    """

    def __init__(self, name: str, centered: bool) -> None:
        self.name, self.centered = name, centered
        # The mean and 1/sqrt(variance + eps) of a row, or the latter of its mean square. The
        # parameters, weight and bias or weight, are as many.
        self.fields = 2 if centered else 1
        self.forward = self._define(arrays=1)
        self.forward_of_sum = self._define(arrays=2)
        self.backward = self._define_backward()

    def __call__(
        self,
        arrays: tuple[Any, ...],
        normalized_shape: Any,
        parameters: tuple[Any, ...],
        eps: Any,
        backend: str | None,
    ) -> Tensors:
        """Checks arguments and calls the op, as `diglot.layer_norm` and the others say.

        Args:
            arrays: the input, and the residual if there is one.
            normalized_shape: of a row.
            parameters: weight and bias, or weight; None for one that is not.
            eps: added to the variance or the mean square.
            backend: as given.

        Returns:
            The operator's outputs.
        """
        operator = self.forward if len(arrays) == 1 else self.forward_of_sum
        name = self.name if len(arrays) == 1 else f"add_{self.name}"
        given = [p for p in parameters if p is not None]
        direct = is_direct(*arrays, *given)
        if not direct:
            for which, tensor in zip(("input", "residual"), arrays, strict=False):
                check_tensor(name, which, tensor)
            for which, tensor in zip(("weight", "bias"), parameters, strict=False):
                if tensor is not None:
                    check_tensor(name, which, tensor)
        input = arrays[0]
        dims = _check_shape(name, normalized_shape, input)
        if input.dtype not in DTYPES:
            check_dtype(name, "input", input, DTYPES)
        if len(arrays) == 2:
            _check_residual(name, input, arrays[1])
        if type(eps) is not float:
            eps = float(fixed(check_number(name, "eps", eps)))
        if input.dtype in HALVES and autocast_to_float32(input) is not input:
            # As the two ops do one after the other, of which PyTorch runs the norm in float32.
            sums = (input,) if len(arrays) == 1 else (add(*arrays, backend=backend),)
            widened = [None if p is None else autocast_to_float32(p) for p in parameters]
            outputs = self(
                (autocast_to_float32(sums[0]),), normalized_shape, tuple(widened), eps, backend
            )
            return outputs if len(arrays) == 1 else (outputs[0], *sums)
        shape, device = input.shape[-dims:], input.device
        for p in given:  # the checks are inline while they pass
            if p.shape != shape or p.dtype is not input.dtype or p.device != device:
                _check_parameters(name, input, shape, parameters)
                break
        chosen = choose(name, input.device, backend)
        if not direct:
            return operator.indirect(*arrays, *parameters, dims, eps, chosen)
        if torch.is_grad_enabled() and any([t.requires_grad for t in (*arrays, *given)]):
            return operator.recorded(*arrays, *parameters, dims, eps, chosen)
        return self._run(None, arrays, parameters, dims, eps, chosen)

    def _run(
        self,
        statistics: torch.Tensor | None,
        arrays: tuple[torch.Tensor, ...],
        parameters: tuple[torch.Tensor | None, ...],
        dims: int,
        eps: float,
        backend: str,
    ) -> Tensors:
        """Allocates the output, and the sum of two arrays, and launches.

        Args:
            statistics: written too; None if nobody asks for them.
            arrays, parameters, dims, eps, backend: as the operator takes them.
        """
        results = tuple([_contiguous_like(array) for array in arrays])
        if arrays[0].numel() == 0:
            if statistics is not None:
                statistics.fill_(torch.nan)
            return results
        rank = arrays[0].dim() - dims
        rows = [_as_rows(array, rank) for array in arrays]
        vectors = [_as_vector(parameter) for parameter in parameters]
        written = [_as_rows(result, rank) for result in reversed(results)]
        name = self.name if len(arrays) == 1 else f"add_{self.name}"
        run(backend, name, f"{name}_forward", *rows, *vectors, fixed(eps), statistics, *written)
        return results

    def _statistics_of(self, input: torch.Tensor, dims: int) -> torch.Tensor:
        outer = input.shape[: input.dim() - dims]
        return input.new_empty((self.fields, *outer), dtype=compute_dtype(input.dtype))

    def _define(self, arrays: int) -> Operator:
        """The op of an input, or of the sum of two arrays."""
        name = self.name if arrays == 1 else f"add_{self.name}"
        tensors = arrays + self.fields

        def fake(*args: Any) -> Tensors:
            made = [_contiguous_like(array) for array in args[:arrays]]
            return (*made, self._statistics_of(args[0], args[tensors]))

        def forward(*args: Any) -> Tensors:
            statistics = self._statistics_of(args[0], args[tensors])
            results = self._run(statistics, args[:arrays], args[arrays:tensors], *args[tensors:])
            return (*results, statistics)

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
            *_, ctx.dims, ctx.eps, ctx.backend = inputs
            parameters = inputs[arrays:tensors]
            ctx.dtypes = [None if p is None else p.dtype for p in parameters]
            kept = (inputs[0] if arrays == 1 else output[1], output[arrays], parameters[0])
            ctx.save_for_backward(*kept)
            ctx.save_for_forward(*kept)

        def gradients(ctx: Any, grad_output: Any, grad_sum: Any = None) -> tuple[Any, ...]:
            if grad_output is None:
                return (grad_sum,) * arrays + (None,) * self.fields
            asked = zip(ctx.dtypes, ctx.needs_input_grad[arrays:], strict=False)
            dtypes = [dtype if is_asked else None for dtype, is_asked in asked]
            of = (grad_output, grad_sum, *ctx.saved_tensors)
            differentiable = any(t is not None and t.requires_grad for t in of)
            results = self.backward(differentiable, *of, *dtypes, ctx.eps, ctx.backend)
            of_parameters = zip(results[1:], dtypes, strict=True)
            return (results[0],) * arrays + tuple(g if d else None for g, d in of_parameters)

        def tangents(ctx: Any, *directions: Any) -> Any:
            input, _, weight = ctx.saved_tensors
            rows = Normalized.of(input, ctx.dims, ctx.eps, self.centered)
            given = [d for d in directions[:arrays] if d is not None]
            along = _total([wide(d) for d in given], wide(input))
            of_weight, of_bias = (*directions[arrays:], None)[:2]
            parts = []
            if given:
                projected = rows.project(along)
                parts.append(projected if weight is None else projected * weight)
            if of_weight is not None:
                parts.append(of_weight * rows.values)
            if of_bias is not None:
                parts.append(wide(of_bias).expand_as(rows.values))
            of_output = _total(parts, input)
            return of_output if arrays == 1 else (of_output, along.to(input.dtype))

        def batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            if any(dim is not None for dim in in_dims[arrays:tensors]):
                return operator.one_by_one(info, in_dims, *args)
            batched = _batch_first(info, in_dims, args[:arrays])
            differentiable = any(t is not None and t.requires_grad for t in args[:tensors])
            results = operator(differentiable, *batched, *args[arrays:])
            return results, (*(0,) * arrays, 1)

        inputs = ("Tensor input", "Tensor residual")[:arrays]
        parameters = ("Tensor? weight", "Tensor? bias")[: self.fields]
        returns = ", ".join(["Tensor"] * (arrays + 1))
        operator = Operator(
            f"{name}({', '.join((*inputs, *parameters))}, int dims, float eps, str backend) -> "
            f"({returns})",
            forward=forward,
            fake=fake,
            setup_context=save,
            backward=gradients,
            jvp=tangents,
            vmap=batch,
            tensors=tensors,
            differentiable=arrays,
        )
        return operator

    def _define_backward(self) -> Operator:
        """The gradients of the input and of each parameter whose dtype is given.

        Its derivatives are made of PyTorch's operators. The statistics are those of the input,
        whose derivatives hold theirs, and they have none.
        """
        name = f"{self.name}_backward"
        tensors = 5
        dtypes_of = slice(tensors, tensors + self.fields)

        def fake(*args: Any) -> Tensors:
            input, rank = args[2], args[3].dim() - 1
            shapes = (input.shape[rank:] if dtype else (0,) for dtype in args[dtypes_of])
            pairs = zip(shapes, args[dtypes_of], strict=True)
            parameters = (input.new_empty(shape, dtype=dtype) for shape, dtype in pairs)
            return _contiguous_like(input), *parameters

        def forward(*args: Any) -> Tensors:
            grad_output, grad_sum, input, statistics = args[:4]
            for which, grad in (("grad_output", grad_output), ("grad_sum", grad_sum)):
                if grad is not None and (grad.shape, grad.dtype) != (input.shape, input.dtype):
                    raise ValueError(
                        f"{name}: {which} must have the shape and dtype of input, "
                        f"{tuple(input.shape)} and {input.dtype}, not {tuple(grad.shape)} and "
                        f"{grad.dtype}"
                    )
            grad_input, *made = fake(*args)
            asked = [g if d else None for g, d in zip(made, args[dtypes_of], strict=True)]
            if input.numel() == 0:
                for gradient in made:
                    gradient.zero_()
                return grad_input, *made
            rank, backend = statistics.dim() - 1, args[-1]
            rows = _as_rows(input, rank)
            grads = [g if g is None else _as_rows(g, rank) for g in (grad_output, grad_sum)]
            vectors = [_as_vector(vector) for vector in (args[tensors - 1], *asked)]
            run(
                backend,
                self.name,
                name,
                *grads,
                rows,
                statistics,
                *vectors,
                _as_rows(grad_input, rank),
            )
            return grad_input, *made

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
            grad_output, grad_sum, input, statistics = inputs[:4]
            ctx.has_sum, ctx.dims = grad_sum is not None, input.dim() - statistics.dim() + 1
            ctx.dtypes, (ctx.eps, ctx.backend) = inputs[dtypes_of], inputs[-2:]
            ctx.save_for_backward(grad_output, input, inputs[tensors - 1])
            ctx.save_for_forward(grad_output, input, inputs[tensors - 1])

        def parts_of(ctx: Any) -> tuple[Any, ...]:
            grad_output, input, weight = ctx.saved_tensors
            rows = Normalized.of(input, ctx.dims, ctx.eps, self.centered)
            g = wide(grad_output)
            return rows, g, g if weight is None else g * weight, weight

        def gradients(ctx: Any, along: Any, *of_parameters: Any) -> tuple[Any, ...]:
            rows, g, scaled, weight = parts_of(ctx)
            input, of_weight = ctx.saved_tensors[1], None
            given = [p if d else None for p, d in zip(of_parameters, ctx.dtypes, strict=True)]
            by_weight, by_bias = (*given, None)[:2]
            to_grad, to_input = [], []
            if along is not None:
                projected = rows.project(wide(along))
                to_input.append(rows.bend(scaled, wide(along)))
                to_grad.append(projected if weight is None else projected * weight)
                if weight is not None:
                    of_weight = rows.sum_rows(g * projected).to(weight.dtype)
            if by_weight is not None:
                to_grad.append(by_weight * rows.values)
                to_input.append(rows.project(by_weight * g))
            if by_bias is not None:
                to_grad.append(wide(by_bias).expand_as(g))
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
            of_grad, of_sum, of_input = directions[:3]
            to_input, to_weight, to_bias = [], [], []
            of_scaled = []
            if of_grad is not None:
                of_scaled.append(wide(of_grad) if weight is None else wide(of_grad) * weight)
                to_weight.append(rows.sum_rows(of_grad * rows.values))
                to_bias.append(rows.sum_rows(wide(of_grad)))
            if directions[tensors - 1] is not None:
                of_scaled.append(g * directions[tensors - 1])
            if of_scaled:
                to_input.append(rows.project(sum(of_scaled)))
            if of_sum is not None:
                to_input.append(wide(of_sum))
            if of_input is not None:
                to_input.append(rows.bend(scaled, wide(of_input)))
                to_weight.append(rows.sum_rows(g * rows.project(wide(of_input))))
            shape = input.shape[input.dim() - ctx.dims :]
            of_parameters = [
                _total(parts, input.new_empty(shape if dtype else (0,), dtype=dtype))
                if dtype
                else input.new_zeros((0,))
                for parts, dtype in zip((to_weight, to_bias), ctx.dtypes, strict=False)
            ]
            return _total(to_input, input), *of_parameters

        def batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            if in_dims[tensors - 1] is not None or any(args[dtypes_of]):
                return operator.one_by_one(info, in_dims, *args)
            batched = _batch_first(info, in_dims, args[:3])
            statistics = _batch_at(1, info, in_dims[3], args[3])
            differentiable = any(t is not None and t.requires_grad for t in args[:tensors])
            results = operator(differentiable, *batched, statistics, *args[tensors - 1 :])
            return results, (0, *(None,) * self.fields)

        dtypes = ("ScalarType? weight_dtype", "ScalarType? bias_dtype")[: self.fields]
        operator = Operator(
            f"{name}(Tensor grad_output, Tensor? grad_sum, Tensor input, Tensor statistics, "
            f"Tensor? weight, {', '.join(dtypes)}, float eps, str backend) -> "
            f"({', '.join(['Tensor'] * (1 + self.fields))})",
            forward=forward,
            fake=fake,
            setup_context=save,
            backward=gradients,
            jvp=tangents,
            vmap=batch,
            tensors=tensors,
            differentiable=1 + self.fields,
        )
        return operator


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _as_rows(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """The dimensions from `rank` on as one, of unit stride: a view where there is one."""
    if tensor.dim() > rank + 1:
        tensor = tensor.flatten(rank)
    if tensor.is_contiguous() or tensor.stride(-1) == 1:
        return tensor
    # Of a dimension of one element the stride says nothing, and may be anything.
    return tensor.contiguous() if tensor.shape[-1] != 1 else tensor


def _as_vector(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else _as_rows(tensor, 0)


def _total(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The sum of tensors, of the dtype of `like`; without any, zeros like it."""
    return sum(parts[1:], parts[0]).to(like.dtype) if parts else torch.zeros_like(like)


def _batch_first(
    info: Any, in_dims: tuple[Any, ...], tensors: Sequence[Any]
) -> list[torch.Tensor | None]:
    """Tensors with the batch as their first dimension, expanded where they have none."""
    return [
        None if tensor is None else _batch_at(0, info, dim, tensor)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    ]


def _batch_at(place: int, info: Any, dim: int | None, tensor: torch.Tensor) -> torch.Tensor:
    if dim is None:
        tensor, dim = tensor.expand(info.batch_size, *tensor.shape), 0
    return tensor.movedim(dim, place)


def _check_shape(op: str, shape: Any, input: torch.Tensor) -> int:
    """How many dimensions a row has.

    Raises:
        TypeError: `shape` is neither an integer nor a sequence of them.
        ValueError: it has none, or is not what the shape of `input` ends with.
    """
    if type(shape) is int:
        shape = (shape,)
    elif type(shape) is not torch.Size:
        is_sequence = isinstance(shape, Sequence) and not isinstance(shape, str)
        shape = tuple(shape) if is_sequence else (shape,)
        for size in shape:
            if type(size) is int:
                continue
            if isinstance(size, (bool, torch.Tensor)) or not hasattr(size, "__index__"):
                raise TypeError(
                    f"{op}: normalized_shape must be an integer or a sequence of integers, not "
                    f"of {type(size).__name__}"
                )
    dims = len(shape)
    if dims == 0:
        raise ValueError(f"{op}: normalized_shape must have at least one dimension")
    if input.shape[-dims:] != shape:
        raise ValueError(
            f"{op}: normalized_shape must be what the shape of input ends with: "
            f"{tuple(input.shape)} does not end with {tuple(shape)}"
        )
    return dims


def _check_residual(op: str, input: torch.Tensor, residual: torch.Tensor) -> None:
    if residual.dtype != input.dtype:
        raise TypeError(
            f"{op}: residual must have the dtype of input, {input.dtype}, not {residual.dtype}"
        )
    for what in ("shape", "device"):
        own, other = getattr(input, what), getattr(residual, what)
        if own != other:
            raise ValueError(f"{op}: residual must have the {what} of input, {own}, not {other}")


def _check_parameters(
    op: str, input: torch.Tensor, shape: torch.Size, parameters: Sequence[Any]
) -> None:
    """Checks weight and bias.

    Raises:
        TypeError: a dtype that is neither input's nor float32 beside a narrower one, or two.
        ValueError: another shape than a row's, or another device.
    """
    first = None
    for name, tensor in zip(("weight", "bias"), parameters, strict=False):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(
                f"{op}: {name} must have the shape normalized_shape, {tuple(shape)}, not "
                f"{tuple(tensor.shape)}"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"{op}: {name} must be on the device of input, {input.device}, not {tensor.device}"
            )
        if tensor.dtype != input.dtype and (
            tensor.dtype != torch.float32 or input.dtype not in HALVES
        ):
            also = " or float32" if input.dtype in HALVES else ""
            raise TypeError(
                f"{op}: {name} must have the dtype of input, {input.dtype}{also}, not "
                f"{tensor.dtype}"
            )
        if first is not None and tensor.dtype != first.dtype:
            raise TypeError(
                f"{op}: weight and bias must have one dtype, not {first.dtype} and {tensor.dtype}"
            )
        first = tensor
