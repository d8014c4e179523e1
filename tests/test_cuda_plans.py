"""Plans of CUDA's launchers: what they depend on, that they are kept, and who may ask for one."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from diglot.backends.registry import INTERPRET, load_interpreter

H200, A100 = (90, 132, 228 << 10, True), (80, 108, 164 << 10, False)
launchers, reason = load_interpreter() if INTERPRET else (None, "no interpreter here")
pytestmark = pytest.mark.skipif(launchers is None, reason=reason or "unknown")


def test_numbers_are_no_part_of_a_plan():
    """They are given at each launch, in the kind that the kernel computes in."""
    x, out = torch.randn(20, 30), torch.empty(20, 30)
    names = []
    for alpha in (2, 3.5, -1):
        names.append(launchers.add_forward(x, x, alpha, out, None))
        torch.testing.assert_close(out, x + alpha * x)
    assert names[0] is names[1]
    integers = torch.arange(-3, 4)
    sums = torch.empty_like(integers)
    for alpha in (2**40 + 1, -7):
        launchers.add_forward(integers, integers, alpha, sums, None)
        assert torch.equal(sums, integers + alpha * integers)
    for eps in (1e-5, 2.0):
        launchers.rms_norm_forward(x, None, eps, None, out, None)
        expected = torch.nn.functional.rms_norm(x, (30,), eps=eps)
        torch.testing.assert_close(out, expected)
    seed = torch.tensor([5])
    first, second = torch.empty_like(x), torch.empty_like(x)
    for offset, masked in ((0, first), (1 << 20, second)):
        launchers.dropout_forward(x, seed, offset, 1 << 31, 2.0, masked, None)
    assert not torch.equal(first, second)


def test_layouts_of_the_same_sizes_have_plans_of_their_own():
    out = torch.empty(64, 100)
    weight = torch.randn(100)
    gelu, layer_norm = torch.nn.functional.gelu, torch.nn.functional.layer_norm
    for x in (
        torch.randn(64, 100),
        torch.randn(100, 64).t(),
        torch.randn(6401)[1:].view(64, 100),
        torch.randn(64, 200)[:, ::2],
        torch.randn(64, 1).expand(64, 100),
    ):
        for form in ("none", "tanh"):
            launchers.gelu_forward(x, form, out, None)
            torch.testing.assert_close(out, gelu(x, approximate=form))
    x = torch.randn(64, 100)
    for w, b in ((weight, None), (None, weight), (weight, weight), (None, None)):
        launchers.layer_norm_forward(x, w, b, 1e-5, None, out, None)
        expected = layer_norm(x, (100,), w, b)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_more_layouts_than_are_kept_on_many_threads():
    def add_to_each(columns: int) -> None:
        for rows in range(1, 1200):
            x = torch.randn(rows, columns)
            out = torch.empty_like(x)
            launchers.add_forward(x, None, 1, out, None)
            assert torch.equal(out, x + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_to_each, range(1, 6)))


def test_statistics_of_any_strides():
    """A batching rule hands out slices of them."""
    x, grad = torch.randn(5, 8), torch.randn(5, 8)
    batched = torch.randn(2, 3, 5).abs()
    results = []
    for statistics in (batched[:, 1], batched[:, 1].contiguous()):
        out = torch.empty_like(x)
        launchers.layer_norm_backward(grad, None, x, statistics, None, None, None, out, None)
        results.append(out)
    assert torch.equal(*results)
    for wrong in (batched[:1, 0], batched[:, 0, :4], batched[:, 0].double()):
        with pytest.raises(ValueError, match="statistics must have 2 numbers for each row"):
            launchers.layer_norm_backward(grad, None, x, wrong, None, None, None, out, None)


def test_a_launcher_says_what_scratch_it_needs_and_checks_it():
    x, out = torch.randn(20_000, 8), torch.full((20_000, 8), torch.nan)
    needed = launchers.softmax_forward(x, 0, out, None)
    bytes, *rest = needed
    assert rest == [0, "call"] and out.isnan().all()
    assert launchers.plan("softmax_forward", None, x, 0, out)[2] == needed
    memory = torch.empty(bytes + 64, dtype=torch.uint8)
    aligned = memory[-memory.data_ptr() % 16 :]
    for wrong in (aligned[: bytes - 1], aligned[1 : bytes + 1], aligned[:bytes].view(torch.int8)):
        with pytest.raises(ValueError, match="scratch must be"):
            launchers.softmax_forward(x, 0, out, wrong)
    assert out.isnan().all()
    variant = launchers.softmax_forward(x, 0, out, aligned[:bytes])
    assert variant.startswith("columns in two launches")
    torch.testing.assert_close(out, x.softmax(0))


def test_plans_read_no_memory():
    """Of real, meta and fake tensors they are the same; storages are taken to be aligned."""
    makers = [torch.empty, lambda *s, **k: torch.empty(*s, device="meta", **k)]
    plans = []
    for make in makers:
        whole = make(1 << 18, dtype=torch.bfloat16)
        plans.append([launchers.plan("gelu_forward", H200, t, "none", whole[: t.numel()])
                      for t in (whole, whole[1:], whole[8:])])  # fmt: skip
    with FakeTensorMode():
        whole = torch.empty(1 << 18, dtype=torch.bfloat16)
        plans.append([launchers.plan("gelu_forward", H200, t, "none", whole[: t.numel()])
                      for t in (whole, whole[1:], whole[8:])])  # fmt: skip
    assert plans[0] == plans[1] == plans[2]
    variants = [plan[0] for plan in plans[0]]
    assert variants[0] == variants[2] and variants[1].startswith("strided")


def test_dropout_starts_while_its_seed_is_drawn():
    """Where the GPU can, and in both walks. An op without a seed starts as usual."""
    x = torch.empty(4, 65536, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    for y in (x, x[:, ::2]):
        for device, flags in ((H200, ("pdl",)), (A100, ())):
            out = torch.empty_like(y)
            _, steps, *_ = launchers.plan("dropout_forward", device, y, seed, 0, 1, 1.0, out)
            assert [step[5] for step in steps] == [flags]
            _, steps, *_ = launchers.plan("gelu_forward", device, y, "none", out)
            assert [step[5] for step in steps] == [()]


def test_plans_of_named_devices():
    x = torch.empty(4, 65536, device="meta")
    (_, (h200,), none, _), (_, (a100,), *_) = (
        launchers.plan("softmax_forward", device, x, 1, x) for device in (H200, A100)
    )
    assert none is None
    assert (h200[3:5], a100[3:5]) == ((0, 16), (5 * 256 * 8 * 16, 1))
    tall = torch.empty(40_000, 64, device="meta")
    _, steps, scratch, _ = launchers.plan("softmax_forward", H200, tall, 0, tall)
    assert [step[5] for step in steps] == [(), ("pdl",)] and scratch[1:] == (0, "call")
    _, steps, *_ = launchers.plan("softmax_forward", A100, tall, 0, tall)
    assert [step[5] for step in steps] == [(), ()]
    large = torch.empty(1 << 26, device="meta")
    _, ((_, grid, *_, flags, _),), scratch, _ = launchers.plan(
        "global_softmax_forward", H200, large, 0, large
    )
    assert grid == (264, 1, 1) and flags == ("cooperative",) and scratch[1:] == (16, "stream")
    empty = torch.empty(0, 4)
    assert launchers.plan("gelu_forward", A100, empty, "none", empty) == (
        "nothing to do",
        [],
        None,
        [],
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("no_launcher", None), ValueError),
        (("gelu_forward",), TypeError),
        (("gelu_forward", 90), TypeError),
        (("gelu_forward", (90, 132)), ValueError),
        (("softmax_forward", None, 2), ValueError),
        (("softmax_forward", None, -1), ValueError),
        (("softmax_forward", None, 1.5), TypeError),
    ],
)
def test_calls_that_cannot_be_planned(arguments, error):
    x = torch.empty(3, 4)
    name, *rest = arguments
    if len(rest) == 2:  # a dimension
        rest = [rest[0], x, rest[1], x]
    elif rest and rest[0] is not None:
        rest = [rest[0], x, "none", x]
    with pytest.raises(error):
        launchers.plan(name, *rest)


def test_schemas():
    assert launchers.schemas["gelu_forward"] == (
        "(Tensor input, str approximate, Tensor(a!) out, Tensor(z!)? scratch) -> ()"
    )
    for name, text in launchers.schemas.items():
        arguments = torch._C.parse_schema(f"{name}{text}").arguments
        assert arguments[-1].name == "scratch" and callable(getattr(launchers, name))


@pytest.mark.parametrize("height", [100, 20_000])
def test_a_compiled_graphs_scratch_fits_memory_that_begins_anywhere(height):
    """The graph is traced with one alignment, and may run with another."""
    storage, out = torch.empty(height * 64 + 1), torch.empty(height, 64)
    needs = []
    for start in (0, 1):
        x = storage[start : start + height * 64].view(height, 64)
        needs.append(launchers.plan("softmax_forward", None, x, 0, out)[2])
    enough = launchers.scratch_of("softmax_forward", x, 0, out)
    if height == 100:
        assert enough is None and needs == [None, None]
    else:
        assert needs[0] != needs[1], "the test is of plans that differ"
        assert enough == (max(n[0] for n in needs), max(n[1] for n in needs), "call")


@pytest.mark.slow
def test_a_child_process_finds_plans():
    """A thread of the parent that plans may hold the lock of the plans when it forks."""
    ended = threading.Event()

    def plan_on():
        size = 1
        while not ended.is_set():
            size += 1
            x = torch.zeros(size)
            launchers.plan("gelu_forward", None, x, "none", x)
            launchers.gelu_forward(x[:1], "none", x[:1], None)

    thread = threading.Thread(target=plan_on)
    thread.start()
    try:
        for _ in range(20):
            child = multiprocessing.get_context("fork").Process(target=_plan)
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        ended.set()
        thread.join()


def _plan():
    x = torch.zeros(3, 1)
    assert launchers.plan("gelu_forward", None, x, "none", x)[0] != ""
    launchers.gelu_forward(x, "none", x, None)
