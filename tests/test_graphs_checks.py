"""What diglot.graphs refuses, reports and survives; no GPU is needed."""

from __future__ import annotations

import functools
import json
import threading
import weakref

import pytest
import torch
from padded import MIXED, capture_pooled, check_pooled, make_pooled
from recorded_graphs import install
from torch import nn

import diglot
from diglot.graphs import GraphError, GraphWarning, Pool, capture, inspect
from diglot.graphs.buckets import Buckets
from diglot.graphs.family import Family
from diglot.graphs.inputs import StaticInputs


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def linear():
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.fixture
def pooled():
    return make_pooled()


# --- warm-up and capture -------------------------------------------------------------------------


def test_warm_up_is_on_a_side_stream_and_leaves_no_trace(device):
    streams = []
    norm = nn.BatchNorm1d(4)

    def step(x):
        streams.append((device.stream, device.is_capturing()))
        return norm(x) + torch.rand(4)

    buffers = [buffer.clone() for buffer in norm.buffers()]
    example, state = torch.randn(5, 4), torch.get_rng_state()
    with torch.no_grad():
        graphed = capture(step, example, warmup=2)
    assert streams == [(7, False), (7, False), (1, True)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, buffers, norm.buffers()))
    with torch.no_grad():
        graphed(torch.randn(5, 4))
    assert not torch.equal(buffers[0], norm.running_mean)


def test_what_no_graph_can_hold(device):
    def waits(x):
        return x * 2 if x.sum().item() > 0 else x

    calls = []

    def grows(x):
        calls.append(x)
        return x.new_zeros(len(calls))

    with pytest.raises(GraphError, match=r"(?s)waits \(one shape\) cannot be captured.*item\(\)"):
        capture(waits, torch.ones(2))
    with pytest.raises(GraphError, match="grows returned other shapes or numbers for the same"):
        capture(grows, torch.ones(2))
    with pytest.raises(GraphError, match="writes into an argument"):
        capture(lambda x: x.add_(1), torch.ones(2))
    with pytest.raises(ZeroDivisionError):  # its own errors stay what they are
        capture(lambda x: x * (1 / 0), torch.ones(2))
    assert not device.is_capturing()
    assert capture(torch.neg, torch.ones(2))(torch.ones(2)).tolist() == [-1, -1]


def test_a_capture_within_a_capture(device):
    inner = capture(torch.neg, torch.ones(2))
    outer = capture(lambda x: inner(x) + 1, torch.ones(2))  # it becomes a part of the outer graph
    assert outer(torch.full((2,), 3.0)).tolist() == [-2, -2]
    assert inner.graphs["neg (one shape)"].replays == 0  # nor is it replayed in the warm-up

    def nests(x):
        if device.is_capturing():
            capture(torch.neg, torch.ones(2))
        return x

    with pytest.raises(GraphError, match="captures do not nest"):
        capture(nests, torch.ones(2))


def test_out_of_memory_leaves_other_buckets(device):
    def fragile(x):
        return x.sort().values if len(x) == 8 else x + 1

    device.fails_at = "aten.sort.default"
    with pytest.warns(GraphWarning, match=r"fragile \(n=8\): out of memory in its capture"):
        graphed = capture(
            fragile, torch.ones(2), dims={0: "n"}, buckets={"n": (1, 2, 4, 8, 16)},
            out_dims={0: "n"},
        )  # fmt: skip
    for size in (1, 2, 3, 9):
        assert graphed(torch.ones(size)).tolist() == [2] * size
    with pytest.raises(GraphError, match="smaller buckets stay usable"):
        graphed(torch.ones(5))
    assert "out of memory" in str(graphed.report())


def test_out_of_memory_keeps_none_of_it(device):
    allocated, alive_at_trim = [], []

    def fragile(x):
        doubled = x * 2
        allocated.append(weakref.ref(doubled))
        return doubled.sort().values

    device.trim = lambda: alive_at_trim.extend(each() is not None for each in allocated)
    device.fails_at = "aten.sort.default"
    with pytest.warns(GraphWarning, match="out of memory in its capture"):
        capture(fragile, torch.ones(2))
    assert alive_at_trim == [False] * 4


def test_a_limit_rebuilds_the_pool(device):
    options = {"dims": {0: "n"}, "buckets": {"n": (2, 4, 8)}, "max_padding": 9}
    pool = Pool("cpu", limit=24)
    with pytest.warns(GraphWarning, match=r"\(n=8\) alone reserves 32 bytes.*limit is 24"):
        graphed = capture(torch.neg, torch.ones(2), pool=pool, **options)
    assert sorted(graphed.graphs) == ["neg (n=2)", "neg (n=4)"]
    with pytest.raises(GraphError, match="raise the limit"):
        graphed(torch.ones(7))
    assert graphed(torch.ones(3)).tolist() == [-1] * 3
    # A second function takes the pool over the limit: the first one's graphs go, and come back.
    device.pool_bytes = lambda pool: sum(pool.needs)
    other = capture(torch.abs, torch.ones(4), pool=pool)
    assert not graphed.graphs and pool.rebuilds == 2
    assert graphed(torch.ones(2)).tolist() == [-1, -1]
    assert other(-torch.ones(4)).tolist() == [1] * 4


def test_replays_of_a_pool_do_not_overlap(device):
    pool = Pool("cpu")
    one, other = (capture(f, torch.ones(2), pool=pool) for f in (torch.neg, torch.abs))
    one(torch.ones(2)), other(torch.ones(2))
    assert device.waits == []
    device.stream = 2
    other(torch.ones(2)), one(torch.ones(2))
    assert device.waits == [(2, 1)]
    device.stream = 1
    one(torch.ones(2))
    assert device.waits == [(2, 1), (1, 2)]
    capture(torch.neg, torch.ones(2))(torch.ones(2))  # another pool
    assert len(device.waits) == 2


def test_a_first_replay_waits_for_no_capture(device):
    """The capture has waited for the device itself."""
    graphed = capture(torch.neg, torch.ones(2))
    device.stream = 2
    graphed(torch.ones(2))
    assert device.waits == []


def test_a_warm_up_waits_for_another_stream_s_replay(device):
    """It writes into the memory from which that replay may still read."""
    waits = []

    def copy(x):
        waits.append(list(device.waits))
        return x * 1

    options = {"dims": {0: "n"}, "buckets": {"n": (2, 4)}, "lazy": True}
    graphed = capture(copy, torch.ones(4), **options)
    graphed(torch.ones(4))
    waits.clear()
    device.stream = 2
    graphed(torch.ones(2))
    assert waits[0] == [(2, 1)]


def test_inputs_are_known_to_the_streams_that_read_them(device):
    graphed = capture(torch.neg, torch.ones(2))
    address = graphed.inputs[0].data_ptr()
    for stream in (1, 2, 1, 2):
        device.stream = stream
        graphed(torch.ones(2))
    assert device.uses == [(1, address), (2, address)]


def test_a_pool_that_is_released(device):
    pool = Pool("cpu")
    graphed = capture(torch.neg, torch.ones(2), pool=pool)
    result = graphed(torch.ones(2))
    pool.release()
    assert result.tolist() == [-1, -1]
    with pytest.raises(GraphError, match="the graph's pool was released"):
        graphed(torch.ones(2))


def test_a_callable_that_is_released_captures_anew(device):
    graphed = capture(torch.neg, torch.ones(2))
    graphed.release()
    assert not graphed.graphs
    with pytest.raises(GraphError, match="nothing is captured yet"):
        inspect(graphed)
    assert graphed(torch.ones(2)).tolist() == [-1, -1]


def test_the_largest_is_the_first_again_after_a_release(device):
    """Smaller buckets fit into its memory, and not it into theirs."""
    graphed = capture(torch.neg, torch.ones(4), dims={0: "n"}, buckets={"n": (2, 4)}, lazy=True)
    for _ in range(2):
        assert graphed(torch.ones(2)).tolist() == [-1, -1]
        assert list(graphed.graphs) == ["neg (n=4)", "neg (n=2)"]
        graphed.release()


def test_threads(device, linear):
    """Each gets its own results, and captures wait for each other."""
    graphed = capture(linear, torch.ones(4, 4), dims={0: "n"}, buckets={"n": (2, 4)}, clone=True)
    wrong = []

    def work(seed):
        try:
            run(seed)
        except BaseException as error:
            wrong.append(error)

    def run(seed):
        own = capture(torch.neg, torch.ones(2), clone=True)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(
                int(torch.randint(1, 5, (), generator=generator)), 4, generator=generator
            )
            if len(x) > 1 and not torch.allclose(graphed(x), linear(x)):
                wrong.append(x)
            if not torch.equal(own(x[0, :2]), -x[0, :2]):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda model: model,
        lambda model: model.forward,
        lambda model: functools.partial(model),
        lambda model: lambda x: model(x),
        lambda model: Holder(model),
    ],
    ids=["module", "method", "partial", "closure", "object"],
)
def test_a_parameter_that_was_replaced(device, make):
    model = nn.Sequential(nn.Linear(2, 2)).requires_grad_(False)
    graphed = capture(make(model), torch.ones(1, 2))
    graphed(torch.ones(1, 2))
    kept = model[0].weight
    model[0].weight = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    with pytest.raises(GraphError, match=r"0\.weight was replaced by another tensor"):
        graphed(torch.ones(1, 2))
    model[0].weight = kept
    graphed(torch.ones(1, 2))
    kept.data = torch.zeros(2, 2)
    with pytest.raises(GraphError, match=r"0\.weight has moved in memory"):
        graphed(torch.ones(1, 2))


class Holder:
    def __init__(self, model):
        self.model, self.layers = model, [{"more": torch.ones(1)}]

    def __call__(self, x):
        return self.model(x) + self.layers[0]["more"]


def test_tensors_in_objects_and_arguments(device):
    holder = Holder(torch.neg)
    graphed = capture(holder, torch.ones(1))
    holder.layers[0]["more"] = torch.zeros(1)
    with pytest.raises(GraphError, match=r"layers\[0\]\['more'\] was replaced"):
        graphed(torch.ones(1))
    table = {"table": torch.ones(1)}
    graphed = capture(torch.neg, torch.ones(1), reads=table)
    del table["table"]
    with pytest.raises(GraphError, match="table is gone, which the graph reads"):
        graphed(torch.ones(1))


def test_strides_that_changed(device):
    weight = torch.ones(2, 2)
    graphed = capture(lambda x: x @ weight, torch.ones(1, 2))
    weight.t_()
    with pytest.raises(GraphError, match=r"weight had .*strides \(2, 1\) in the capture"):
        graphed(torch.ones(1, 2))


def test_modes_that_changed(device):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    x = torch.ones(1, 2)
    with torch.no_grad():
        graphed = capture(model, x)
        graphed(x)
    with pytest.raises(GraphError, match="captured without gradients"):
        graphed(x)
    casts = torch.autocast("cpu", dtype=torch.bfloat16)
    with casts, pytest.raises(GraphError, match=r"autocast was off in the capture, and is torch.b"):
        graphed(x)
    model[1].eval()
    with torch.no_grad(), pytest.raises(GraphError, match="module 1 was captured in training mode"):
        graphed(x)


def test_a_gradient_that_is_wanted_later(device):
    """An argument that was right without gradients is checked again with them."""
    weight = torch.ones(2, requires_grad=True)
    graphed = capture(lambda x: x * weight, torch.ones(2))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            assert graphed(x).tolist() == [1, 1]
        with pytest.raises(GraphError, match=r"args\[0\] requires grad"):
            graphed(x)


# --- its description -----------------------------------------------------------------------------


def test_report(device, pooled):
    graphed = capture_pooled(pooled)
    device.elapsed = 0.1  # ms, of 20 replays
    report = graphed.measure(20)
    assert [graph.replays >= 20 for graph in report.graphs] == [True] * 6
    first = report.graphs[0]
    assert first.replay_us == pytest.approx(5) and first.host_us > 0
    needs = [graph.needed_bytes for graph in report.graphs]
    assert report.pool_bytes == needs[0] == max(needs)
    assert report.json()["apart_bytes"] == sum(needs) > report.pool_bytes
    assert first.freed_bytes == needs[0] - max(needs[1:])
    assert {graph.freed_bytes for graph in report.graphs[1:]} == {0}
    data = json.loads(json.dumps(report.json()))
    assert data["schema"] == "diglot.graphs_report" and len(data["graphs"]) == 6
    assert "pooled (batch=4, length=8)" in str(report)


def test_break_even():
    report = diglot.graphs.GraphReport("f", 0, 0, 0, 0, 2.0, 0, eager_us=50, replay_us=10)
    assert report.break_even == 50
    assert diglot.graphs.GraphReport("f", 0, 0, 0, 0, 2.0, 0, 50, 60).break_even is None


def test_inspect(device, tmp_path):
    def layers(x):
        return diglot.gelu(x, backend="torch") * 2

    graphed = capture(layers, torch.ones(2))
    found = inspect(graphed)
    ours = [node for node in found.nodes if node.run is not None]
    assert {node.run.launcher for node in ours} == {"gelu_forward"}
    assert "gelu_forward [torch] aten" in str(found) and "aten.mul.Tensor" in str(found)
    assert found.kinds == {"kernel": len(found.nodes)} and found.depth == len(found.nodes)
    found.save(tmp_path / "graph.json")
    data = json.loads((tmp_path / "graph.json").read_text())
    assert data["nodes"][-1]["name"] == "aten.mul.Tensor" and data["edges"][0] == [0, 1]
    with pytest.raises(ValueError, match="there is no graph 'x', but layers"):
        inspect(graphed, "x")
    with pytest.raises(TypeError, match="no nodes in a int"):
        inspect(3)


def test_picture(device, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "graph.svg"
    inspect(capture(lambda x: x.neg() * 2, torch.ones(2))).save(path)
    text = path.read_text()
    assert "<svg" in text and "aten.neg.default" in text and "aten.mul.Tensor" in text


def test_progress(device, pooled, capsys):
    pytest.importorskip("rich")
    capture_pooled(pooled, progress=True)
    assert "batch=1, length=4" in capsys.readouterr().err


# --- mutations: what these tests would see -------------------------------------------------------


def floor(buckets, sizes):
    """The largest bucket that is not larger, in place of the smallest that is not smaller."""
    fitting = [
        b for b in buckets.largest_first if all(x <= y for x, y in zip(b, sizes, strict=True))
    ]
    return fitting[0] if fitting else buckets.smallest_first[0]


def test_a_floor_is_caught(device, pooled, monkeypatch):
    monkeypatch.setattr(Buckets, "fit", floor)
    with pytest.raises((AssertionError, RuntimeError)):
        check_pooled(capture_pooled(pooled), pooled, MIXED)


def test_forgotten_padding_is_caught(device, pooled, monkeypatch):
    monkeypatch.setattr(StaticInputs, "_clear", lambda self, load: None)
    graphed = capture(torch.sum, torch.ones(4), dims={0: "n"}, buckets={"n": (4,)})
    with pytest.raises(AssertionError):
        for size in (4, 2):
            assert graphed(torch.ones(size)) == size


def test_a_capture_without_warm_up_is_caught(device, monkeypatch):
    table = []

    def looks_up(x):
        if not table:
            table.append(x.sum().item())  # once, as loading and tuning
        return x * table[0]

    assert capture(looks_up, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]
    table.clear()
    monkeypatch.setattr(Family, "_warm_up", lambda self, bucket, tensors: None)
    with pytest.raises(GraphError, match="cannot be captured"):
        capture(looks_up, torch.ones(2))
