"""Both languages' kernels on the same operands, against each other and against the oracle."""

from __future__ import annotations

import pytest
import torch
from backends import (
    APART,
    CUDA,
    DEVICE,
    FLOATING,
    ULP,
    assert_close,
    examples,
    spacing,
    ulp_error,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import KINDS, operands

from diglot.ops.add import DTYPES
from diglot.reference.specs import Expected, as_tuple, find_spec, op_names

F32 = torch.float32
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# These need more than a value: their tests are in test_operands.py.
# Operands of these must multiply: their own tests draw them.
PRODUCTS = ("addmm", "baddbmm", "bmm", "linear", "matmul", "mlp")
PLAIN_KINDS = [kind for kind in KINDS if kind not in ("zeros without memory", "inference")]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_subclass(torch.Tensor)


def assert_expected(result: torch.Tensor, expected: Expected) -> None:
    oracle = expected.function(*(plain(t) for t in expected.tensors)).expand(result.shape)
    if not result.is_floating_point():
        assert torch.equal(result, oracle.to(result.dtype))
        return
    error = ulp_error(result, oracle)
    if expected.allowance is not None:
        error -= (expected.allowance / spacing(oracle, result.dtype)).cpu()
    is_wide = result.dtype == torch.float64
    ulp = (expected.float64_ulp or 4.0) if is_wide else ULP[result.dtype]
    assert (error <= ulp).all(), error.max()


def assert_twins(name: str, cuda: torch.Tensor, triton: torch.Tensor) -> None:
    assert (cuda.dtype, cuda.shape, cuda.stride()) == (triton.dtype, triton.shape, triton.stride())
    apart = APART.get(name, 1.0)
    if apart is None:
        return
    if apart == 0:
        # Of one width: another asks for a stride of 1 even where nothing is stepped over.
        assert torch.equal(*(t.view(BITS[t.element_size()]) for t in (cuda, triton)))
    elif cuda.dtype == torch.float64:  # its exponential is each language's own
        assert_close(cuda, triton, 8.0)
    elif cuda.numel() > 0:
        assert ulp_error(cuda, triton.double()).max() <= apart


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize(
    "name", [name for name in op_names() if not name.endswith("_norm") and name not in PRODUCTS]
)
@pytest.mark.parametrize("first", [CUDA])
def test_forward_and_backward(first, name, data):
    check(first, name, data)


@settings(max_examples=10)  # test_norms.py has more of them
@given(data=st.data())
@pytest.mark.parametrize("name", [name for name in op_names() if name.endswith("_norm")])
@pytest.mark.parametrize("first", [CUDA])
def test_norms(first, name, data):
    check(first, name, data)


def check(first, name, data):
    """Forward and backward, of operands as Hypothesis draws them."""
    spec = find_spec(name)
    dtypes = FLOATING if spec.floating_only else DTYPES
    made = operands(data, 1 if spec.shapes else len(spec.inputs), dtypes, PLAIN_KINDS)
    if spec.shapes:  # the others' shapes are what follows from the first one's
        made[0] = made[0] if made[0].dim() else made[0].reshape(1)
        dtype = data.draw(st.sampled_from([made[0].dtype, torch.promote_types(made[0].dtype, F32)]))
        for which, shape in list(zip(spec.inputs, spec.shapes(made[0].shape), strict=True))[1:]:
            own = made[0].dtype if which == "residual" else dtype
            made.append(torch.randn(shape, device=DEVICE).to(own))
    plains = st.lists(st.sampled_from([True, False]), min_size=len(made), max_size=len(made))
    inputs = [
        plain(t) if is_plain else t.detach()
        for is_plain, t in zip(data.draw(plains), made, strict=True)
    ]
    wanted = [t.requires_grad_() for t in inputs if t.is_floating_point()]
    rank = max(inputs[0].dim(), 1)
    options = {
        option: data.draw(
            st.integers(-rank, rank - 1)
            if option == "dim"
            else st.sampled_from(given.allowed or (given.default, given.another)),
            label=option,
        )
        for option, given in spec.options.items()
    }
    results = [spec.function(*inputs, **options, backend=b) for b in (first, "triton")]
    outputs = [as_tuple(result) for result in results]
    rights = spec.expected(*map(plain, inputs), **options).values()
    for cuda, triton, right in zip(*outputs, rights, strict=True):
        assert_twins(name, plain(cuda), plain(triton))
        assert_expected(plain(cuda), right)
        assert_expected(plain(triton), right)
    if not wanted:
        return
    grads = [torch.randn(out.shape, device=DEVICE).to(out.dtype) for out in outputs[0]]
    gradients = [torch.autograd.grad(of, wanted, grads) for of in outputs]
    expected = spec.backward(*grads, *map(plain, inputs), **options)
    named = [n for n, t in zip(spec.inputs, inputs, strict=True) if t.is_floating_point()]
    for argument, *pair in zip(named, *gradients, strict=True):
        cuda, triton = (plain(gradient) for gradient in pair)
        assert_expected(cuda, expected[argument])
        if expected[argument].allowance is None:
            assert_twins(name, cuda, triton)
        else:  # a sum, in an order of each language's own
            assert_expected(triton, expected[argument])
