"""The nodes, the edges and the report of graphs, on a GPU."""

from __future__ import annotations

import pytest
import torch
from backends import KERNELS
from torch import nn

import diglot
from diglot.graphs import capture, inspect

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", KERNELS)
def test_nodes(backend, tmp_path):
    def forward(x):
        y = diglot.gelu(x, backend=backend)
        return diglot.softmax(y, -1, backend=backend).zero_() + x.sum()

    graphed = capture(forward, torch.randn(64, 512, device="cuda"))
    found = inspect(graphed)
    runs = [node.run for node in found.nodes if node.run is not None]
    assert {run.launcher for run in runs} == {"gelu_forward", "softmax_forward"}
    assert all(run.backend == backend and run.variant for run in runs)
    kernels = [node for node in found.nodes if node.kind == "kernel"]
    assert all(node.grid and node.block and node.name for node in kernels)
    assert found.depth == len(found.nodes) > 3 and found.width == 1
    found.save(tmp_path / "graph.json")
    assert "gelu_forward" in str(found)


def test_fork_and_join():
    """Two branches on two streams are side by side in the graph."""
    side = torch.cuda.Stream()

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            one = x.exp().sin()
        other = x.cos().tan()
        torch.cuda.current_stream().wait_stream(side)
        return one + other

    x = torch.randn(1 << 12, device="cuda")
    graphed = capture(forward, x)
    found = inspect(graphed)
    assert found.width == 2 and found.depth == 3
    for _ in range(3):
        torch.testing.assert_close(graphed(x), forward(x))


def test_report():
    graphed = capture(nn.Linear(64, 64).cuda(), torch.randn(8, 64, device="cuda"))
    report = graphed.measure(20)
    (graph,) = report.graphs
    assert graph.replay_us > 0 and graph.host_us > 0 and graph.capture_ms > 0
    assert report.pool_bytes > 0 and graph.needed_bytes > 0
