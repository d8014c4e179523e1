"""grouped_mm: values in every layout and for all kinds of offsets, derivatives, errors."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, DEVICE, FLOATING, KERNELS, SLOW_BACKENDS, needs_cuda, spacing
from product_cases import integers, laid_out, normal, surrounded

import diglot
from diglot.backends.tunables import specs, tunables
from diglot.ops.grouped_mm import _grouped_mm
from diglot.reference.grouped_mm import expected_grouped, grouped_mm_oracle

BF16, WIDE = torch.bfloat16, torch.float64
# Ends of groups of 144: on edges of tiles and off them, empty groups, rows of no group.
ENDS = {
    "ragged": [3, 70, 144],
    "empty": [0, 64, 64, 128, 128],
    "rows of no group": [5, 60, 133],
    "one": [144],
    "all empty": [0, 0],
    "none": [],
}
# No promise but that memory stays whole, and what the documentation says.
WRONG = {"unsorted": [90, 30, 120], "past the end": [60, 200, 300], "negative": [-7, 50, 144]}
KINDS = ("rows", "columns", "K")


def offsets(ends) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32, device=DEVICE)


def operands(kind, groups, dtype, size=144, k=24, n=40, draw=normal):
    """Operands of a product whose groups divide a dimension of this size."""
    if kind == "rows":
        return draw(size, k, dtype=dtype), draw(groups, k, n, dtype=dtype)
    if kind == "columns":
        return draw(groups, n, k, dtype=dtype), draw(k, size, dtype=dtype)
    return draw(k, size, dtype=dtype), draw(size, n, dtype=dtype)


def assert_grouped(result, a, b, offs):
    """Within the roundings of each sum, and of the result."""
    expected = expected_grouped(a, b, offs)
    (right,) = expected.tensors
    assert result.shape == right.shape and result.dtype == a.dtype and result.is_contiguous()
    allowed = expected.allowance + 0.5 * spacing(right, a.dtype)
    assert ((result.detach().double() - right).abs() <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values(backend, dtype, kind):
    for ends in list(ENDS.values())[: None if dtype == BF16 else 2]:
        a, b = operands(kind, len(ends), dtype)
        result = diglot.grouped_mm(a, b, offs=offsets(ends), backend=backend)
        assert_grouped(result, a, b, offsets(ends))


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_offsets(backend, kind, name):
    """Every backend reads them in one way. The interpreters would see an access out of bounds."""
    offs = offsets(WRONG[name])
    a, b = operands(kind, 3, BF16)
    result = diglot.grouped_mm(surrounded(a, 0, 0), b, offs=offs, backend=backend)
    assert_grouped(result, a, b, offs)


@pytest.mark.parametrize("kind", KINDS)
@needs_cuda
def test_integers_are_exact_in_both_languages(kind):
    for dtype in (BF16, torch.float32):
        a, b = operands(kind, 3, dtype, draw=integers)
        offs = offsets(ENDS["ragged"])
        results = [diglot.grouped_mm(a, b, offs=offs, backend=each) for each in ("cuda", "triton")]
        assert torch.equal(*results)
        assert torch.equal(results[0].double(), grouped_mm_oracle(a, b, offs))


def tiles_in_cuda(kind, width):
    """The name of CUDA's plan for tiles of at most this width."""
    width = max(width, 64) if kind == "K" else width
    return f"wgmma, tiles of {f'128x{width}' if kind == 'K' else f'{width}x128, exchanged'}"


@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("kind", ["rows", "K"])
@needs_cuda
def test_tensor_cores_in_cuda(kind, width):
    """The interpreter's 8 blocks have several tiles, and tiles more steps than the ring has stages.
    Tails of groups of K are in the first, the last and the only stage.
    """
    ends, sizes = [300, 301, 301, 365, 720], {"size": 720, "k": 136, "n": 264}
    if kind == "rows":
        stages = min(10, 4 * 384 // (128 + width))  # lines of 128 bytes, for four widest stages
        sizes = {"size": 720, "k": 64 * (stages + 1) + 8, "n": 136}
    a, b = operands(kind, 5, BF16, draw=integers, **sizes)
    layouts = [(a, b), (a, laid_out(b, True)), (laid_out(a, True), b)]
    exact = grouped_mm_oracle(a, b, offsets(ends)).bfloat16()
    with diglot.use_plans({"products.cuda.columns": width}):
        for first, second in (
            layouts if width == 64 else layouts[1:2] if kind == "rows" else [(laid_out(a, True), b)]
        ):
            result = diglot.grouped_mm(first, second, offs=offsets(ends), backend="cuda")
            assert diglot.last_run().variant == tiles_in_cuda(kind, width)
            assert torch.equal(result, exact)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_sizes_around_tiles(backend, kind):
    """Groups of no row, of one, and of about as many as products of wgmma have. Behind them are
    rows of no group. TMA stores C, or threads do.
    """
    sizes = (0, 1, 15, 16, 17, 0, 63, 64, 65, 129, 0)
    ends = offsets([sum(sizes[: i + 1]) for i in range(len(sizes))])
    size = sum(sizes) + 22
    for n, is_transposed in ((72, False), (72, True), (67, False)):
        a, b = operands(kind, len(sizes), BF16, size=size, k=40, n=n, draw=integers)
        a, b = (a, laid_out(b, True)) if kind == "rows" else (laid_out(a, is_transposed), b)
        result = diglot.grouped_mm(a, b, offs=ends, backend=backend)
        assert torch.equal(result, grouped_mm_oracle(a, b, ends).bfloat16())


@pytest.mark.parametrize("mean", [1, 16, 17, 33, 64, 65, 129])
@needs_cuda
def test_tiles_follow_the_mean_size_in_cuda(mean):
    """Short groups have narrow boxes, in a tile with room for longer groups."""
    a, b = operands("rows", 4, BF16, size=4 * mean, k=72, n=136, draw=integers)
    for ends in ([mean, 2 * mean, 3 * mean, 4 * mean], [0, 4 * mean, 4 * mean, 4 * mean]):
        result = diglot.grouped_mm(a, b, offs=offsets(ends), backend="cuda")
        width = 64 if mean <= 64 else 128 if mean <= 128 else 256
        assert diglot.last_run().variant == tiles_in_cuda("rows", width)
        assert torch.equal(result, grouped_mm_oracle(a, b, offsets(ends)).bfloat16())


def test_descriptors_in_triton():
    """Programs have several tiles, of both layouts of B, and of groups of K. TMA stores C, or
    threads do, where its rows do not begin at multiples of 16 bytes.
    """
    ends, sizes = offsets([130, 131, 131, 250, 290]), {"size": 300, "k": 136, "n": 264}
    a, b = operands("rows", 5, BF16, draw=integers, **sizes)
    of_k = operands("K", 5, BF16, draw=integers, **sizes)
    odd = a, laid_out(b[..., :-1].contiguous(), True)
    for first, second in ((a, b), (a, laid_out(b, True)), odd, (laid_out(of_k[0], True), of_k[1])):
        result = diglot.grouped_mm(first, second, offs=ends, backend="triton")
        assert diglot.last_run().variant.startswith("descriptors, tiles of ")
        assert torch.equal(result, grouped_mm_oracle(first, second, ends).bfloat16())


@pytest.mark.parametrize("kind", ["rows", "K"])
def test_tiles_in_triton(kind):
    """Each tile for groups of some mean size; groups end within, at and behind tiles' edges."""
    name = "products.triton.grouped" + "_k" * (kind == "K")
    numbers = [full.removeprefix(name).split(".") for full in specs()]
    sizes = [each[1] for each in numbers if each[0] == "" and each[-1] == "rows"]
    assert len(sizes) > 1
    for most in sizes:
        mean = 300 if most == "more" else int(most)
        if mean == 0:
            continue
        ends = offsets([mean - 3, mean - 3, 2 * mean])
        a, b = operands(kind, 3, BF16, size=3 * mean - 1, k=40, n=72, draw=integers)
        a = laid_out(a, kind == "K")
        result = diglot.grouped_mm(a, b, offs=ends, backend="triton")
        tile = tunables().read(name, mean)
        assert " of {rows}x{columns}".format(**tile) in diglot.last_run().variant
        assert torch.equal(result, grouped_mm_oracle(a, b, ends).bfloat16()), most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_groups_do_not_touch(backend, kind):
    """NaN in one group, and beyond all, reaches no other: not even as 0 x NaN."""
    ends = [20, 75, 130]
    for is_transposed in (False, True):
        a, b = operands(kind, 3, BF16)
        a = laid_out(a, is_transposed)
        divided = {"rows": [a], "columns": [b.mT], "K": [a.mT, b]}[kind]
        for matrix in divided:
            matrix[20:75] = torch.nan
            matrix[130:] = torch.inf
        result = diglot.grouped_mm(a, b, offs=offsets(ends), backend=backend)
        parts = {"rows": result, "columns": result.mT, "K": result}[kind]
        if kind == "K":
            assert parts[1].isnan().all() and parts[[0, 2]].isfinite().all()
        else:
            assert parts[20:75].isnan().all() and (parts[130:] == 0).all()
            assert parts[:20].isfinite().all() and parts[75:130].isfinite().all()


@pytest.mark.parametrize("kind", ["rows", "K"])
@pytest.mark.parametrize("backend", KERNELS)
def test_strides(backend, kind):
    """What TMA does not take: odd places, gaps, transposes, one matrix for all groups."""
    offs = offsets(ENDS["ragged"])
    a, b = operands(kind, 3, BF16)
    transposed = [t.mT.contiguous().mT for t in (a, b)]
    doubled = [t.repeat_interleave(2, -1)[..., ::2] for t in (a, b)]
    shared = [t[:1].expand_as(t) if t.dim() == 3 else t for t in (a, b)]
    for first, second in (transposed, [surrounded(t) for t in (a, b)], doubled, shared):
        result = diglot.grouped_mm(first, second, offs=offs, backend=backend)
        assert_grouped(result, first, second, offs)
    every_other = offsets([3, 0, 70, 0, 144, 0])[::2]
    assert_grouped(diglot.grouped_mm(a, b, offs=every_other, backend=backend), a, b, offs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches(backend):
    a, b = normal(3, 9, 24, dtype=BF16), normal(3, 24, 16, dtype=BF16)
    assert_grouped(diglot.grouped_mm(a, b, backend=backend), a, b, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_elements(backend):
    for kind in KINDS:
        for sizes in ({"size": 0}, {"k": 0}, {"n": 0}):
            a, b = operands(kind, 2, BF16, **sizes)
            offs = offsets([0, 0] if "size" in sizes else [50, 144])
            assert_grouped(diglot.grouped_mm(a, b, offs=offs, backend=backend), a, b, offs)


def looped(a, b, ends, kind):
    """By autograd's own ops."""
    pairs = list(zip([0, *ends], ends, strict=False))
    if kind == "K":
        return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in pairs])
    if kind == "columns":
        return looped(b.mT, a.mT, ends, "rows").mT
    parts = [a[begin:end] @ b[g] for g, (begin, end) in enumerate(pairs)]
    return torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[-1])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend, kind):
    """Twice; those of rows of no group are zeros."""
    ends = [2, 2, 5]
    a, b = (t.requires_grad_() for t in operands(kind, 3, WIDE, size=7, k=3, n=4))
    with diglot.record_runs() as runs:
        result = diglot.grouped_mm(a, b, offs=offsets(ends), backend=backend)
        grad = torch.randn_like(result).requires_grad_()
        ours = torch.autograd.grad(result, (a, b), grad, create_graph=True)
    assert [(run.backend, run.launcher) for run in runs] == [(backend, "grouped_mm_forward")] * 3
    theirs = torch.autograd.grad(looped(a, b, ends, kind), (a, b), grad, create_graph=True)
    torch.testing.assert_close(ours, theirs)
    ours, theirs = (
        torch.autograd.grad([g.square().sum() for g in pair], (a, b, grad))
        for pair in (ours, theirs)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    a, b = operands("rows", 2, WIDE, size=6, k=3, n=4)
    offs = offsets([2, 6])

    def product(a, b):
        return diglot.grouped_mm(a, b, offs=offs, backend=backend)

    def expected(a, b):
        return looped(a, b, [2, 6], "rows")

    batch = torch.stack([a, a.sin()])
    own = torch.func.vmap(product, (0, None))(batch, b)
    torch.testing.assert_close(own, torch.stack([expected(each, b) for each in batch]))
    own, theirs = (torch.func.jvp(f, (a, b), (a.cos(), b.sin())) for f in (product, expected))
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("backend", SLOW_BACKENDS[1:])
def test_operator_passes_opcheck(backend):
    a, b = (t.requires_grad_() for t in operands("rows", 2, WIDE, size=6, k=3, n=4))
    torch.library.opcheck(_grouped_mm.dispatched, (a, b, offsets([2, 6]), backend))


@pytest.mark.parametrize("backend", SLOW_BACKENDS[1:])
def test_compile(backend):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(a, b, offs):
        return diglot.grouped_mm(a.sin(), b, offs=offs, backend=backend)

    for size in (6, 9):
        a, b = (t.requires_grad_() for t in operands("rows", 2, WIDE, size=size, k=3, n=4))
        own, theirs = block(a, b, offsets([2, 5])), looped(a.sin(), b, [2, 5], "rows")
        torch.testing.assert_close(own, theirs)
        own, theirs = (torch.autograd.grad(r.sum(), (a, b)) for r in (own, theirs))
        torch.testing.assert_close(own, theirs)


def test_fake_and_meta_tensors():
    a, b = torch.empty(7, 4, device="meta"), torch.empty(2, 4, 5, device="meta")
    offs = torch.empty(2, dtype=torch.int32, device="meta")
    assert diglot.grouped_mm(a, b, offs=offs).shape == (7, 5)
    assert diglot.grouped_mm(b.mT, a.mT, offs=offs).shape == (5, 7)
    assert diglot.grouped_mm(a.mT, torch.empty(7, 5, device="meta"), offs=offs).shape == (2, 4, 5)


def test_autocast_casts_nothing():
    """As PyTorch's op, which is on none of its lists."""
    a, b = operands("rows", 2, torch.float32)
    with torch.autocast(DEVICE, dtype=BF16):
        assert diglot.grouped_mm(a, b, offs=offsets([2, 144])).dtype == torch.float32
        with pytest.raises(TypeError, match="must have one dtype"):
            diglot.grouped_mm(a.bfloat16(), b, offs=offsets([2, 144]))


def test_errors():
    a, b, offs = torch.ones(7, 4), torch.ones(2, 4, 5), torch.tensor([3, 7], dtype=torch.int32)
    for input, other, given, error, text in [
        (a, [1.0], offs, TypeError, "other must be a torch.Tensor"),
        (a.int(), b.int(), offs, TypeError, "input must have one of the dtypes"),
        (a, b.double(), offs, TypeError, "must have one dtype"),
        (a, b, [3, 7], TypeError, "offs must be a torch.Tensor"),
        (a, b, offs.long(), TypeError, "offs must be an int32 tensor"),
        (a, b, None, ValueError, "offs is needed"),
        (b.mT, b, offs, ValueError, "offs is not needed"),
        (a, b, offs[None], ValueError, "offs must have one dimension"),
        (a, b, offs[:1], ValueError, "must have as many groups"),
        (b[:1].mT, b, None, ValueError, "must have as many groups"),
        (a[:, :3], b, offs, ValueError, "do not multiply"),
        (a[0], b, offs, ValueError, "two or three dimensions"),
        (a, b.to("meta"), offs, ValueError, "must be on one device"),
        (a, b, offs.to("meta"), ValueError, "must be on one device"),
    ]:
        with pytest.raises(error, match=f"grouped_mm: .*{text}"):
            diglot.grouped_mm(input, other, offs=given)
    with pytest.raises(ValueError, match="bias must be None"):
        diglot.grouped_mm(a, b, offs=offs, bias=a[0])
    with pytest.raises(ValueError, match=r"out_dtype must be torch.float32, not torch.float64"):
        diglot.grouped_mm(a, b, offs=offs, out_dtype=torch.float64)
    assert diglot.grouped_mm(a, b, offs=offs, out_dtype=torch.float32).shape == (7, 5)


def test_auto_takes_torch():
    """Until products are measured."""
    a, b = operands("rows", 2, BF16)
    diglot.grouped_mm(a, b, offs=offsets([2, 144]))
    assert diglot.last_run().backend == "torch"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", KERNELS)
def test_full_size(backend, kind):
    """Many groups of uneven sizes against float64, and nothing that waits for the GPU."""
    torch.manual_seed(0)
    for dtype in (BF16, torch.float16):
        offs = torch.randint(0, 8192, (64,), device=DEVICE).sort().values.int()
        a, b = operands(kind, 64, dtype, size=8192, k=1024, n=768)
        torch.cuda.set_sync_debug_mode("error")
        result = diglot.grouped_mm(a, b, offs=offs, backend=backend)
        torch.cuda.set_sync_debug_mode("default")
        assert_grouped(result, a, b, offs)
