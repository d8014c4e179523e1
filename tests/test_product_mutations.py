"""Faults that are put into the product on tensor cores are found without a GPU."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from planted.faults import NO_FAULT, Fault, plant
from planted.library import ROOT

HEADERS = [
    ROOT / "csrc/include/diglot/products" / name
    for name in (
        *("tensor_cores.cuh", "accumulators.cuh", "epilogue.cuh", "tma_store.cuh"),
        *("split.cuh", "schedule.cuh"),
    )
]
KERNELS = ROOT / "tests/planted/tensor_cores.cu"
WHOLE, SPLIT, AROUND = (136, 136, 616), (40, 136, 1160), (136, 136, 152)  # M, N, K
SEEDS = range(4)
pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels"),
]


FAULTS = {
    "none": NO_FAULT,
    "K's tail": Fault("step < part.end", "step + 1 < part.end"),
    "phase": Fault("full[ring.stage].wait(ring.parity);", "full[ring.stage].wait(0);"),
    "no wait for the stage": Fault("full[ring.stage].wait(ring.parity);", ""),
    "no wait for its release": Fault(
        "cluster == 1 ? free.wait(ring.parity ^ 1) : free.wait_for_cluster(ring.parity ^ 1);", ""
    ),
    "release before the products end": Fault("wgmma_wait<1>();", "wgmma_wait<2>();"),
    "bytes": Fault("arrive_expect(Shape::kBytesA + bytes_b)", "arrive_expect(Shape::kBytesA)"),
    "no fence before the store": Fault("fence_async_proxy();", ""),
    "no barrier before the store": Fault(
        "named_barrier_sync(parts.barrier, kWarpgroupThreads);\n  parts.next ^= 1;\n  if",
        "parts.next ^= 1;\n  if",
    ),
    "memory written while TMA reads it": Fault(
        "if (thread == 0) wait_bulk_groups_read<0>();\n  named", "named"
    ),
    "one part of memory": Fault("parts.next ^= 1;\n  if", "if"),
    "consumers before the barriers": Fault("named_barrier_sync(kReady, kThreads);", ""),
    "memory ends while TMA reads it": Fault(
        "if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();", ""
    ),
    "the other consumer's rows": Fault(
        "full, empty, consumer * Shape::kConsumerRows,", "full, empty, 0,"
    ),
    "registers": Fault("take_registers<232>", "take_registers<240>"),
}
# Of exchanged operands, whose K is split.
SPLIT_FAULTS = {
    "none, split": NO_FAULT,
    "a part of K": Fault("for (int part = 0; part", "for (int part = 1; part"),
    "a part of K, twice": Fault("+= loaded[j]", "+= loaded[j] * (part == 1 ? 2 : 1)"),
    "K's tail of a part": Fault("begin_of(part + 1)}", "begin_of(part + 1) - (part == 1)}"),
    "no counter is reset": Fault("if (is_last[consumer]) *counter = 0;", ""),
    "arrival before all sums": Fault(
        "named_barrier_sync(barrier, kWarpgroupThreads);  // the arrival", "// the arrival"
    ),
    "one counter for two consumers": Fault(
        "number * kConsumers + consumer;\n  // N", "number;\n  // N"
    ),
    "C is not transposed": Fault("? row : along", "? along : row"),
}
# With a bias, an input and an activation.
AROUND_FAULTS = {
    "none, around": NO_FAULT,
    "beta ignored": Fault(
        "fma(epilogue.beta, input[kFirst / 2 + i], part[i])", "part[i] + input[kFirst / 2 + i]"
    ),
    "the bias of another column": Fault(
        "pairs[(kFirst + i) / 4][i % 2]", "pairs[(kFirst + i) / 4][0]"
    ),
    "the bias of another part": Fault("bias.template add<kFirst / 2>", "bias.template add<0>"),
    "the input of the row below": Fault(
        "first + below * 8 * across", "first + (1 - below) * 8 * across"
    ),
    "the previous tile's epilogue": Fault(
        "sums, epilogue.moved(0, offset(product.input_batch_strides)), row,",
        "sums, epilogue.moved(0, offset(product.input_batch_strides)), row % Shape::kRows,",
    ),
    "no activation": Fault("part[i] = activate<kActivation, T>(part[i])", "part[i] += 0"),
}
ALL = FAULTS | SPLIT_FAULTS | AROUND_FAULTS


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).bfloat16()


@pytest.mark.parametrize("name", ALL)
def test_a_fault_is_found(name, tmp_path):
    fault = ALL[name]
    run = plant(fault, HEADERS, KERNELS, tmp_path)
    m, n, k = WHOLE if name in FAULTS else SPLIT if name in SPLIT_FAULTS else AROUND
    a, b = integers(m, k), integers(k, n)
    expected = a.double() @ b.double()
    if name in AROUND_FAULTS:
        expected = (expected + a[0, :n] - 2 * a[:, :n]).relu()
    expected = expected.bfloat16()
    values = torch.cat([a.flatten(), b.flatten()]).view(torch.float32)
    found = []
    for seed in SEEDS:
        message, out = run(f"{m}x{n}x{k}", values=values, blocks=m * n // 2, seed=seed, seconds=60)
        product = out.view(torch.bfloat16).view(m, n)
        found.append(message or ("" if torch.equal(product, expected) else "another product"))
    assert any(found) != (fault == NO_FAULT), found
