"""bmm: values, derivatives, errors. Its code is shared with matmul: tests/test_matmul.py."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, FLOATING, KERNELS
from product_cases import assert_derivatives, assert_product, laid_out, normal, surrounded

import diglot
from diglot.reference.bmm import bmm_oracle


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_values(backend, dtype):
    a, b = normal(3, 24, 16, dtype=dtype), normal(3, 16, 40, dtype=dtype)
    for x, y in ((a, b), (laid_out(a, True), b), (a, laid_out(b, True)), (a[:, :0], b)):
        assert_product(diglot.bmm(x, y, backend=backend), x, y)
    assert diglot.bmm(a[:0], b[:0], backend=backend).shape == (0, 24, 40)
    assert diglot.bmm(a[..., :0], b[:, :0], backend=backend).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_batches_by_tma(backend, dtype):
    """Matrices in all layouts, with gaps, one for all, and results that TMA does not store."""
    a, b = normal(3, 72, 136, dtype=dtype), normal(3, 136, 88, dtype=dtype)
    for x, y in [
        *(
            (laid_out(a, left), laid_out(b, right))
            for left in (False, True)
            for right in (False, True)
        ),
        (surrounded(a, 1, 8), surrounded(b, 2, 16)),
        (a[::2], b[:2]),
        (a[:1].expand_as(a), b),
        (a, laid_out(b, True)[..., :41]),
        (a[:, :1], b),
    ]:
        assert_product(diglot.bmm(x, y, backend=backend), x, y)
        assert diglot.last_run().variant.startswith(("wgmma", "descriptors"))


@pytest.mark.parametrize("backend", KERNELS)
def test_two_dimensions_by_tma(backend):
    """As heads of an attention lie, and with matrices that differ along one dimension alone."""
    dtype = torch.bfloat16
    heads, keys = (normal(2, 40, 3, 72, dtype=dtype).transpose(1, 2) for _ in range(2))
    for x, y in [
        (heads, keys.mT),
        (heads, keys[:1].mT),
        (heads, keys[:, :1].mT),
        (heads[:, :1], keys.mT),
        (heads, keys[:, :, :37].mT),
    ]:
        assert_product(diglot.matmul(x, y, backend=backend), x, y)
        assert diglot.last_run().variant.startswith(("wgmma", "descriptors"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_pytorchs_hands(backend):
    a, b = (normal(*s, dtype=torch.float64).requires_grad_() for s in ((2, 3, 4), (2, 4, 5)))

    def own(*given):
        return diglot.bmm(*given, backend=backend)

    assert_derivatives(own, torch.bmm, [a, b])
    assert diglot.last_run().backend == backend
    torch.testing.assert_close(own(a, b), bmm_oracle(a, b))
    more = normal(3, 2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(
        torch.vmap(own, (0, None))(more, b), torch.vmap(torch.bmm, (0, None))(more, b)
    )


def test_errors():
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    for given, text in [
        ((a[0], b), "input and mat2 must be batches of as many matrices"),
        ((a, b[:1]), "batches of as many matrices"),
        ((a, b.mT), "bmm: input and mat2 do not multiply"),
    ]:
        with pytest.raises(ValueError, match=text):
            diglot.bmm(*given)
