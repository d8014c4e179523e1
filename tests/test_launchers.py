"""Launchers have one signature in all three backends, one trailing scratch included."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest
import torch
from backends import needs_extension

import diglot.ops
import diglot.reference
from diglot.backends.plans import CALL, STREAM, Device, plan_runs
from diglot.backends.registry import load_extension, load_interpreter

NAME = re.compile(
    r"\w+_(forward|backward)|all_reduce|all_gather|reduce_scatter|all_reduce_add_rms_norm|barrier"
    "|clip_grad_norm|grid_barrier_check|moe_rows|philox_words"
)


def parameters_of(package: str) -> dict[str, list[str]]:
    """The parameters of every launcher of a Python backend."""
    found = {}
    names = [
        f"{each}.{info.name}"
        for each in (package, f"{package}.distributed")
        for info in pkgutil.iter_modules(importlib.import_module(each).__path__)
        if not info.ispkg
    ]
    for module in map(importlib.import_module, names):
        for name, value in vars(module).items():
            if NAME.fullmatch(name) and callable(value):
                parameters = list(inspect.signature(value).parameters)
                if parameters and parameters[-1] == "scratch":
                    found[name] = parameters
    return found


def parameters_of_schemas(module) -> dict[str, list[str]]:
    """Those of CUDA's launchers: a number that travels twice counts once."""
    found = {}
    for name, text in module.schemas.items():
        parameters = [a.name for a in torch._C.parse_schema(f"{name}{text}").arguments]
        found[name] = [p for p in parameters if not p.endswith("_integer")]
    return found


REFERENCE = parameters_of("diglot.reference")


def test_every_op_has_launchers():
    assert set(REFERENCE) == {
        *(f"{op}_{d}" for op in ("add", "dropout", "gaussian_pdf", "gelu", "global_softmax",
                                 "layer_norm", "log_softmax", "rms_norm", "softmax", "standardize")
          for d in ("forward", "backward")),
        "add_layer_norm_forward", "add_rms_norm_forward", "matmul_forward", "linear_forward",
        "scaled_mm_forward", "grouped_mm_forward",
        "moe_activation_forward", "moe_activation_backward", "moe_rows",
        "linear_backward", "linear_parameters_backward", "mlp_backward",
        "bmm_forward", "addmm_forward", "baddbmm_forward",
        "clip_grad_norm", "grid_barrier_check", "all_reduce", "barrier",
        "all_gather", "reduce_scatter", "all_reduce_add_rms_norm", "philox_words",
    }  # fmt: skip


def test_signatures_of_triton_are_those_of_the_reference():
    pytest.importorskip("triton")
    assert parameters_of("diglot.triton_ops") == REFERENCE


@pytest.mark.parametrize("load", [load_extension, load_interpreter])
def test_signatures_of_cuda_are_those_of_the_reference(load):
    module, reason = load()
    if module is None:
        pytest.skip(reason)
    assert parameters_of_schemas(module) == REFERENCE


def test_ops_hold_no_policy():
    """No op asks which backend runs it, or imports one's launchers."""
    for info in pkgutil.iter_modules(diglot.ops.__path__):
        text = inspect.getsource(importlib.import_module(f"diglot.ops.{info.name}"))
        assert not re.search(r"backend (==|!=|in|not in) ", text), info.name
        assert "triton_ops" not in text, info.name


H200 = Device(90, 132, 228 << 10, True)
A100 = Device(80, 108, 164 << 10, False)


def plan_of(op, backend, *inputs, device=H200, **options):
    with plan_runs(device) as runs:
        getattr(diglot, op)(*inputs, backend=backend, **options)
    return [run.plan for run in runs]


@needs_extension
def test_plans_of_a_named_device():
    """Nothing is launched; what a planner asks of its device is answered for the one named."""
    x = torch.empty(4, 65536)
    (on_h200,), (on_a100,) = (plan_of("softmax", "cuda", x, device=d) for d in (H200, A100))
    assert on_h200.launches[0].cluster_blocks == 16 and on_a100.launches[0].cluster_blocks == 1
    assert on_h200.variant != on_a100.variant and on_h200.scratch is None
    assert on_a100.launches[0].shared_bytes == 5 * 256 * 8 * 16


@needs_extension
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_plans_say_what_scratch_they_need(backend):
    (none,) = plan_of("gelu", backend, torch.empty(4, 64))
    assert none.scratch is None
    (tall,) = plan_of("softmax", backend, torch.empty(1 << 15, 64), dim=0)
    assert tall.scratch.lifetime == CALL and tall.scratch.zeroed == 0 and len(tall.launches) == 2
    (meeting,) = plan_of("global_softmax", backend, torch.empty(1 << 20))
    assert meeting.scratch.lifetime == STREAM and meeting.scratch.zeroed == 16


@needs_extension
def test_columns_that_take_one_launch_have_no_scratch():
    """Columns of 8193 to 16384 elements once had memory that nobody read."""
    for height in (8192, 8193, 12000, 16384, 16385, 20000):
        (plan,) = plan_of("softmax", "cuda", torch.empty(height, 64), dim=0)
        assert (plan.scratch is not None) == (len(plan.launches) == 2), height
