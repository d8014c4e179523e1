"""add and gelu against PyTorch's own, on operands of every kind, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backends import BACKENDS, DEVICE, FLOATING, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import KINDS, negative_bit, operands
from torch.autograd import forward_ad

import diglot
from diglot.ops.add import DTYPES

MODES: dict[str, Callable[[], Any]] = {
    "grad": nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def close(
    own: torch.Tensor | None, expected: torch.Tensor | None, via: torch.dtype | None = None
) -> None:
    """`via` is a coarser type that PyTorch rounds to on the way."""
    if own is None or expected is None:
        assert own is expected
        return
    assert (own.dtype, own.shape, own.requires_grad, own.is_inference()) == (
        expected.dtype,
        expected.shape,
        expected.requires_grad,
        expected.is_inference(),
    )
    # Kernels round a product and its sum once, PyTorch's CPU kernels each.
    dtypes = [dtype for dtype in (own.dtype, via) if dtype is not None and dtype.is_floating_point]
    atol = max([64 * torch.finfo(dtype).eps for dtype in dtypes], default=0)
    own, expected = (t.as_subclass(torch.Tensor).detach() for t in (own, expected))
    torch.testing.assert_close(own, expected, rtol=2 * atol, atol=atol)


def compare(
    own: Callable[..., torch.Tensor],
    theirs: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    mode: str,
) -> None:
    """Values, types, flags and gradients of two functions."""
    with MODES[mode]():
        result, expected = own(*inputs), theirs(*inputs)
    close(result, expected)
    if not expected.requires_grad:
        return
    wanted = [x for x in inputs if x.requires_grad]
    grad = torch.randn(expected.shape, device=DEVICE).to(expected.dtype)
    both = (torch.autograd.grad(y, wanted, grad) for y in (result, expected))
    for a, b in zip(*both, strict=True):
        close(a, b, expected.dtype)  # a gradient is summed in the result's type


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_add(backend, data):
    x, y = operands(data, 2, DTYPES)
    alpha = data.draw(st.sampled_from([1, 1, 2, True if torch.bool in (x.dtype, y.dtype) else 3]))
    if alpha is True and torch.result_type(x, y) != torch.bool:
        alpha = 1
    compare(
        lambda a, b: diglot.add(a, b, alpha=alpha, backend=backend),
        lambda a, b: torch.add(a, b, alpha=alpha),
        [x, y],
        data.draw(st.sampled_from(list(MODES))),
    )


@settings(max_examples=examples(20))
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_add_of_a_number(backend, data):
    # Of zeros without memory and a number PyTorch makes float64 in some cases: not copied.
    kinds = [kind for kind in KINDS if kind != "zeros without memory"]
    x = operands(data, 1, DTYPES, kinds)
    number = data.draw(st.sampled_from([2, -3, 0, 1.5, True, 2**40]))
    compare(
        lambda a: diglot.add(a, number, backend=backend),
        lambda a: torch.add(a, number),
        x,
        data.draw(st.sampled_from(list(MODES))),
    )


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu(backend, data):
    x = operands(data, 1, FLOATING)
    approximate = data.draw(st.sampled_from(["none", "tanh"]))
    compare(
        lambda a: diglot.gelu(a, approximate, backend=backend),
        lambda a: F.gelu(a, approximate=approximate),
        x,
        data.draw(st.sampled_from(list(MODES))),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_bits_are_seen_below_transforms(backend):
    """Launchers take memory for what it holds: the dispatcher makes plain tensors first."""
    x = negative_bit([4, 3], torch.float32)
    y = torch.randn(4, 3, device=DEVICE)
    for own, theirs in [
        (
            lambda a: diglot.add(a, y, alpha=2, backend=backend),
            lambda a: torch.add(a, y, alpha=2),
        ),
        (lambda a: diglot.add(y, a, backend=backend), lambda a: torch.add(y, a)),
        (lambda a: diglot.gelu(a, backend=backend), F.gelu),
    ]:
        for transformed in (
            lambda f: torch.func.jvp(f, (x,), (x,)),
            lambda f: torch.func.vjp(f, y)[1](x),
            lambda f: torch.func.vjp(f, x)[:1],
        ):
            for a, b in zip(transformed(own), transformed(theirs), strict=True):
                close(a, b)


TANGENTS = ["none", "dense", "zeros without memory", "expanded"]


@settings(max_examples=examples(10))
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents(backend, data):
    """Forward-mode differentiation, also of tangents that are zeros without memory."""
    # PyTorch makes no dual tensor where elements share memory, and drops inference tensors'.
    kinds = ["dense", "transposed", "sliced", "odd strides", "negative bit", "subclass"]
    x, y = (t.detach() for t in operands(data, 2, FLOATING, kinds))
    tangent_kinds = [data.draw(st.sampled_from(TANGENTS)) for _ in range(2)]
    functions = [
        (
            lambda a, b: diglot.gelu(diglot.add(a, b, alpha=2, backend=backend), backend=backend),
            lambda a, b: F.gelu(torch.add(a, b, alpha=2)),
        ),
        (
            lambda a, b: diglot.gelu(a, "tanh", backend=backend),
            lambda a, b: F.gelu(a, approximate="tanh"),
        ),
    ]
    tangents = [
        None if kind == "none" else KINDS[kind](list(t.shape), t.dtype)
        for t, kind in zip((x, y), tangent_kinds, strict=True)
    ]
    for own, theirs in functions:
        results = []
        for function in (own, theirs):
            with forward_ad.dual_level():
                duals = [
                    t if tangent is None else forward_ad.make_dual(t, tangent)
                    for t, tangent in zip((x, y), tangents, strict=True)
                ]
                results.append(forward_ad.unpack_dual(function(*duals)))
        close(results[0].primal, results[1].primal)
        if results[1].tangent is None:
            assert results[0].tangent is None
        else:
            close(results[0].tangent, results[1].tangent)
