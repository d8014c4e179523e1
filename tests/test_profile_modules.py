"""`diglot.profile` by modules: names, time, launches, memory; forward and backward passes."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE
from torch import nn

import diglot
from diglot.tools.module_costs import module_costs
from diglot.tools.module_scopes import PREFIX, module_scopes
from diglot.tools.trace import Trace


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.project(x), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.attention(x) + x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([Layer(), Layer()])})

    def forward(self, x):
        for layer in self.encoder["layer"]:
            x = layer(x)
        return x


@pytest.fixture
def x():
    return torch.randn(4, 8, device=DEVICE)


def test_modules_have_the_names_of_their_paths(x):
    model = Model().to(DEVICE)
    done = diglot.profile_call(lambda: model(x), warmup=1, repeat=2, frames=False)
    called = [name for name, _ in model.named_modules() if "layer." in name]
    assert list(done.modules()) == ["Model", *called]
    assert "encoder.layer.0.attention" in called
    assert {cost.calls for cost in done.modules().values()} == {2}
    assert "\nencoder.layer.0.attention.project " in str(done)
    # They are no scopes of the user's.
    assert done.kernels_by_scope() == {}


def test_a_sequential_is_the_sum_of_its_parts(x):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to(DEVICE)
    with torch.no_grad():
        done = diglot.profile_call(lambda: model(x), warmup=1, repeat=3, frames=False)
    costs = done.modules()
    assert list(costs) == ["Sequential", "0", "1", "2"]
    assert [cost.launches for cost in costs.values()] == [9, 3, 3, 3]
    whole, parts = costs["Sequential"], [costs[name] for name in "012"]
    of_parts = sum(part.forward_us for part in parts)
    # Sums of the same floats in another order.
    assert whole.forward_us >= of_parts * (1 - 1e-9) > 0
    if DEVICE == "cpu":  # 4 rows of 8 numbers of 4 bytes, in each of 3 calls
        assert [cost.allocated for cost in costs.values()] == [9 * 128, *3 * [3 * 128]]
    assert {cost.backward_us for cost in costs.values()} == {0}
    assert "–" in next(line for line in str(done).splitlines() if line.startswith("Sequential "))


def test_backward_passes_belong_to_their_modules(x):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(DEVICE)
    loose = torch.ones(8, device=DEVICE, requires_grad=True)

    def step():
        torch.tanh(model(x) * loose).sum().backward()

    done = diglot.profile_call(step, warmup=1, repeat=2, frames=False)
    costs = done.modules()
    assert all(cost.backward_us > 0 for cost in costs.values())
    assert costs["1"].launches == 2 * 2  # GELU and its derivative


def test_kernels_on_a_gpu_belong_to_modules():
    """A trace of a GPU's: autograd's thread comes first, and knows the operator by its number."""

    def event(category, name, begin, us, thread=1, **arguments):
        return {
            "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": begin,
            "dur": us, "args": arguments,
        }  # fmt: skip

    numbers = {"Sequence number": 5}
    trace = Trace(
        [
            event("cpu_op", "autograd::engine::evaluate_function: B", 60, 9, 2,
                  **numbers, **{"Fwd thread id": 1}),
            event("cuda_runtime", "cudaLaunchKernel", 62, 1, 2, correlation=2),
            event("user_annotation", f"{PREFIX}Net", 0, 50),
            event("user_annotation", f"{PREFIX}head", 10, 30),
            event("cpu_op", "aten::mm", 12, 20, **numbers),
            event("cuda_runtime", "cudaLaunchKernel", 14, 1, correlation=1),
            event("kernel", "gemm", 70, 7, 9, correlation=1),
            event("kernel", "gemm_backward", 80, 11, 9, correlation=2),
        ]
    )  # fmt: skip
    found = module_costs(trace)
    for name in ("Net", "head"):
        cost = found[name]
        assert (cost.forward_us, cost.backward_us, cost.launches) == (7, 11, 2)


def test_a_flame_graph_has_modules(x, tmp_path):
    """Without Python's frames: of modules and operators alone."""
    model = Model().to(DEVICE)
    with diglot.profile(frames=False) as done:
        model(x)
    done.save_flame(tmp_path / "f.svg")
    assert "encoder.layer.1.norm: " in (tmp_path / "f.svg").read_text()


def test_without_modules(x):
    model = Model().to(DEVICE)
    with diglot.profile(modules=False, frames=False) as done:
        model(x)
    assert done.modules() == {} and "module  " not in str(done)


def names_of(function) -> list[str]:
    entered = []

    class Scope:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name.removeprefix(PREFIX))

        def __exit__(self, *error):
            entered.append(f"/{self.name.removeprefix(PREFIX)}")

    with module_scopes(Scope):
        function()
    return entered


def test_names_are_distinct(x):
    first, second = (nn.Sequential(nn.ReLU()) for _ in range(2))
    shared = nn.Sequential(first[0])

    def call():
        for model in (first, second, shared):
            model(x)

    assert names_of(call) == [
        "Sequential", "0", "/0", "/Sequential",
        "Sequential 2", "Sequential 2.0", "/Sequential 2.0", "/Sequential 2",
        "Sequential 3", "0", "/0", "/Sequential 3",
    ]  # fmt: skip


def test_a_module_that_fails_leaves_its_scope(x):
    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    def call():
        with pytest.raises(KeyError, match="mine"):
            nn.Sequential(nn.ReLU(), Fails())(x)

    assert names_of(call) == ["Sequential", "0", "/0", "1", "/1", "/Sequential"]


def test_hooks_are_gone_afterwards(x):
    assert names_of(lambda: None) == []
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_compiled_modules_have_one_scope(x):
    model = torch.compile(nn.Sequential(nn.ReLU(), nn.ReLU()), backend="eager", fullgraph=True)
    assert names_of(lambda: model(x)) == ["OptimizedModule", "/OptimizedModule"]
