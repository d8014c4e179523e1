"""Products of 8-bit floats with scales: the contract of the op."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from diglot.backends.batch_invariance import choose_invariant, declare_invariant, hold_rows
from diglot.backends.needs import prefer
from diglot.backends.runs import run
from diglot.define.operator import Operator
from diglot.ops.checks import check_dtype, check_tensor
from diglot.ops.products import AUTO_ORDER
from diglot.reference.scaled_mm import BLOCK

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
RESULTS = (torch.bfloat16, torch.float16, torch.float32)

prefer("scaled_mm", AUTO_ORDER)
declare_invariant("scaled_mm")


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
    *,
    batch_invariant: bool = False,
    backend: str | None = None,
) -> Tensor:
    r"""Multiplies matrices of 8-bit floats, and scales the product: `torch._scaled_mm`, and
    `torch.nn.functional.scaled_mm` without its recipes, which the scales' shapes tell.

    The result is (mat_a · scale_a) @ (mat_b · scale_b) + bias, where each scale belongs to a whole
    matrix, to a row of `mat_a` or a column of `mat_b`, or to a block. Scales of matrices, rows and
    columns multiply the finished sums. Those of blocks multiply the sum of each 128 products. The
    result is rounded once.

    Hopper's tensor cores keep about 14 bits of a sum of such products. By default each 128 products
    are therefore added to a sum in float32. With `use_fast_accum` the tensor cores add them all.

    Args:
        mat_a: tensor (M, K), float8_e4m3fn or float8_e5m2, of any strides. Rows that are contiguous
            and begin at multiples of 16 bytes are fast; `diglot.explain` tells the way of others.
        mat_b: tensor (K, N), likewise; with contiguous columns it is fast. Only one of the two may
            be float8_e5m2.
        scale_a: float32: one element; (M, 1) for rows; (M, ceil(K / 128)) for 128 neighbours of a
            row; (ceil(M / 128), ceil(K / 128)) for blocks of 128 x 128.
        scale_b: float32: one element; (1, N) for columns; (ceil(K / 128), N) for 128 neighbours of
            a column; (ceil(K / 128), ceil(N / 128)) for blocks. Its form may differ from that of
            `scale_a`.
        bias: tensor (N) of `out_dtype`.
        out_dtype: bfloat16, float16 or float32.
        use_fast_accum: whether sums may keep fewer bits. Scales of blocks, and kernels without
            products of 8-bit floats, add in float32 in any case.
        batch_invariant: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.

    Returns:
        A contiguous tensor (M, N) of `out_dtype`. It has no gradient, as PyTorch's has none.

    Raises:
        TypeError: an argument is no dense tensor, a dtype is not listed above, or both matrices
            are float8_e5m2.
        ValueError: the shapes do not fit, tensors are on different devices, or `backend` is
            unknown.
        diglot.BackendUnavailable: the requested backend cannot run on the tensors' device.
    """
    matrices = mat_a, mat_b, scale_a, scale_b
    present = matrices if bias is None else (*matrices, bias)
    kind = _scaled_mm.known(*present) or _scaled_mm.learn(*present)
    _check_call(mat_a, mat_b, scale_a, scale_b, bias, out_dtype)
    chosen = choose_invariant("scaled_mm", kind.device, backend, batch_invariant)
    options = bool(use_fast_accum), batch_invariant, chosen
    result: Tensor = kind.call(*matrices, bias, out_dtype, *options)
    return result


def _check(mat_a: Any, mat_b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> None:
    """Checks tensors without their sizes."""
    allowed = {
        "mat_a": (mat_a, FLOAT8),
        "mat_b": (mat_b, FLOAT8),
        "scale_a": (scale_a, (torch.float32,)),
        "scale_b": (scale_b, (torch.float32,)),
    }
    if bias is not None:
        allowed["bias"] = (bias, RESULTS)
    for name, (tensor, dtypes) in allowed.items():
        check_tensor("scaled_mm", name, tensor)
        check_dtype("scaled_mm", name, tensor, dtypes)
        if tensor.device != mat_a.device:
            raise ValueError(
                f"scaled_mm: mat_a and {name} must be on one device, not on {mat_a.device} and "
                f"{tensor.device}"
            )
    if mat_a.dtype == mat_b.dtype == torch.float8_e5m2:
        raise TypeError("scaled_mm: mat_a and mat_b must not both be float8_e5m2")


def _check_call(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out_dtype: Any,
) -> None:
    """Checks sizes and the result's dtype."""
    if out_dtype not in RESULTS:
        names = ", ".join(map(str, RESULTS))
        raise TypeError(f"scaled_mm: out_dtype must be one of {names}, not {out_dtype}")
    if mat_a.dim() != 2 or mat_b.dim() != 2 or mat_a.shape[1] != mat_b.shape[0]:
        raise ValueError(
            f"scaled_mm: mat_a and mat_b must be matrices (M, K) and (K, N), not "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)}"
        )
    _check_scale("scale_a", scale_a, mat_a, "(M, 1)", 0)
    _check_scale("scale_b", scale_b, mat_b, "(1, N)", 1)
    if bias is None:
        return
    if bias.dtype != out_dtype:
        raise TypeError(f"scaled_mm: bias must have the dtype {out_dtype}, not {bias.dtype}")
    if bias.dim() != 1 or bias.shape[0] != mat_b.shape[1]:
        raise ValueError(
            f"scaled_mm: bias must have the shape ({mat_b.shape[1]},), not {tuple(bias.shape)}"
        )


def _check_scale(name: str, scale: Tensor, matrix: Tensor, of_rows: str, side: int) -> None:
    """Raises ValueError unless a scale has one of the four forms. `side` is the dimension of the
    matrix that is not K.
    """
    if scale.numel() == 1:
        return
    size, depth = matrix.shape[side], matrix.shape[1 - side]
    blocks, steps = -(-size // BLOCK), -(-depth // BLOCK)
    forms = [(size, 1), (size, steps), (blocks, steps)]
    if side == 1:
        forms = [(b, a) for a, b in forms]
    if tuple(scale.shape) not in forms:
        raise ValueError(
            f"scaled_mm: {name} must have one element, or the shape {forms[0]} {of_rows}, "
            f"{forms[1]} or {forms[2]} of blocks along K, not {tuple(scale.shape)}"
        )


def _empty(mat_a: Tensor, mat_b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return mat_a.new_empty((mat_a.shape[0], mat_b.shape[1]), dtype=out_dtype)


def _forward(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
    batch_invariant: bool,
    backend: str,
) -> Tensor:
    out = _empty(mat_a, mat_b, out_dtype)
    mat_a, is_held = hold_rows(mat_a, batch_invariant, backend)
    arguments = mat_a, mat_b, scale_a, scale_b, bias, use_fast_accum, is_held
    run(backend, "scaled_mm", "scaled_mm_forward", *arguments, out)
    return out


def _refuse(*_: Any) -> NoReturn:
    raise RuntimeError("scaled_mm: it has no gradient, as torch._scaled_mm has none")


_scaled_mm = Operator(
    "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "ScalarType out_dtype, bool use_fast_accum, bool batch_invariant, str backend) -> Tensor",
    forward=_forward,
    fake=lambda mat_a, mat_b, *others: _empty(mat_a, mat_b, others[3]),
    save=lambda ctx, inputs, output: (),
    backward=_refuse,
    jvp=_refuse,
    whole=True,
    check=_check,
)
