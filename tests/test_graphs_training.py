"""diglot.graphs.training_step, against a device that records operators: no GPU is needed."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch
from backends import KERNELS
from eager_training import train_eagerly
from recorded_graphs import install
from torch import nn

import diglot
from diglot.graphs import GraphError, state, training, training_step
from diglot.graphs.watch import library, watch_in_python

OPTIMIZERS = ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")
NATIVE = pytest.mark.skipif(library() is None, reason="there is no library that watches")
STEPS = 10


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """A recorded device, on which optimizers are capturable."""
    for name in OPTIMIZERS:
        module = importlib.import_module(f"torch.optim.{name}")
        monkeypatch.setattr(
            module, "_get_capturable_supported_devices", lambda supports_xla=True: ["cpu", "cuda"]
        )
    return install(monkeypatch)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4)
    )


def make_optimizer(name, model):
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if name == "fused AdamW":
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
    return getattr(torch.optim, name)(model.parameters(), lr=0.01, capturable=True)


def batches(count=STEPS, overflows=()):
    generator = torch.Generator().manual_seed(3)
    for i in range(count):
        inputs = torch.randn(6, 8, generator=generator)
        yield (
            inputs * (float("inf") if i in overflows else 1),
            torch.randint(4, (6,), generator=generator),
        )


loss = nn.CrossEntropyLoss()


def capture_step(model, optimizer, **options):
    options = {"max_norm": 0.5, "backend": "torch", **options}
    return training_step(model, loss, optimizer, next(batches(1)), **options)


def compare(name, overflows=(), scalers=(None, None), **options):
    """Trains twice, and compares weights, buffers, losses and the optimizer's state, bit by bit."""
    eager, graphed = make_model(), make_model()
    optimizers = [make_optimizer(name, model) for model in (eager, graphed)]
    expected = train_eagerly(
        eager, loss, optimizers[0], batches(overflows=overflows),
        **{"scaler": scalers[0], "backend": "torch", **options},
    )  # fmt: skip
    torch.manual_seed(5)
    step = capture_step(graphed, optimizers[1], scaler=scalers[1], **options)
    found = [step(*batch) for batch in batches(overflows=overflows)]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(dict(graphed.state_dict()), dict(eager.state_dict()), **same)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    if name != "SGD":  # whose first step has no momentum yet
        torch.testing.assert_close(states[1], states[0], **same)
    return step


@pytest.mark.parametrize(
    "name", ["AdamW", "fused AdamW", "SGD", "NAdam", "RAdam", "Adamax", "Rprop", "ASGD"]
)
def test_ten_steps_are_eager_s(name):
    compare(name)


@pytest.mark.parametrize("accumulation", [2, 5])
def test_accumulation(device, accumulation):
    step = compare("AdamW", accumulation=accumulation)
    assert len(step.graphs) == min(accumulation, 3)
    assert step.part == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted")
@pytest.mark.parametrize("backend", KERNELS)
def test_clipping_by_kernels(backend):
    """Interpreted ones, on the gradients of replays."""
    compare("AdamW", backend=backend)


def test_autocast():
    compare("AdamW", autocast=torch.bfloat16)


@pytest.mark.parametrize("own", [None, torch.bfloat16])
def test_autocast_around_a_step(own):
    """It is as in the capture, or an error, whatever the step has of its own."""
    around, batch = torch.autocast("cpu", dtype=torch.bfloat16), next(batches(1))
    model = make_model()
    outside = capture_step(model, make_optimizer("AdamW", model), autocast=own)
    with around:
        inside = capture_step(model, make_optimizer("AdamW", model), autocast=own)
        inside(*batch)
        with pytest.raises(GraphError, match=r"autocast was off in the capture, and is torch\.b"):
            outside(*batch)
        with torch.autocast("cpu", enabled=False):
            outside(*batch)
    outside(*batch)
    with pytest.raises(GraphError, match=r"autocast was torch\.bfloat16 .*, and is off"):
        inside(*batch)


def test_a_step_that_overflows():
    """It changes the scale, and no weight."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) for _ in "ab"]
    compare("fused AdamW", overflows=(4,), scalers=scalers)
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**11
    assert scalers[0].state_dict() == scalers[1].state_dict()


def test_a_learning_rate_that_is_a_tensor():
    """A scheduler changes it, and replays see it."""
    models = [make_model() for _ in range(2)]
    pairs = []
    for model in models:
        rate = torch.tensor(0.05)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
        pairs.append((optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)))
    for batch in batches(3):
        train_eagerly(models[0], loss, pairs[0][0], [batch], backend="torch")
        pairs[0][1].step()
    step = capture_step(models[1], pairs[1][0])
    for batch in batches(3):
        torch.manual_seed(5)
        step(*batch)
        pairs[1][1].step()
    torch.testing.assert_close(
        dict(models[1].state_dict()), dict(models[0].state_dict()), rtol=0, atol=0
    )


def test_capture_leaves_all_as_it_was():
    model = make_model()
    optimizer = make_optimizer("AdamW", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    fused = make_optimizer("fused AdamW", model)
    train_eagerly(model, loss, optimizer, batches(2), backend="torch")
    gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    random = torch.get_rng_state()
    capture_step(model, optimizer)
    capture_step(model, fused, scaler=scaler)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(map(torch.equal, moments, [s["exp_avg"] for s in optimizer.state.values()]))
    assert {state["step"].item() for state in fused.state.values()} == {0}
    assert torch.equal(torch.get_rng_state(), random)
    assert scaler.state_dict()["scale"] == 8.0 and scaler.state_dict()["_growth_tracker"] == 0
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


def test_capturable_is_set():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    capture_step(model, optimizer)
    assert optimizer.param_groups[0]["capturable"] is True


def test_an_error_leaves_the_optimizer_without_state():
    model = make_model()
    optimizer = make_optimizer("AdamW", model)

    def waits(output, targets):
        value = loss(output, targets)
        return value * value.item()

    with pytest.raises(GraphError, match=r"(?s)training step cannot be captured.*item\(\)"):
        training_step(model, waits, optimizer, next(batches(1)))
    calls = itertools.count()

    def breaks(output, targets):
        if next(calls) == 1:
            raise KeyError("the second time")
        return loss(output, targets)

    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = make_optimizer("AdamW", model)
    with pytest.raises(KeyError):
        training_step(model, breaks, optimizer, next(batches(1)))
    assert not optimizer.state
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


class Other(torch.optim.AdamW):
    """An optimizer that nobody knows."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Other(p), "not known what Other has as state before its first step"),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
            "the first step of SGD with dampening differs",
        ),
        (
            lambda p: torch.optim.AdamW([{"params": p, "lr": torch.tensor(0.1, device="meta")}]),
            "the learning rate is a tensor on meta",
        ),
        (lambda p: Counting(p), "Counting keeps 'count' as a int, which no replay would change"),
    ],
)
def test_optimizers_that_are_refused(make, message, monkeypatch):
    monkeypatch.setitem(training.prepare.__globals__["FIRST_VALUES"], "Counting", {})
    model = make_model()
    with pytest.raises(GraphError, match=message):
        capture_step(model, make(model.parameters()))


class Counting(torch.optim.SGD):
    """An optimizer whose state has a number of Python's."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1


def test_an_unknown_optimizer_that_has_taken_a_step():
    model = make_model()
    optimizer = Other(model.parameters(), lr=0.01, capturable=True)
    train_eagerly(model, loss, optimizer, batches(1), backend="torch")
    capture_step(model, optimizer)


def test_a_scaler_needs_a_fused_optimizer():
    model = make_model()
    with pytest.raises(GraphError, match="make it with fused=True"):
        capture_step(model, make_optimizer("AdamW", model), scaler=torch.amp.GradScaler("cpu"))


def test_wrong_arguments():
    model = make_model()
    optimizer = make_optimizer("AdamW", model)
    example = next(batches(1))
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, not int"):
        training_step(model, loss, 3, example)
    with pytest.raises(TypeError, match="example must be a tuple"):
        training_step(model, loss, optimizer, example[0])
    for name in ("accumulation", "warmup"):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, not 0"):
            training_step(model, loss, optimizer, example, **{name: 0})
    with pytest.raises(ValueError, match=r"loss must return a tensor of shape \[\], not \[6, 4\]"):
        training_step(model, lambda output, targets: output, optimizer, example)
    with pytest.raises(ValueError, match="on one device, not on cpu and meta"):
        training_step(model, loss, optimizer, (example[0].to("meta"), example[1]))
    step = capture_step(model, optimizer)
    with pytest.raises(ValueError, match=r"has shape \(5, 8\), and was captured with \(6, 8\)"):
        step(example[0][:5], example[1][:5])
    with pytest.raises(TypeError, match=r"is torch\.float64, and was captured as torch\.float32"):
        step(example[0].double(), example[1])


def test_what_changed_since_the_capture():
    batch = next(batches(1))
    model = make_model()
    optimizer = make_optimizer("AdamW", model)
    step = capture_step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(GraphError, match=r"lr of parameter group 0 was 0\.01 in the capture, and"):
        step(*batch)
    optimizer.param_groups[0]["lr"] = 0.01
    step(*batch)
    model[1].eval()
    with pytest.raises(GraphError, match="module 1 was captured in training mode"):
        step(*batch)
    model.train()
    weight = model[0].weight
    model[0].weight = nn.Parameter(weight.detach().clone())
    with pytest.raises(GraphError, match=r"0\.weight was replaced"):
        step(*batch)
    model[0].weight = weight
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(GraphError, match="the optimizer's state was replaced, as load_state_dict"):
        step(*batch)


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=NATIVE), False])
def test_a_parameter_that_was_frozen(monkeypatch, is_native):
    """A replay would go on to update it, and would not begin to update one that is unfrozen."""
    if not is_native:
        monkeypatch.setattr(state, "watch", watch_in_python)
    model, batch = make_model(), next(batches(1))
    model[4].bias.requires_grad_(False)
    step = capture_step(model, make_optimizer("AdamW", model))
    model[0].weight.requires_grad_(False)
    with pytest.raises(GraphError, match=r"^0\.weight did require grad .* and does not now"):
        call_often(step, batch)
    model[0].weight.requires_grad_()
    call_often(step, batch)
    model[4].bias.requires_grad_()
    with pytest.raises(GraphError, match=r"^4\.bias did not require grad .* and does now"):
        call_often(step, batch)


def call_often(step, batch):
    """So often that each tensor was asked."""
    for _ in range(3):
        step(*batch)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_parameters_that_were_added(name):
    model = make_model()
    optimizer = make_optimizer(name, model)
    step = capture_step(model, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(GraphError, match="other parameter groups than in the capture"):
        step(*next(batches(1)))
    del optimizer.param_groups[1]
    step(*next(batches(1)))
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(2)))
    with pytest.raises(GraphError, match="other parameter groups than in the capture"):
        step(*next(batches(1)))


@pytest.mark.parametrize("is_filled_again", [False, True])
def test_state_that_was_cleared(is_filled_again):
    model = make_model()
    optimizer = make_optimizer("AdamW", model)
    step = capture_step(model, optimizer)
    optimizer.state.clear()
    if is_filled_again:
        train_eagerly(model, loss, optimizer, batches(1), backend="torch")
    with pytest.raises(GraphError, match="the optimizer's state was replaced"):
        step(*next(batches(1)))


def test_a_step_that_replaces_a_buffer():
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return self.inner(x)

    model = Replaces()
    with pytest.raises(GraphError, match="a step replaces count by another tensor"):
        capture_step(model, make_optimizer("AdamW", model))


def test_parameters_are_seen_to_change():
    """Autograd refuses a backward pass through weights that a replay has changed."""
    model = make_model()
    step = capture_step(model, make_optimizer("AdamW", model))
    value = model(next(batches(1))[0]).sum()
    step(*next(batches(1)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_losses_are_copies_unless_they_are_not_to_be():
    model = make_model()
    step = capture_step(model, make_optimizer("AdamW", model))
    assert len({step(*batch).item() for batch in batches(3)}) == 3
    step = capture_step(model, make_optimizer("AdamW", model), clone=False)
    first = step(*next(batches(1)))
    assert first.data_ptr() == step(*next(batches(1))).data_ptr()


def test_measure_changes_nothing(device):
    model = make_model()
    step = capture_step(model, make_optimizer("AdamW", model), accumulation=2)
    step(*next(batches(1)))
    gathered = [gradient.clone() for gradient in step._gradients]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    device.elapsed = 0.2
    report = step.measure(4)
    assert [g.replay_us for g in report.graphs] == [None, pytest.approx(50)]
    assert step.part == 1
    assert gathered and all(map(torch.equal, gathered, step._gradients))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "part 1 of a training step" in str(report)
    assert diglot.graphs.inspect(step).nodes


def test_a_step_that_was_released():
    model = make_model()
    step = capture_step(model, make_optimizer("AdamW", model))
    step.release()
    with pytest.raises(GraphError, match="its pool was built anew or released"):
        step(*next(batches(1)))


# --- mutations -----------------------------------------------------------------------------------


def test_state_that_is_not_restored_is_caught(monkeypatch):
    monkeypatch.setattr("diglot.graphs.optimizers._restore", lambda optimizer, known: None)
    with pytest.raises(AssertionError):
        compare("AdamW")


def test_buffers_that_are_not_restored_are_caught(monkeypatch):
    monkeypatch.setattr(training.TrainingStep, "_buffers", lambda step: [])
    with pytest.raises(AssertionError):
        compare("AdamW")


def test_random_state_that_is_not_restored_is_caught(device, monkeypatch):
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    monkeypatch.setattr(device, "set_random_state", lambda state: None)
    with pytest.raises(AssertionError):
        compare("AdamW")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_versions_tell_of_a_fused_step(accumulation):
    """PyTorch's fused optimizers leave versions as they are, and autograd asks these."""
    model = make_model()
    step = capture_step(model, make_optimizer("fused AdamW", model), accumulation=accumulation)
    versions = [p._version for p in model.parameters()]
    for part, batch in enumerate(batches(accumulation)):
        assert part == 0 or [p._version for p in model.parameters()] == versions
        step(*batch)
    assert all(p._version > v for p, v in zip(model.parameters(), versions, strict=True))
