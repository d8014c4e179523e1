"""diglot.graphs.capture, against a device that records operators: no GPU is needed."""

from __future__ import annotations

import pytest
import torch
from padded import MIXED, capture_pooled, check_pooled, make_pooled, request
from recorded_graphs import install
from torch import nn

import diglot
from diglot.graphs import GraphError, GraphWarning, capture, inputs
from diglot.graphs.buckets import Buckets, padding_of


@pytest.fixture
def device(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def linear():
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.fixture
def pooled():
    return make_pooled()


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

    with pytest.raises(GraphError, match="for n=4 and n=2 dimension 0 of output 0 is 8 and 4"):
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
    monkeypatch.setattr(inputs, "places_of", lambda tensors: None)  # without the library
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


@pytest.mark.parametrize("lazy", [True, False])
def test_a_capture_keeps_what_is_in_the_inputs(device, lazy):
    """A call with them may need a capture, whose warm-up fills buckets."""
    graphed = capture(
        torch.neg, torch.ones(2, 4), dims={1: "n"}, buckets={"n": (4, 8)}, padding=5.0, lazy=lazy
    )
    for size in (3, 7, 2):
        (x,) = graphed.inputs_for(n=size)
        given = torch.arange(2.0 * size).view(2, size)
        x.copy_(given)
        assert torch.equal(graphed(x), -given)
        graphed.pool.rebuild()


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
    assert graphed(example, flag=True, scale=3.0).tolist() == [6, 6]  # by the function's signature
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


def test_gradients_that_are_asked_for_are_copies(device):
    module = nn.Linear(2, 1)
    graphed = capture(module, torch.ones(1, 2))
    (first,) = torch.autograd.grad(graphed(torch.ones(1, 2)).sum(), module.weight)
    torch.autograd.grad(graphed(torch.full((1, 2), 5.0)).sum(), module.weight)
    assert first.tolist() == [[1, 1]]


@pytest.mark.parametrize("what", ["parameter", "input"])
def test_what_a_gradient_needs_was_changed(device, what):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    graphed = capture(module, torch.ones(1, 2))
    result = graphed(torch.ones(1, 2)).sum()
    with torch.no_grad():
        (module[1].weight if what == "parameter" else graphed.inputs[0]).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_conjugate_is_resolved(device):
    """PyTorch conjugates when somebody reads. Who replays has the memory alone."""
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    graphed = capture(lambda x: ((x * 2).conj(), (x * 3).conj().imag), x)
    for _ in range(2):
        y = torch.randn_like(x).requires_grad_()
        first, second = graphed(y)
        torch.testing.assert_close(first, (y * 2).conj())
        torch.testing.assert_close(second, (y * 3).conj().imag)
        (gradient,) = torch.autograd.grad(first.real.sum() + first.imag.sum(), y)
        torch.testing.assert_close(gradient, torch.full_like(y, 2 - 2j))


def test_what_a_module_makes_at_its_first_call_is_watched(device):
    class Lazy(nn.Module):
        cache = None

        def forward(self, x):
            if self.cache is None:
                self.cache = torch.full((4,), 2.0)
            return x * self.cache

    module, x = Lazy(), torch.ones(4)
    graphed = capture(module, x)
    torch.testing.assert_close(graphed(x), 2 * x)
    module.cache = torch.full((4,), 3.0)
    with pytest.raises(GraphError, match="cache"):
        graphed(x)
