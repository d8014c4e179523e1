"""Streams, CUDA graphs, several GPUs, compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import triton
from backends import KERNELS
from exercise import PARTS, exercise

import diglot

pytestmark = pytest.mark.gpu

several_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


def step(x, row, backend):
    """Elementwise ops, forward and backward, with a sum in the latter, and one with a barrier."""
    y = diglot.add(diglot.gelu(x, "tanh", backend=backend), row, backend=backend)
    y = diglot.standardize(y, backend=backend) + y.numel() * diglot.global_softmax(
        y, backend=backend
    )
    return y, *torch.autograd.grad(y.square().sum(), (x, row))


def expected_step(x, row):
    y = F.gelu(x, approximate="tanh") + row
    softmax = torch.softmax(y.flatten(), 0).view_as(y)
    y = F.layer_norm(y, y.shape) + y.numel() * softmax
    return y, *torch.autograd.grad(y.square().sum(), (x, row))


def row_step(x, row, backend):
    """Norms of rows, one after the other, with the sums over rows in their gradients."""
    y, total = diglot.add_layer_norm(x, row.expand_as(x), len(row), row, row, backend=backend)
    y = diglot.softmax(diglot.rms_norm(y, len(row), row, 1e-5, backend=backend), backend=backend)
    return y, *torch.autograd.grad((y * total).sum(), (x, row))


def expected_row_step(x, row):
    total = x + row
    y = F.layer_norm(total, row.shape, row, row)
    y = torch.softmax(F.rms_norm(y, row.shape, row, 1e-5), -1)
    return y, *torch.autograd.grad((y * total).sum(), (x, row))


STEPS = {step: expected_step, row_step: expected_row_step}


def operands(device="cuda"):
    x = torch.randn(300, 512, device=device, requires_grad=True)
    return x, torch.randn(512, device=device, requires_grad=True)


def check(results, x, row, of=step):
    """By float64; where sums cancel, the addends set the error."""
    wide = (t.detach().double().requires_grad_() for t in (x, row))
    for result, expected in zip(results, STEPS[of](*wide), strict=True):
        atol = 2e-5 * expected.abs().max().item()
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("of", STEPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_work_goes_to_the_current_stream(backend, of):
    x, row = operands()
    results = of(x, row, backend)  # compiled and loaded
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        # On another stream than this one, the op would read the values from before.
        torch.cuda._sleep(1_000_000_000)  # half a second: the host may be late
        x.copy_(torch.randn_like(x))
        row.copy_(torch.randn_like(row))
    with torch.cuda.stream(side):
        results = of(x, row, backend)
    # And had it waited for the other stream, it would be over by now.
    assert not side.query()
    side.synchronize()
    check(results, x, row, of)


@pytest.mark.parametrize("of", STEPS)
@pytest.mark.parametrize("backend", KERNELS)
def test_capture_and_replay(backend, of):
    x, row = operands()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        of(x, row, backend)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = of(x, row, backend)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
            row.copy_(torch.randn_like(row))
        for result in results:
            result.detach().fill_(torch.nan)
        graph.replay()
        check(results, x, row, of)


FIRST_CALL = """
import torch, diglot
x = torch.linspace(-5, 5, 1001, device="cuda")
row = torch.ones((), device="cuda")
grad = torch.ones_like(x)
parameter = torch.zeros_like(x)
parameter.grad = torch.ones_like(x)
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    # The first calls of the process: code is compiled and loaded in the capture.
    y = diglot.add(diglot.gelu(x, backend={backend!r}), row, backend={backend!r})
    dx = torch.ops.diglot.gelu_backward(grad, x, "none", {backend!r})
    total = torch.ops.diglot.add_backward(grad, [], grad.dtype, 2, {backend!r})
    normal = diglot.layer_norm(x, 1001, backend={backend!r})
    # These wait for each other's blocks.
    probabilities = diglot.global_softmax(x, backend={backend!r})
    norm = diglot.clip_grad_norm_([parameter], 1.0, backend={backend!r})
x.mul_(-0.5)
graph.replay()
torch.testing.assert_close(y, torch.nn.functional.gelu(x) + 1)
torch.testing.assert_close(dx, torch.ops.aten.gelu_backward(grad, x))
assert total.item() == 2002
torch.testing.assert_close(normal, torch.nn.functional.layer_norm(x, (1001,)))
torch.testing.assert_close(probabilities, torch.softmax(x, 0))
torch.testing.assert_close(norm.item(), 1001**0.5)
torch.testing.assert_close(parameter.grad, torch.full_like(x, 1001**-0.5))
print("replayed")
"""


@pytest.mark.parametrize("backend", KERNELS)
def test_the_first_call_is_captured(backend):
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL.format(backend=backend)], capture_output=True, text=True
    )
    assert done.stdout == "replayed\n", done.stderr


def test_launch_hooks_of_triton_are_called():
    x = torch.randn(300, device="cuda")
    names = []
    hook = triton.knobs.runtime.launch_enter_hook
    enter = lambda metadata: names.append(metadata.get()["name"])  # noqa: E731
    hook.add(enter)
    try:
        diglot.gelu(x, backend="triton")
    finally:
        hook.remove(enter)
    diglot.gelu(x, backend="triton")
    assert names == ["gelu_forward_flat"]


@several_gpus
@pytest.mark.parametrize("backend", KERNELS)
def test_tensors_of_another_device_than_the_current(backend):
    for device in range(torch.cuda.device_count() - 1, -1, -1):
        x, row = operands(f"cuda:{device}")
        results = step(x, row, backend)
        assert all(result.device == x.device for result in results)
        check(results, x, row)
        assert torch.cuda.current_device() == 0


@several_gpus
@pytest.mark.parametrize("backend", KERNELS)
def test_tensors_of_two_devices(backend):
    with pytest.raises(ValueError, match="must be on one device, not on cuda:0 and cuda:1"):
        diglot.add(torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1"), backend=backend)


OTHER_DEVICE = """
import torch, diglot
x = torch.randn(5000, device="cuda:1", requires_grad=True)
diglot.gelu(x, backend={backend!r}).sum().backward()
with torch.cuda.device(1):
    diglot.gelu(x, backend={backend!r}).sum().backward()
torch.cuda.synchronize(1)
print([torch._C._cuda_hasPrimaryContext(device) for device in (0, 1)])
"""


@several_gpus
@pytest.mark.parametrize("backend", KERNELS)
def test_no_context_is_made_on_other_devices(backend):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_DEVICE.format(backend=backend)], capture_output=True, text=True
    )
    assert done.stdout == "[False, True]\n", done.stderr


DROPOUT = ("dropout_forward", "dropout_backward")


@pytest.mark.parametrize("backend", KERNELS)
def test_every_variant_is_exercised(backend):
    ran = exercise(backend, "maps", "sums")
    for launcher in ("gelu_forward", "gelu_backward", "add_forward", "add_backward", *DROPOUT):
        variants = [line for line in ran if line.startswith(launcher)]
        assert any("flat" in line for line in variants), ran
        assert any("strided" in line for line in variants), ran
    assert any("sum" in line for line in ran), ran


# What each tool watches: everything, or, as that takes long, what has shared memory or barriers.
SHARED = "sums clips small barriers"
SANITIZED = [
    *(("memcheck", parts) for parts in ("maps sums", "clips whole barriers")),
    *(("memcheck", part) for part in PARTS if part.startswith(("rows-", "norms-"))),
    ("racecheck", SHARED),
    ("synccheck", SHARED),
]


def sanitize(tool, *arguments):
    """Runs exercise.py under compute-sanitizer; its exit status and what it printed."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "17"]
    # PyTorch's own kernels are not under test.
    ours = ("gelu_", "add_", "dropout_", "clip_", "softmax_", "norm_", "standardize_", "grid_")
    for name in ours:
        command += ["--kernel-name", f"kernel_substring={name}"]
    script = Path(__file__).with_name("exercise.py")
    done = subprocess.run(
        [*command, sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Each tensor is an allocation of its own, so that memory beyond its end is beyond all ends.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this machine")
    return done.returncode, done.stdout


# The names of some variants that ran.
NAMES = {"sums": "sum", "rows": "softmax_forward", "norms": "norm_forward", "barriers": "barrier"}


@pytest.mark.parametrize(("tool", "parts"), SANITIZED)
@pytest.mark.parametrize("backend", KERNELS)
def test_compute_sanitizer_is_content(backend, tool, parts):
    status, output = sanitize(tool, backend, *parts.split())
    assert status == 0, output[-4000:]
    for part in parts.split():
        assert NAMES.get(part.partition("-")[0], "") in output


def test_compute_sanitizer_would_object():
    status, output = sanitize("memcheck", "triton", "planted")
    assert status == 17 and "Invalid __global__ write" in output, output[-4000:]


@pytest.mark.parametrize("backend", KERNELS)
def test_operators_take_no_tensors_on_the_cpu(backend):
    """They can be called without the facade, which refuses them. The GPU is well after it."""
    x = torch.randn(64)
    with pytest.raises(ValueError, match="takes CUDA tensors"):
        torch.ops.diglot.gelu_backward(x, x, "none", backend)
    y = torch.randn(64, device="cuda")
    assert torch.equal(diglot.gelu(y, backend=backend), diglot.gelu(y, backend=backend))
