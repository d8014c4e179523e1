"""diglot.graphs on a GPU: what only CUDA's graphs, streams and allocator show."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from backends import KERNELS
from torch import nn

import diglot
from diglot.backends import scratch
from diglot.graphs import GraphError, GraphWarning, Pool, capture
from diglot.graphs.device import find_device

pytestmark = pytest.mark.gpu
STEPS = 10


@pytest.fixture(autouse=True)
def graphs_alone():
    """Graphs of other tests are gone, so that a test counts only its own memory."""
    gc.collect()
    torch.cuda.synchronize()
    yield
    gc.collect()


def encoder(width=64, layers=2, dropout=0.0):
    torch.manual_seed(0)
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(dropout)]
    return nn.Sequential(*blocks).cuda()


def test_the_stream_of_a_call():
    """By the library, if there is one: PyTorch's current stream, and none in a capture."""
    gpu = find_device(torch.device("cuda", torch.cuda.current_device()))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    assert gpu.free_stream() == torch.cuda.current_stream().cuda_stream
    with torch.cuda.stream(stream):
        assert gpu.free_stream() == stream.cuda_stream
    x = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        x.add_(1)
        assert gpu.free_stream() is None


# --- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", KERNELS)
def test_ops_by_buckets(backend):
    """All of diglot's ops on rows, and those with a stream's scratch, padded and not."""

    def forward(x, mask):
        y = diglot.gelu(x, backend=backend)
        y = diglot.softmax(y, -1, backend=backend) + diglot.add(x, y, backend=backend)
        y = diglot.layer_norm(y, (96,), backend=backend)
        return y, diglot.global_softmax(x * mask[..., None], backend=backend)

    def request(batch, length):
        return torch.randn(batch, length, 96, device="cuda"), torch.ones(
            batch, length, device="cuda"
        )

    dims = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
    with torch.no_grad():
        graphed = capture(
            lambda x, mask: forward(x, mask)[0],
            request(2, 5),
            dims=dims,
            buckets={"batch": (1, 2, 4), "length": (8, 16)},
            max_padding=20,
        )
        whole = capture(forward, request(4, 16))
        for batch, length in [(4, 16), (1, 3), (3, 9), (2, 8), (4, 1), (1, 16)]:
            x, mask = request(batch, length)
            torch.testing.assert_close(graphed(x, mask), forward(x, mask)[0])
        for _ in range(3):
            x, mask = request(4, 16)
            torch.testing.assert_close(whole(x, mask), forward(x, mask))


def test_ten_replays_have_ten_masks():
    for dropout in (nn.functional.dropout, diglot.dropout):
        graphed = capture(
            lambda x, dropout=dropout: dropout(x, 0.5), torch.ones(256, device="cuda")
        )
        x = torch.ones(256, device="cuda")
        assert len({tuple(graphed(x).tolist()) for _ in range(10)}) == 10


def test_random_numbers_are_eager_s():
    def draws(x):
        return nn.functional.dropout(x, 0.5) + diglot.dropout(x, 0.3) + torch.rand_like(x)

    x = torch.ones(1000, device="cuda")
    torch.manual_seed(3)
    graphed = capture(draws, x, clone=True)
    found = [graphed(x) for _ in range(3)]
    torch.manual_seed(3)
    assert all(map(torch.equal, found, [draws(x) for _ in range(3)]))


def test_gradients():
    model = encoder(dropout=0.2)
    graphed = capture(
        model, torch.randn(3, 64, device="cuda", requires_grad=True),
        dims={0: "n"}, buckets={"n": (4, 8)},
    )  # fmt: skip
    found = []
    for function in (graphed, model):
        model.zero_grad()
        x = torch.ones(8, 64, device="cuda", requires_grad=True)
        for step in range(2):
            torch.manual_seed(step)
            function(x * 2).square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found)


def test_a_compiled_function():
    model = encoder()
    compiled = torch.compile(model, dynamic=False)
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        graphed = capture(compiled, x)
        torch.testing.assert_close(graphed(x), model(x), rtol=1e-4, atol=1e-4)
        model[0].weight = nn.Parameter(torch.zeros_like(model[0].weight))
        with pytest.raises(GraphError, match=r"0\.weight was replaced"):
            graphed(x)


def test_ten_thousand_replays_leak_nothing():
    model = encoder()
    with torch.no_grad():
        graphed = capture(
            model, torch.randn(8, 64, device="cuda"),
            dims={0: "n"}, buckets={"n": (1, 2, 4, 8)}, max_padding=8, clone=True,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(n, 64, device="cuda") for n in range(1, 9)]
        for x in xs:
            graphed(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _objects()
        for i in torch.randint(8, (10_000,), generator=generator).tolist():
            graphed(xs[i])
        torch.cuda.synchronize()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _objects()
    assert after[:2] == before[:2]
    assert after[2] <= before[2] + 50


def _objects():
    gc.collect()
    return len(gc.get_objects())


def test_memory_of_eight_buckets():
    def reserved(sizes):
        graphed = capture(
            lambda x: (x.exp() + x.sin()).softmax(-1), torch.randn(8, 1 << 20, device="cuda"),
            dims={0: "n"}, buckets={"n": sizes}, max_padding=99,
        )  # fmt: skip
        return graphed.report().pool_bytes

    alone = reserved((64,))
    assert alone > 0
    assert reserved((1, 2, 4, 8, 16, 32, 48, 64)) <= 1.2 * alone


def test_results_outlive_their_graph():
    """They keep its memory, and nothing else gets it."""
    graphed = capture(lambda x: x * 3, torch.ones(1 << 20, device="cuda"))
    result = graphed(torch.full((1 << 20,), 2.0, device="cuda"))
    graphed.pool.release()
    del graphed
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(1 << 20, device="cuda") for _ in range(20)]
    assert (result == 6).all()
    del others


def test_a_rebuilt_pool_frees_memory():
    """Results that a callable has kept do not hold dropped memory."""
    pool = Pool("cuda")
    x = torch.ones(1 << 24, device="cuda")
    graphed = capture(lambda x: x * 3 + 1, x, pool=pool)
    graphed(x)
    before = torch.cuda.memory_reserved()
    pool.rebuild()
    assert torch.cuda.memory_reserved() <= before - (1 << 26)
    assert graphed(x).eq(4).all()


def test_memory_comes_back():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graphed = capture(lambda x: x * 3 + 1, torch.ones(1 << 24, device="cuda"))
    assert torch.cuda.memory_reserved() > before + (1 << 26)
    del graphed
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (1 << 22)


# --- faults --------------------------------------------------------------------------------------


def _waits(x):
    return x * x.sum().item()


def _prints(x):
    str(x)
    return x + 1


def _pins(x):
    return x + torch.ones(4).pin_memory().to("cuda", non_blocking=True)


def _raises(x):
    if torch.cuda.is_current_stream_capturing():
        raise KeyError("of the function")
    return x * 2


def _forks(x):
    """Never joins, so that the capture cannot end."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return x * 2


@pytest.mark.parametrize("function", [_waits, _prints, _raises, _forks])
def test_after_an_error_all_works(function):
    """Stream, allocator and generator are as before, and the next capture works."""
    x = torch.ones(64, device="cuda")
    stream = torch.cuda.current_stream()
    pool = Pool("cuda")
    kept = capture(torch.neg, x, pool=pool)
    with pytest.raises(KeyError if function is _raises else GraphError):
        capture(function, x, pool=pool)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.empty_cache()  # an error while the allocator believes in a capture
    torch.rand(4, device="cuda")  # likewise of the generator
    assert kept(x).eq(-1).all()
    again = capture(lambda x: nn.functional.dropout(x, 0.5), x, pool=pool)
    assert not torch.equal(again(x).clone(), again(x))


def test_pinned_memory():
    """It may be allocated in a capture, by some versions of PyTorch; nothing breaks."""
    with contextlib.suppress(GraphError):
        capture(_pins, torch.ones(4, device="cuda"))
    assert (
        capture(torch.neg, torch.ones(4, device="cuda"))(torch.ones(4, device="cuda")).sum() == -4
    )


def test_out_of_memory():
    free, _ = torch.cuda.mem_get_info()
    most = (free // 4 // 6) // 1024  # rows of 1024 floats: three such do not fit

    def large(x):
        return (x.expand(len(x), 1024) + 1).sum(1), x.new_ones(1)

    with pytest.warns(GraphWarning, match="out of memory"):
        graphed = capture(
            large, torch.ones(8, 1, device="cuda"), dims={0: "n"}, out_dims=({0: "n"}, None),
            buckets={"n": (8, 40 * most)}, max_padding=1e12,
        )  # fmt: skip
    assert graphed(torch.ones(3, 1, device="cuda"))[0].tolist() == [2048] * 3
    with pytest.raises(GraphError, match="smaller buckets stay usable"):
        graphed(torch.ones(9, 1, device="cuda"))


def test_nothing_is_tuned_in_a_capture():
    def tunes(x):
        if torch.cuda.is_current_stream_capturing():
            diglot.tune(diglot.gelu, x)
        return x

    with pytest.raises((GraphError, RuntimeError), match="nothing is tuned while a CUDA graph"):
        capture(tunes, torch.ones(64, device="cuda"))


# --- scratch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", KERNELS)
def test_scratch_belongs_to_the_graph(backend):
    """Two graphs never share it; it goes when they go."""

    def held():
        torch.cuda.synchronize()
        gc.collect()
        return scratch.held_bytes()["graphs"]

    x = torch.randn(1 << 16, device="cuda")
    before, pool = held(), Pool("cuda")
    made = [
        capture(lambda x: diglot.global_softmax(x, backend=backend), x, pool=pool) for _ in range(2)
    ]
    assert held() > before
    owners = list(scratch._graphs.values())[-2:]
    addresses = [{b.data_ptr() for b in owner.buffers.values()} for owner in owners]
    assert all(addresses) and not addresses[0] & addresses[1]
    expected = torch.softmax(x.double(), 0)
    for graphed in made * 3:
        torch.testing.assert_close(graphed(x).double(), expected, rtol=1e-4, atol=1e-9)
    del made, graphed
    pool.release()
    assert held() == before
