"""clip_grad_norm_ in CUDA graphs, on streams and on several GPUs, without waiting."""

from __future__ import annotations

import math

import pytest
import torch
from backends import KERNELS
from clipping import check, clip, copies, draw, with_grads

import diglot
from diglot.backends import scratch
from diglot.reference.clip_grad_norm_ import clip_grad_norm_oracle

pytestmark = pytest.mark.gpu

NORM_TYPES = [1.0, 2.0, math.inf]


@pytest.mark.parametrize("is_known", [False, True], ids=["new table", "known table"])
@pytest.mark.parametrize("backend", KERNELS)
def test_capture(backend, is_known):
    grads = draw([5000, 300, 1_000_003])
    originals = copies(grads)
    if is_known:
        clip(grads, 1.0, backend=backend)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total = clip(grads, 1.0, backend=backend)
    # Were the table recent alone, it would be gone now, and its memory another's.
    memory = torch.randn(1000, device="cuda")
    for size in range(1, scratch.MOST_VALUES + 10):
        clip([memory[:size]], 1.0, backend=backend)
    for factor in (1.0, 3.0, 0.5):
        for grad, original in zip(grads, originals, strict=True):
            torch.mul(original, factor, out=grad)
        norm, scaled = clip_grad_norm_oracle(grads, 1.0)
        graph.replay()
        torch.testing.assert_close(total.double(), norm, rtol=1e-5, atol=0)
        for grad, expected in zip(grads, scaled, strict=True):
            torch.testing.assert_close(grad.double(), expected, rtol=1e-5, atol=1e-30)


def test_many_captures():
    """More than PyTorch has streams: a table is never copied on the one that is captured."""
    for size in range(1, 70):
        grads = draw([size])
        before = grads[0].double()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            total = clip(grads, 0.0, backend="cuda")
        graph.replay()
        torch.testing.assert_close(total.double(), before.norm(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", KERNELS)
def test_a_graph_holds_one_kernel(backend):
    """And no copy of a table, since the host has long changed what it would read; nor a memset."""
    grads = draw([5000, 300])
    parameters = with_grads(grads)
    diglot.clip_grad_norm_(parameters, 1.0, backend=backend)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        diglot.clip_grad_norm_(parameters, 1.0, backend=backend)
    runtime = pytest.importorskip("cuda.bindings.runtime")
    _, _, count = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    assert count == 1


@pytest.mark.parametrize("backend", KERNELS)
def test_capture_refuses_to_wait(backend):
    grads = draw([5000])
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="during the capture of a CUDA graph"),
        torch.cuda.graph(graph),
    ):
        clip(grads, 1.0, error_if_nonfinite=True, backend=backend)


@pytest.mark.parametrize("backend", KERNELS)
def test_two_streams(backend):
    """The same gradients on another stream: their table is not read before it is there."""
    grads = draw([5000, 1_000_003])
    clip(grads, 1.0, backend=backend)  # loads the kernel
    side = torch.cuda.Stream()
    for _ in range(20):
        scratch._values.clear()
        with torch.no_grad():
            for grad in grads:
                grad.normal_()
        originals = copies(grads)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        first = clip(grads, 1.0, backend=backend)
        with torch.cuda.stream(side):
            other = copies(originals)
            second = clip(other, 1.0, backend=backend)
            third = clip(originals, 1.0, backend=backend)
        torch.cuda.synchronize()
        assert first == second == third
        assert all(map(torch.equal, grads, other))


@pytest.mark.parametrize("backend", KERNELS)
def test_nothing_waits(backend):
    grads = draw([5000, 300])
    clip(grads, 1.0, backend=backend)  # loads the kernel
    others = [grads, copies(grads), [grads[0][::2]]]
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for other in others:
            clip(other, 1.0, backend=backend)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("backend", KERNELS)
def test_several_gpus(backend):
    for device in ("cuda:1", "cuda:0"):
        check(backend, [grad.to(device) for grad in draw([5000, 300])], 1.0)
    with pytest.raises(ValueError, match="not on cuda:0 and cuda:1"):
        clip([torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")], 1.0)
