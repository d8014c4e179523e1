"""Addition with broadcasting and type promotion: the contract of the op."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides
from torch.compiler import is_compiling

from diglot.backends.runs import run, wrap_to_64_bits
from diglot.backends.selection import choose
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.operator import Operator, is_direct

Number = bool | int | float

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)

# Least and greatest `alpha` for each type of result: what torch.add on a CPU converts without an
# overflow error. It lets a negative number wrap in uint8, and any number is true or false.
ALPHA_RANGES: dict[torch.dtype, tuple[float, float]] = {
    dtype: (-torch.finfo(dtype).max, torch.finfo(dtype).max)
    if dtype.is_floating_point
    else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for dtype in DTYPES
    if dtype != torch.bool
}
ALPHA_RANGES[torch.uint8] = (-255, 255)
ALPHA_RANGES[torch.bool] = (-(2**63), 2**64 - 1)

# A sum over broadcast dimensions is split until this many blocks share it, 16 for each of an H200's
# 132 multiprocessors, with at least this many elements each. A block is one kept element wide where
# a reduced dimension is the fastest, and a warp's 16-byte accesses otherwise. Constants, so that
# the order of a sum depends on shapes, strides and alignment alone.
SUM_BLOCKS = 16 * 132
SUM_ELEMENTS_PER_BLOCK = 16384
SUM_BYTES_OF_KEPT = 32 * 16
# A kernel sums over this many dimensions at most (kMaxRank, MAX_RANK); over more, several do.
SUM_DIMENSIONS = 8


def add(
    input: torch.Tensor,
    other: torch.Tensor | Number,
    *,
    alpha: Number = 1,
    backend: str | None = None,
) -> torch.Tensor:
    r"""input + alpha · other, as `torch.add`.

    Floating sums are computed with one rounding in float32 (float64 for float64), and rounded to
    the result's type; of a number, alpha · other is computed first, in float64. Integers wrap;
    bool is `or`.

    Args:
        input: tensor of any shape and strides; a floating-point (up to 64 bits), integer (signed,
            or uint8) or bool dtype.
        other: tensor that broadcasts with `input`, or a number, NumPy's scalars included. A 0-d
            tensor on the CPU, in either place, goes with a tensor on any device, and is read when
            the call is made: a CUDA graph repeats the value that it had.
        alpha: factor of `other`, in the result's range (for uint8, from -255): a real number,
            infinities and NaN included, for floating results; an integer for integer ones; True,
            False or an integer for bool ones.
        backend: "cuda", "triton", "torch" or "auto"; by default what `use_backend`, the variable
            DIGLOT_BACKEND or "auto" say.

    Returns:
        A tensor of the broadcast shape and the promoted dtype (`torch.result_type`), in the memory
        format that `torch.add` gives. Differentiable; gradients are summed over broadcast
        dimensions on the same backend. "cuda" and "triton" sum in an order that depends on shapes,
        strides and alignment alone, "torch" as PyTorch does.

    Raises:
        TypeError: not a tensor or number, an unsupported dtype, or an `alpha` of the wrong kind.
        ValueError: shapes that do not broadcast, tensors on different devices, a number out of
            range, or an unknown `backend`.
        diglot.BackendUnavailable: the backend asked for cannot run on the tensors' device.
    """
    check_tensor("add", "input", input)
    if isinstance(other, torch.Tensor):
        check_tensor("add", "other", other)
        if input.device != other.device:
            return _add_across_devices(input, other, alpha, backend)
        dtype = input.dtype if input.dtype == other.dtype else _result_type(input, other)
        _check_dtypes(dtype, input, other)
        if input.shape != other.shape:
            _check_shapes(input, other)
        # The default passes every check.
        factor = alpha if type(alpha) is int and alpha == 1 else _check_alpha(alpha, dtype)
        chosen = choose("add", input.device, backend)
        if is_direct(input, other):
            differentiable = input.requires_grad or other.requires_grad
            return _add.direct(differentiable, input, other, factor, chosen)
        return _add.indirect(input, other, factor, chosen)
    number = _check_number("other", other, "a torch.Tensor or a number")
    return _add_number(input, number, alpha, _result_type(input, number), backend)


def _add_number(
    input: torch.Tensor, other: Number, alpha: Number, dtype: torch.dtype, backend: str | None
) -> torch.Tensor:
    """input + alpha · other of type `dtype`, to which `input` and the number have promoted."""
    _check_dtypes(dtype, input)
    if dtype != input.dtype:
        input = input.to(dtype)  # a number of a higher category than the tensor: torch converts too
    number = _check_alpha(alpha, dtype) * other
    if dtype == torch.bool:
        number = bool(number)
    elif not dtype.is_floating_point:
        number = wrap_to_64_bits(number)
    chosen = choose("add", input.device, backend)
    return _add(input.requires_grad, input, None, number, chosen)


def _add_across_devices(
    input: torch.Tensor, other: torch.Tensor, alpha: Number, backend: str | None
) -> torch.Tensor:
    """The sum of a 0-d CPU tensor, in either place, and a tensor that is elsewhere.

    The value is read here where nobody else needs to see the tensor: a copy to the device would
    wait for it, which is an error while a CUDA graph is being captured.
    """
    tensor, scalar = (input, other) if _is_host_scalar(other) else (other, input)
    if not _is_host_scalar(scalar):
        raise ValueError(
            f"add: input and other must be on one device, not on {input.device} and {other.device}"
        )
    if not is_direct(input, other) or (scalar.requires_grad and torch.is_grad_enabled()):
        moved = scalar.to(tensor.device)
        operands = (tensor, moved) if scalar is other else (moved, tensor)
        return add(*operands, alpha=alpha, backend=backend)
    dtype = _result_type(input, other)
    _check_dtypes(dtype, input, other)
    value = scalar.to(dtype).item()
    if scalar is other:
        return _add_number(tensor, value, alpha, dtype, backend)
    if _check_alpha(alpha, dtype) == 1:
        return _add_number(tensor, value, 1, dtype, backend)
    filled = torch.full((), value, dtype=dtype, device=tensor.device)  # a kernel, not a copy
    return add(filled, tensor, alpha=alpha, backend=backend)


def _is_host_scalar(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 0 and tensor.device.type == "cpu"


def _result_type(input: torch.Tensor, other: Any) -> torch.dtype:
    if not is_compiling():
        return torch.result_type(input, other)
    # torch.result_type returns no tensor, which Dynamo does not trace. Its rule in plain Python: an
    # operand of a lower rank of types (0-d tensors below others, numbers below them) counts only if
    # its category is higher.
    if not isinstance(other, torch.Tensor):
        return _promote(input.dtype, _number_dtype(other))
    if (input.dim() == 0) == (other.dim() == 0):
        return torch.promote_types(input.dtype, other.dtype)
    if input.dim() == 0:
        return _promote(other.dtype, input.dtype)
    return _promote(input.dtype, other.dtype)


def _promote(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if higher == torch.bool or (lower.is_floating_point and not higher.is_floating_point):
        return lower
    return higher


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    is_integer = isinstance(number, (int, torch.SymInt))
    return torch.int64 if is_integer else torch.get_default_dtype()


def _fixed(number: Any) -> Any:
    """A number that a launch can take: a symbol of a graph being compiled becomes its value."""
    if isinstance(number, torch.SymInt):
        return int(number)
    return float(number) if isinstance(number, torch.SymFloat) else number


def _check_dtypes(result: torch.dtype, *tensors: torch.Tensor) -> None:
    for name, tensor in zip(("input", "other"), tensors, strict=False):
        if tensor.dtype not in DTYPES:
            check_dtype("add", name, tensor, DTYPES)
    if result not in DTYPES:
        raise TypeError(f"add: no kernel for a result of dtype {result}")


def _check_shapes(input: torch.Tensor, other: torch.Tensor) -> None:
    for a, b in zip(reversed(input.shape), reversed(other.shape), strict=False):
        if a != b and a != 1 and b != 1:
            raise ValueError(
                f"add: the shapes of input and other do not broadcast: {tuple(input.shape)} and "
                f"{tuple(other.shape)}"
            )


def _check_number(name: str, value: Any, kinds: str = "a real number") -> Any:
    """`value` as a Python number (or a symbol for one)."""
    if type(value) not in (bool, int, float):
        value = _held_number(value)
    if not isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"add: {name} must be {kinds}, not {type(value).__name__}")
    if isinstance(value, (int, torch.SymInt)) and not -(2**63) <= value < 2**64:
        raise ValueError(f"add: {name} must be an integer of at most 64 bits, not {value}")
    return value


def _held_number(value: Any) -> Any:
    """The Python number in a NumPy scalar or in a 0-d tensor that wants no gradient."""
    if isinstance(value, torch.Tensor):
        is_number = value.dim() == 0 and not value.requires_grad
    else:
        numpy = sys.modules.get("numpy")
        is_number = numpy is not None and isinstance(value, numpy.generic)
    return value.item() if is_number else value


def _check_alpha(alpha: Any, result: torch.dtype) -> Any:
    """`alpha` as a Python number that torch.add takes for this type of result, or an error."""
    alpha = _check_number("alpha", alpha)
    if isinstance(alpha, bool):
        if result != torch.bool:
            raise TypeError(f"add: alpha must be a number where the result is {result}, not a bool")
        return alpha
    if not result.is_floating_point and isinstance(alpha, (float, torch.SymFloat)):
        raise TypeError(f"add: alpha must be an integer where the result is {result}, not a float")
    least, greatest = ALPHA_RANGES[result]
    if (alpha < least or alpha > greatest) and not math.isinf(alpha):
        raise ValueError(
            f"add: alpha must be from {least} to {greatest} where the result is {result}, "
            f"not {alpha}"
        )
    if result.is_floating_point:
        return float(alpha)
    return bool(alpha) if result == torch.bool else alpha


def _out(input: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    """An output in the memory format that torch.add gives."""
    if other is None:
        return torch.empty_like(input)
    if input.dtype == other.dtype and input.shape == other.shape:
        if input.is_contiguous() and other.is_contiguous():
            return torch.empty_like(input)
    shape = torch.broadcast_shapes(input.shape, other.shape)
    strides = compute_elementwise_output_strides(input.expand(shape), other.expand(shape))
    dtype = torch.result_type(input, other)
    return torch.empty_strided(shape, strides, dtype=dtype, device=input.device)


def _forward(
    input: torch.Tensor, other: torch.Tensor | None, alpha: Number, backend: str
) -> torch.Tensor:
    out = _out(input, other)
    run(backend, "add", "add_forward", input, other, _fixed(alpha), out)
    return out


def _fake(
    input: torch.Tensor, other: torch.Tensor | None, alpha: Number, backend: str
) -> torch.Tensor:
    return _out(input, other)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    input, other, ctx.alpha, ctx.backend = inputs
    # Shapes and dtypes are all that the gradients need: nothing keeps the inputs alive.
    ctx.input = (input.shape, input.dtype)
    ctx.other = None if other is None else (other.shape, other.dtype)
    ctx.output = (output.shape, output.dtype)


def _gradients(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, Any]:
    grad_input = grad_other = None
    if ctx.needs_input_grad[0]:
        shape, dtype = ctx.input
        grad_input = _unbroadcast(grad_output, shape, dtype, 1, ctx.backend)
    if ctx.other is not None and ctx.needs_input_grad[1]:
        shape, dtype = ctx.other
        grad_other = _unbroadcast(grad_output, shape, dtype, ctx.alpha, ctx.backend)
    return grad_input, grad_other


def _tangent(ctx: Any, of_input: Any, of_other: Any = None) -> torch.Tensor:
    shape, dtype = ctx.output
    if of_other is None:
        return of_input.to(dtype).expand(shape)
    if of_input is None:
        of_input = torch.zeros((), dtype=dtype, device=of_other.device).expand(shape)
    return add(of_input, of_other, alpha=ctx.alpha, backend=ctx.backend)


def _batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    input, other, alpha, backend = args
    if other is None:
        dim = in_dims[0]
        return _add(input.requires_grad, input, None, alpha, backend), dim
    operands = tuple(zip((input, other), in_dims[:2], strict=True))
    ranks = [tensor.dim() - (dim is not None) for tensor, dim in operands]
    # Types promote by the operands' own ranks: those of rank 0 count less than others. With the
    # batch as a dimension they would not, so that they are converted first.
    dtype = torch.result_type(
        *(t.new_empty(()) if rank == 0 else t for (t, _), rank in zip(operands, ranks, strict=True))
    )
    aligned = []
    for (tensor, dim), rank in zip(operands, ranks, strict=True):
        if rank == 0:
            tensor = tensor.to(dtype)
        if dim is not None:  # the batch goes first, and the own dimensions end where the others do
            missing = (1,) * (max(ranks) - rank)
            tensor = tensor.movedim(dim, 0)
            tensor = tensor.reshape(tensor.shape[0], *missing, *tensor.shape[1:])
        aligned.append(tensor)
    return add(*aligned, alpha=alpha, backend=backend), 0


def _unbroadcast(
    grad_output: torch.Tensor, shape: torch.Size, dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    """alpha · grad_output, summed to `shape` and rounded to `dtype`."""
    if alpha == 1 and grad_output.shape == shape and grad_output.dtype == dtype:
        return grad_output
    return _add_backward(grad_output.requires_grad, grad_output, list(shape), dtype, alpha, backend)


def _sum_splits(grad_output: torch.Tensor, shape: list[int]) -> int:
    """Into how many parts the sum over broadcast dimensions is split."""
    kept = math.prod(shape)
    reduced = grad_output.numel() // max(kept, 1)
    if reduced <= 1:
        return 1
    missing = grad_output.dim() - len(shape)
    own = [1] * missing + list(shape)
    steps = zip(grad_output.stride(), grad_output.shape, own, strict=True)
    _, is_kept = min((stride, of_out == size) for stride, size, of_out in steps if size != 1)
    width = min(kept, SUM_BYTES_OF_KEPT // grad_output.element_size()) if is_kept else 1
    blocks = -(-kept // width)
    return max(1, min(SUM_BLOCKS // blocks, reduced * width // SUM_ELEMENTS_PER_BLOCK))


def _backward(
    grad_output: torch.Tensor, shape: list[int], dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    compute = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
    missing = grad_output.dim() - len(shape)
    sizes = [1] * missing + list(shape)
    if missing < 0:
        raise ValueError(f"add_backward: shape has more dimensions than grad_output: {list(shape)}")
    reduced = [d for d, size in enumerate(grad_output.shape) if size != sizes[d]]
    if any(sizes[d] != 1 for d in reduced):
        raise ValueError(
            f"add_backward: {list(shape)} does not broadcast to {list(grad_output.shape)}, the "
            "shape of grad_output"
        )
    if len(reduced) > SUM_DIMENSIONS:
        between = list(grad_output.shape)
        for d in reduced[-SUM_DIMENSIONS:]:
            between[d] = 1
        grad_output = _backward(grad_output, between, compute, 1, backend)
        return _backward(grad_output, shape, dtype, alpha, backend)
    out = torch.empty(shape, dtype=dtype, device=grad_output.device)
    workspace = None
    splits = _sum_splits(grad_output, shape)
    if splits > 1:
        workspace = out.new_empty((splits, out.numel()), dtype=compute)
    run(backend, "add", "add_backward", grad_output, _fixed(alpha), workspace, out)
    return out


def _fake_backward(
    grad_output: torch.Tensor, shape: list[int], dtype: torch.dtype, alpha: Number, backend: str
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=grad_output.device)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    grad_output, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend = inputs
    ctx.grad_output = (grad_output.shape, grad_output.dtype)


def _gradient_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor]:
    shape, dtype = ctx.grad_output
    return (_unbroadcast(grad.expand(shape), shape, dtype, ctx.alpha, ctx.backend),)


def _tangent_of_backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _unbroadcast(tangent, ctx.shape, ctx.out_dtype, ctx.alpha, ctx.backend)


def _batch_backward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    grad_output, shape, dtype, alpha, backend = args
    grad_output = grad_output.movedim(in_dims[0], 0)
    own = [1] * (grad_output.dim() - 1 - len(shape)) + list(shape)
    result = _unbroadcast(grad_output, torch.Size([info.batch_size, *own]), dtype, alpha, backend)
    return result.reshape(info.batch_size, *shape), 0


_add = Operator(
    "add(Tensor input, Tensor? other, Scalar alpha, str backend) -> Tensor",
    forward=_forward,
    fake=_fake,
    setup_context=_save,
    backward=_gradients,
    jvp=_tangent,
    vmap=_batch,
    tensors=2,
)
_add_backward = Operator(
    "add_backward(Tensor grad_output, SymInt[] shape, ScalarType dtype, Scalar alpha, str backend)"
    " -> Tensor",
    forward=_backward,
    fake=_fake_backward,
    setup_context=_save_backward,
    backward=_gradient_of_backward,
    jvp=_tangent_of_backward,
    vmap=_batch_backward,
    tensors=1,
)
