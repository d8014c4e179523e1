"""Compiled kernels of collectives in Triton: data stay in registers, and accesses are wide."""

from __future__ import annotations

import pytest
from apart import run_apart
from backends import DEVICE, sampled

COMPILED = """
import sys, torch
from diglot.backends.plans import Device
from diglot.backends.registry import BACKENDS
from diglot.distributed.workspace import PROTOCOLS
from diglot.tools.resources import compile_triton

architecture, step = sys.argv[1], int(sys.argv[2])
gpu = Device(int(architecture.removeprefix("sm_")), 132, 160 << 10, False)
space = torch.empty(1, dtype=torch.int64)

def call_of(ranks, protocol, dtype, op, skipped):
    n = 1 << (17 if protocol == "push" else 22)
    x, out = torch.empty(n + skipped, dtype=dtype)[skipped:], torch.empty(n, dtype=dtype)
    where = (protocol, 0, ranks, 1 << 20, 1 << 19, 1 << 21, 1 << 24, 0, 7, 0, 10**9)
    return [], space, x, "", op, *where, out

calls = [
    call_of(ranks, protocol, dtype, op, skipped)
    for ranks in (2, 3, 4, 8)
    for protocol in PROTOCOLS
    for dtype, op, skipped in [(torch.bfloat16, "sum", 0), (torch.float32, "max", 0),
                               (torch.float16, "avg", 1)]
    if not skipped or protocol in ("push", "pull", "two shots")
][::step]
plan = BACKENDS["triton"].plan
for call in calls:
    launch = plan("distributed.all_reduce", "all_reduce", gpu, call).launches[0]
    (kernel,) = compile_triton([launch.specialization], architecture)
    assert kernel.spill_bytes == kernel.stack_bytes == 0, (launch, kernel)
    wide = 8 if "push" in launch.kernel.__name__ else 16
    assert max(dict(kernel.stores)) >= wide, (launch, kernel)
print("compiled", len(calls))
"""


@pytest.mark.skipif(DEVICE == "cuda", reason="it compiles ahead of time")
@pytest.mark.ahead_of_time
@pytest.mark.slow
@sampled(13)
def test_triton_kernels_do_not_spill(architecture, step):
    done = run_apart(COMPILED, architecture, str(step))
    assert done.stdout == f"compiled {len(range(0, 60, step))}\n", done.stderr
