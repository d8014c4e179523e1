"""Clipping of gradients by their total norm: the contract of the op."""

from __future__ import annotations

import math
import sys
import types
import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from diglot.backends.capture import is_captured
from diglot.backends.chunk_table import ChunkTable, DenseTensors, find_table, make_table
from diglot.backends.runs import run
from diglot.backends.selection import choose
from diglot.define.direct import is_direct
from diglot.ops.checks import check_dtype, check_tensor

NAME = "clip_grad_norm_"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
NORM_TYPES = (1.0, 2.0, math.inf)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    backend: str | None = None,
) -> Tensor:
    r"""Scales gradients in place so that their total norm is at most `max_norm`.

    This is `torch.nn.utils.clip_grad_norm_`: all gradients count as one vector, and each is
    multiplied by min(max_norm / (norm + 1e-6), 1). (Pascanu, Mikolov and Bengio, "On the difficulty
    of training recurrent neural networks", 2013, arXiv:1211.5063.) On a GPU it is one launch
    without waiting. Gradients that fit the L2 cache are read from memory once. The result depends
    only on the gradients and the alignment of each, not on the size of the GPU.

    Parts of a gradient are summed in float32 (float64 for float64). The parts are added in float64
    if any gradient is float64, and the result is rounded once. PyTorch instead rounds the norm of
    every gradient, the total and the factor to the gradients' dtype, which is less accurate in 16
    bits. Where the factor is 1, the kernel writes nothing.

    A gradient that appears twice counts twice, as in PyTorch, and is scaled once. Gradients with
    gaps in memory are copied and copied back. They must not share elements with others.

    Args:
        parameters: a tensor or several, of any shapes. Each `grad` is None, float32, float16,
            bfloat16 or float64. Dtypes may be mixed.
        max_norm: the greatest norm allowed; 0 or more.
        norm_type: 1, 2 or infinity (`math.inf` or "inf").
        error_if_nonfinite: raises an error if the norm is infinite or NaN; the call then waits for
            the GPU. Otherwise the formula applies: an infinite norm gives zeros, and NaN for
            infinite elements; NaN gives NaN.
        backend: as in `diglot.gelu`.

    Returns:
        The total norm before clipping, a tensor of shape [], on the gradients' device and of their
        promoted dtype. Without gradients, `torch.tensor(0.0)`.

    Raises:
        TypeError: a gradient is sparse, nested, a DTensor, or of another dtype.
        ValueError: gradients are on several devices; gradients without gaps overlap in part;
            `max_norm` is negative or NaN; `norm_type` is another number.
        RuntimeError: `error_if_nonfinite` is set, and the norm is not finite; no gradient is
            changed. Or it is set during the capture of a CUDA graph.
        diglot.BackendUnavailable: the requested backend cannot run on the gradients' device.
    """
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    else:
        is_generator = isinstance(parameters, types.GeneratorType)
        parameters = list(parameters)
        if is_generator and not parameters:
            warnings.warn(
                f"{NAME}: `parameters` is an empty generator, so nothing is clipped", stacklevel=2
            )
    found = [parameter.grad for parameter in parameters]
    grads = [grad for grad in found if grad is not None]
    max_norm, norm_type = float(max_norm), float(norm_type)
    error_if_nonfinite = bool(error_if_nonfinite)
    if not max_norm >= 0:
        raise ValueError(f"{NAME}: max_norm must be 0 or more, not {max_norm}")
    if norm_type not in NORM_TYPES:
        raise ValueError(f"{NAME}: norm_type must be 1, 2 or infinity, not {norm_type}")
    if not grads:
        return torch.tensor(0.0)
    if is_direct() and set(map(type, grads)) == {Tensor}:
        device = grads[0].device
        tensors = _describe(grads)
        table = None if tensors is None else find_table(device, tensors)
        if table is not None:
            # These gradients are where the table's were, so they need no checks.
            chosen = choose(NAME, device, backend)
            return _launch(grads, table, max_norm, norm_type, error_if_nonfinite, chosen)
    _check(grads)
    chosen = choose(NAME, grads[0].device, backend)
    with torch.no_grad():
        if is_direct(*grads):
            return _clip(grads, max_norm, norm_type, error_if_nonfinite, chosen)
        return torch.ops.diglot.clip_grad_norm_(
            grads, max_norm, norm_type, error_if_nonfinite, chosen
        )


def _check(grads: Sequence[Tensor]) -> None:
    for grad in grads:
        if type(grad) is not Tensor and _is_distributed(grad):
            raise TypeError(
                f"{NAME}: a gradient is a DTensor, whose norm is over all ranks; "
                "torch.nn.utils.clip_grad_norm_ takes those"
            )
        check_tensor(NAME, "a gradient", grad)
        check_dtype(NAME, "a gradient", grad, DTYPES)
        if not is_compiling() and grad.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{NAME}: a gradient is an inference tensor, which only inference mode may change"
            )
    devices = sorted({str(grad.device) for grad in grads})
    if len(devices) > 1:
        raise ValueError(
            f"{NAME}: the gradients must be on one device, not on {' and '.join(devices)}"
        )


def _is_distributed(tensor: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # the module of DTensors
    return module is not None and isinstance(tensor, module.DTensor)


_dtype_of = Tensor.dtype.__get__  # type: ignore[attr-defined]


def _describe(grads: Sequence[Tensor]) -> DenseTensors | None:
    """The facts on which the gradients' table depends, if they are plain contiguous tensors."""
    try:
        if not all(map(Tensor.is_contiguous, grads)):
            return None
        return DenseTensors(
            tuple(map(Tensor.data_ptr, grads)),
            tuple(map(Tensor.numel, grads)),
            tuple(map(_dtype_of, grads)),
        )
    except RuntimeError:  # sparse tensors have no pointer
        return None


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a range of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _clip(
    grads: Sequence[Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    backend: str,
) -> Tensor:
    """The operator."""
    device = grads[0].device
    filled = [grad if _is_dense(grad) else grad.contiguous() for grad in grads]
    tensors = DenseTensors(
        tuple(map(Tensor.data_ptr, filled)),
        tuple(map(Tensor.numel, filled)),
        tuple(map(_dtype_of, filled)),
    )
    table = find_table(device, tensors) or make_table(device, tensors)
    total = _launch(filled, table, max_norm, norm_type, error_if_nonfinite, backend)
    for grad, dense in zip(grads, filled, strict=True):
        if dense is not grad:
            grad.copy_(dense)
    return total


def _launch(
    grads: Sequence[Tensor],
    table: ChunkTable,
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    backend: str,
    blocks: int = 0,
) -> Tensor:
    rows, dtype = table
    device = rows.device
    if error_if_nonfinite and is_captured(device):
        raise RuntimeError(
            f"{NAME}: error_if_nonfinite cannot wait for the GPU during the capture of a CUDA graph"
        )
    increment_version(grads)  # as every operator does that writes into its arguments
    total = torch.empty((), dtype=dtype, device=device)
    run(
        backend,
        "clip_grad_norm_",
        "clip_grad_norm",
        grads,
        rows,
        max_norm,
        norm_type,
        error_if_nonfinite,
        blocks,
        total,
    )
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"{NAME}: the total norm of order {norm_type} of the gradients is {total.item()}, so "
            "they cannot be clipped, and are unchanged. With error_if_nonfinite=False they are "
            "scaled by it anyway"
        )
    return total


def _fake(grads: Sequence[Tensor], *_: object) -> Tensor:
    dtype = grads[0].dtype
    for grad in grads:
        dtype = torch.promote_types(dtype, grad.dtype)
    return grads[0].new_empty((), dtype=dtype)


# Compilers see one operator: its launch depends on where the gradients lie, and on the stream.
torch.library.define(
    "diglot::clip_grad_norm_",
    "(Tensor(a!)[] grads, float max_norm, float norm_type, bool error_if_nonfinite, str backend) "
    "-> Tensor",
    # In a compiler's graph the table would lie in the graph's own memory.
    tags=[torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe],
)
torch.library.impl("diglot::clip_grad_norm_", ("cpu", "cuda"), _clip)
torch.library.register_fake("diglot::clip_grad_norm_", _fake)
