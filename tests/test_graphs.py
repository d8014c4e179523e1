"""diglot.graphs.capture, against a device that records operators: no GPU is needed."""

from __future__ import annotations

import functools
import json
import threading

import pytest
import torch
from recorded_graphs import install
from torch import nn

import diglot
from diglot.graphs import GraphError, GraphWarning, Pool, capture, inspect
from diglot.graphs.buckets import Buckets, padding_of
from diglot.graphs.family import Family
from diglot.graphs.inputs import StaticInputs

BATCH_AND_LENGTH = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
BUCKETS = {"batch": (1, 2, 4), "length": (4, 8)}


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def linear():
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.fixture
def pooled(linear):
    """A function that reads padding: sums over it would show what is there."""

    def pooled(x, mask):
        hidden = linear(x) * mask[..., None]
        return {"rows": hidden.sum(1), "all": [hidden, mask.sum()], "kind": "sum"}

    return pooled


def request(batch, length):
    return torch.randn(batch, length, 4), torch.ones(batch, length)


def capture_pooled(function, **options):
    options = {"dims": BATCH_AND_LENGTH, "buckets": BUCKETS, "max_padding": 8, **options}
    return capture(function, request(2, 5), **options)


def check_pooled(graphed, function, sizes):
    for batch, length in sizes:
        x, mask = request(batch, length)
        found, expected = graphed(x, mask), function(x, mask)
        assert found["kind"] == "sum"
        torch.testing.assert_close(found["rows"], expected["rows"])
        torch.testing.assert_close(found["all"], expected["all"])


MIXED = [(4, 8), (3, 7), (1, 1), (1, 3), (2, 2), (4, 1), (1, 8), (3, 4), (2, 5), (2, 8), (1, 4)]


# --- buckets -------------------------------------------------------------------------------------


def test_results_are_those_of_the_function(device, pooled):
    graphed = capture_pooled(pooled)
    check_pooled(graphed, pooled, MIXED + MIXED[::-1])
    assert device.captures == 6 and sum(g.replays for g in graphed.graphs.values()) == 22


@pytest.mark.parametrize(
    ("sizes", "bucket"), [((1, 5), (1, 8)), ((3, 4), (4, 4)), ((2, 2), (2, 4))]
)
def test_the_smallest_bucket_that_fits(sizes, bucket):
    buckets = Buckets(("a", "b"), [(1, 4), (1, 8), (2, 4), (4, 4), (4, 8)])
    assert buckets.fit(sizes) == bucket
    assert buckets.fit((5, 1)) is None
    assert padding_of((4, 8), (2, 4)) == 4


def test_buckets_in_a_list(device, pooled):
    buckets = [{"length": 8, "batch": 1}, {"batch": 4, "length": 4}]
    graphed = capture_pooled(pooled, buckets=buckets)
    check_pooled(graphed, pooled, [(1, 8), (4, 4), (1, 5), (2, 3)])
    with pytest.raises(ValueError, match=r"no bucket holds batch=2, length=5; there are batch=1"):
        graphed(*request(2, 5))


def test_the_largest_is_captured_first(device, pooled):
    at_once = list(capture_pooled(pooled).graphs)
    assert at_once[0] == "pooled (batch=4, length=8)" and len(at_once) == 6
    lazy = capture_pooled(pooled, lazy=True)
    assert not lazy.graphs
    lazy(*request(1, 3))
    assert list(lazy.graphs) == ["pooled (batch=4, length=8)", "pooled (batch=1, length=4)"]


def test_too_much_padding_runs_eagerly(device, pooled):
    graphed = capture_pooled(pooled, max_padding=2.0)
    with pytest.warns(GraphWarning, match="4 times as large, and max_padding is 2"):
        found = graphed(*request(1, 1))
    assert found["rows"].shape == (1, 3)
    check_pooled(graphed, pooled, [(1, 1), (1, 2)])  # the warning comes once
    assert graphed.report().eager_calls == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": {"batch": (1,)}}, "must have sizes of batch, length"),
        ({"buckets": {"batch": (0,), "length": (4,)}}, "positive integer, not 0"),
        ({"buckets": {"batch": (), "length": (4,)}}, "at least one bucket"),
        ({"dims": None}, "buckets need dims"),
        ({"dims": ({0: "batch"},)}, "dims must lie as the example's arguments"),
        ({"dims": ({7: "batch"}, None), "buckets": {"batch": (1,)}}, "dimension 7 of args"),
        ({"dims": ({0: "n"}, {1: "n"}), "buckets": {"n": (8,)}}, "n is 2 in one argument"),
        ({"out_dims": {"rows": {0: "x"}}}, "out_dims names x"),
        ({"warmup": 0}, "warmup must be a positive integer"),
        ({"max_padding": 0.5}, "max_padding must be 1 or more"),
    ],
)
def test_wrong_options(device, pooled, options, message):
    with pytest.raises(ValueError, match=message):
        capture_pooled(pooled, **options)


def test_output_dims_are_found_or_said(device):
    def twice(x):
        return torch.cat([x, x]), x.new_zeros(4)

    with pytest.raises(GraphError, match="dimension 0 of output 0 is 8 for n=4 and 4 for n=2"):
        capture(twice, torch.ones(3, 2), dims={0: "n"}, buckets={"n": (2, 4)})
    graphed = capture(
        twice, torch.ones(3, 2), dims={0: "n"}, buckets={"n": (2, 4)}, out_dims=({}, {0: "n"})
    )
    doubled, zeros = graphed(torch.ones(3, 2))
    assert doubled.shape == (8, 2) and zeros.shape == (3,)


# --- arguments -----------------------------------------------------------------------------------


def test_inputs_are_views_of_one_buffer(device, pooled):
    graphed = capture_pooled(pooled)
    (family,) = graphed._families.values()
    for bucket in family.buckets.smallest_first:
        for view in family.inputs.views(bucket):
            assert view.untyped_storage().data_ptr() == family.inputs.buffer.data_ptr()
    largest, smallest = family.inputs.views((4, 8)), family.inputs.views((1, 4))
    assert [v.data_ptr() for v in largest] == [v.data_ptr() for v in smallest]


def test_who_writes_the_inputs_spares_the_copy(device, pooled, monkeypatch):
    graphed = capture_pooled(pooled)
    copies, copy = [], torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda to, of: (copies.append(len(to)), copy(to, of))
    )
    graphed(*request(2, 5))
    assert copies == [2]  # one fused copy of both
    x, mask = graphed.inputs_for(batch=2, length=5)
    x.copy_(torch.randn(2, 5, 4)), mask.fill_(1)
    given = x.clone(), mask.clone()
    torch.testing.assert_close(graphed(x, mask)["rows"], pooled(*given)["rows"])
    assert copies == [2]
    assert [tuple(t.shape) for t in graphed.inputs] == [(4, 8, 4), (4, 8)]
    with pytest.raises(ValueError, match="dims has no width"):
        graphed.inputs_for(width=3)
    with pytest.raises(ValueError, match="no bucket holds batch=9, length=8"):
        graphed.inputs_for(batch=9)


def test_what_was_written_into_inputs_is_no_padding(device, pooled):
    graphed = capture_pooled(pooled)
    graphed(*request(1, 5))
    for tensor in graphed.inputs_for(batch=1, length=8):
        tensor.fill_(7)
    check_pooled(graphed, pooled, [(1, 5)])


def test_an_argument_within_the_buffer(device):
    graphed = capture(lambda x: x + 1, torch.zeros(6), dims={0: "n"}, buckets={"n": (6,)})
    x = graphed.inputs_for(n=6)[0]
    x.copy_(torch.arange(6.0))
    assert graphed(x[2:5]).tolist() == [3, 4, 5]


def test_layout_of_inputs_is_the_example_s(device):
    strides = []
    example = torch.randn(2, 3, 5).transpose(0, 2)
    capture(lambda x: strides.append(x.stride()) or x * 1, example)
    assert set(strides) == {example.stride()}


def test_trees_and_arguments_that_are_no_tensors(device):
    def scaled(batch, scale=1.0, *, flag=False):
        return batch["x"] * scale + sum(batch["more"]) + int(flag)

    example = {"x": torch.ones(2), "more": [torch.ones(2), torch.ones(2)]}
    graphed = capture(scaled, (example, 2.0), kwargs={"flag": True})
    assert graphed(example, 2.0, flag=True).tolist() == [5, 5]
    assert device.captures == 1
    assert graphed(example, 3.0, flag=True).tolist() == [6, 6]
    assert graphed(example, 3.0, flag=1).tolist() == [6, 6]  # 1 is not True: a graph of its own
    assert device.captures == 3
    with pytest.raises(TypeError, match="must lie as the example's do"):
        graphed(example, 2.0)
    with pytest.raises(TypeError, match=r"args\[1\] is no tensor.*hashable; a set is not"):
        graphed(example, {2.0}, flag=True)


def test_wrong_arguments(device, linear):
    graphed = capture(linear, torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"args\[0\] is torch.float64, and was captured as"):
        graphed(torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"args\[0\] is on meta, and was captured on cpu"):
        graphed(torch.zeros(2, 4, device="meta"))
    with pytest.raises(ValueError, match=r"has shape \(3, 4\), and was captured with \(2, 4\)"):
        graphed(torch.zeros(3, 4))
    with pytest.raises(GraphError, match=r"args\[0\] requires grad, and the captured one did not"):
        graphed(torch.zeros(2, 4, requires_grad=True))
    with pytest.raises(TypeError, match="fn must be callable, not int"):
        capture(3, torch.zeros(1))
    with pytest.raises(ValueError, match="the example has no tensor"):
        capture(linear, 3)
    with pytest.raises(ValueError, match="one device, not on cpu and meta"):
        capture(torch.add, (torch.zeros(1), torch.zeros(1, device="meta")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    with pytest.raises(GraphError, match="CUDA graphs need tensors on a GPU, and these are on cpu"):
        capture(torch.neg, torch.zeros(1))


def test_sizes_that_disagree(device, pooled):
    graphed = capture_pooled(pooled)
    with pytest.raises(ValueError, match=r"length is 3 in args\[0\] and 4 in args\[1\]"):
        graphed(torch.zeros(2, 3, 4), torch.zeros(2, 4))


# --- padding -------------------------------------------------------------------------------------


def test_padding_is_what_it_is_said_to_be(device):
    def extremes(x, y):
        return x.amax(), y.amin()

    dims = ({0: "n"}, {0: "n"})
    options = {"dims": dims, "buckets": {"n": (4, 8)}, "max_padding": 9}
    graphed = capture(extremes, (torch.ones(8), torch.ones(8)), padding=(-9.0, 9.0), **options)
    for size in (8, 3, 1, 6, 2):
        x, y = torch.randn(size), torch.randn(size)
        assert graphed(x, y) == extremes(x, y)


def test_padding_that_is_masked_is_left_alone(device):
    graphed = capture(
        lambda x: x * 1, torch.ones(4), dims={0: "n"}, buckets={"n": (4,)}, padding=None
    )
    graphed(torch.full((4,), 5.0))
    graphed(torch.ones(2))
    assert graphed.inputs_for(n=4)[0].tolist() == [1, 1, 5, 5]


# --- results -------------------------------------------------------------------------------------


def test_the_next_call_writes_over_results(device):
    def double(x):
        return 2 * x

    graphed, cloned = (capture(double, torch.ones(2), clone=clone) for clone in (False, True))
    first, kept = graphed(torch.ones(2)), cloned(torch.ones(2))
    graphed(torch.zeros(2)), cloned(torch.zeros(2))
    assert first.tolist() == [0, 0] and kept.tolist() == [2, 2]


def test_autograd_sees_that_a_result_was_written_over(device):
    graphed = capture(lambda x: 2 * x, torch.ones(2))
    weight = torch.ones(2, requires_grad=True)
    product = graphed(torch.ones(2)) * weight
    graphed(torch.zeros(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("size", [1, 3, 4])
def test_gradients_are_those_of_the_function(device, size):
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    options = {"dims": {0: "n"}, "buckets": {"n": (2, 4)}}
    graphed = capture(module, torch.randn(3, 4, requires_grad=True), **options)
    found = []
    for function in (graphed, module):
        torch.manual_seed(1)
        x = torch.randn(size, 4, requires_grad=True)
        for _ in range(2):  # gradients add up
            (function(2 * x) ** 2).sum().backward()
        found.append([x.grad, *(p.grad for p in module.parameters())])
        module.zero_grad()
    torch.testing.assert_close(*found)
    assert not any(p.grad is not None for p in module.parameters())


def test_an_input_that_wants_no_gradient_now(device):
    example = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    graphed = capture(torch.mul, example)
    one, other = torch.full((2,), 3.0), torch.full((2,), 5.0, requires_grad=True)
    graphed(one, other).sum().backward()
    assert one.grad is None and other.grad.tolist() == [3, 3]


def test_a_bucket_that_is_first_called_without_gradients(device):
    module = nn.Linear(3, 3)
    graphed = capture(module, torch.ones(4, 3), dims={0: "n"}, buckets={"n": (2, 4)}, lazy=True)
    with torch.inference_mode():
        graphed(torch.ones(4, 3)), graphed(torch.ones(2, 3))
    graphed(torch.ones(2, 3)).sum().backward()
    assert module.weight.grad.eq(2).all()


def test_capture_all_captures_what_is_missing(device):
    graphed = capture(torch.neg, torch.ones(4), dims={0: "n"}, buckets={"n": (2, 4)}, lazy=True)
    graphed(torch.ones(4))
    graphed.capture_all()
    assert device.captures == 2 and len(graphed.graphs) == 2


def test_gradients_are_nobody_else_s_memory(device):
    module = nn.Linear(3, 3)
    graphed = capture(module, torch.ones(2, 3))
    graphed(torch.ones(2, 3)).sum().backward()
    before = module.weight.grad.clone()
    graphed(torch.full((2, 3), 5.0)).sum().backward()
    torch.testing.assert_close(module.weight.grad, before * 6)


def test_a_backward_pass_after_another_replay(device):
    module = nn.Linear(3, 3)
    graphed = capture(module, torch.ones(2, 3))
    first = graphed(torch.ones(2, 3)).sum()
    graphed(torch.ones(2, 3))
    with pytest.raises(GraphError, match="the values that the backward pass needs are gone"):
        first.backward()
    again = graphed(torch.ones(2, 3)).sum()
    again.backward(retain_graph=True)
    with pytest.raises(GraphError, match="it has run before"):
        again.backward()
    with torch.no_grad():  # forward alone
        assert not graphed(torch.ones(2, 3)).requires_grad


def test_dropout_draws_anew_in_each_replay(device):
    graphed = capture(lambda x: diglot.dropout(x, 0.5, backend="torch"), torch.ones(64))
    masks = {tuple(graphed(torch.ones(64)).tolist()) for _ in range(10)}
    assert len(masks) == 10


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
    with pytest.raises(GraphError, match="grows returned other shapes for the same arguments"):
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
    assert inner.graphs["neg (one shape)"].replays == 3  # of the warm-up

    def nests(x):
        if device.is_capturing():
            capture(torch.neg, torch.ones(2))
        return x

    with pytest.raises(GraphError, match="captures do not nest"):
        capture(nests, torch.ones(2))


def test_out_of_memory_leaves_smaller_buckets(device):
    def fragile(x):
        return x.sort().values if len(x) == 4 else x + 1

    device.fails_at = "aten.sort.default"
    with pytest.warns(GraphWarning, match=r"fragile \(n=4\): out of memory in its capture"):
        graphed = capture(
            fragile, torch.ones(2), dims={0: "n"}, buckets={"n": (2, 4)}, out_dims={0: "n"}
        )
    assert graphed(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(GraphError, match="smaller buckets stay usable"):
        graphed(torch.ones(3))
    assert "out of memory" in str(graphed.report())


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


def test_threads(device, linear):
    """Each gets its own results, and captures wait for each other."""
    graphed = capture(linear, torch.ones(4, 4), dims={0: "n"}, buckets={"n": (2, 4)}, clone=True)
    wrong = []

    def work(seed):
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
    with pytest.raises(GraphError, match=r"weight had strides \(2, 1\) in the capture"):
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


# --- what is known of it -------------------------------------------------------------------------


def test_report(device, pooled):
    graphed = capture_pooled(pooled)
    device.elapsed = 0.1  # ms, of 20 replays
    report = graphed.measure(20)
    assert [graph.replays >= 20 for graph in report.graphs] == [True] * 6
    first = report.graphs[0]
    assert first.replay_us == pytest.approx(5) and first.host_us > 0
    needs = [graph.needed_bytes for graph in report.graphs]
    assert report.pool_bytes == needs[0] == max(needs)
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
    inspect(capture(torch.neg, torch.ones(2))).save(path)
    assert "aten.neg.default" in path.read_text() or "<svg" in path.read_text()


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
