"""Faults that are put into products of groups on tensor cores are found without a GPU."""

from __future__ import annotations

import pytest
import torch
from backends import DEVICE, NEEDS_CUDA
from planted.faults import NO_FAULT, Fault, plant
from planted.library import ROOT

from diglot.reference.grouped_mm import grouped_mm_oracle

HEADERS = [
    ROOT / "csrc/include/diglot/products" / name
    for name in ("groups.cuh", "grouped_tensor_cores.cuh")
]
KERNELS = ROOT / "tests/planted/grouped_products.cu"
ROWS, COLUMNS, DEPTH = 200, 136, 136
ENDS = [70, 70, 75, 150, 190]  # an empty group, a short one, rows of none
SEEDS = range(2)
pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels"),
]

FAULTS = {
    "none": NO_FAULT,
    "a tail is written into the next group": Fault(
        "row + boxes * box <= place.end || place.end == product.m", "true"
    ),
    "a tail is written by threads": Fault(
        "place.begin,\n                           row + lines",
        "place.begin,\n                           product.m",
    ),
    "a tile has rows of the next group": Fault("width_until(end - row)", "width_until(m)"),
    "too few rows are loaded": Fault("product_width(place.width, product.box)", "product.box"),
    "bytes of whole tiles are awaited": Fault(
        "Shape::kBytesA + width * kLineBytes", "Shape::kBytesA + product.width * kLineBytes"
    ),
    "all boxes of C have one place": Fault("{column, row + line, 0, 0}", "{column, row, 0, 0}"),
    "a panel is overwritten too soon": Fault(
        "    if (thread == 0) wait_bulk_groups_read<Shape::kParts - 2>();\n", ""
    ),
    "an empty group shifts the tiles": Fault(
        "group.first = group.last;", "group.first = group.last + (group.size() == 0);"
    ),
    "offsets off by one": Fault("offsets[group.number]", "offsets[group.number] + 1"),
    "offsets of the next group": Fault(
        "group.number < groups ? offsets[group.number]",
        "group.number + 1 < groups ? offsets[group.number + 1]",
    ),
    "rows of no group are left out": Fault("groups - 1 : groups;", "groups - 1 : groups - 1;"),
    "the last group's matrix for all": Fault(
        "group.number * a_step", "(schedule.groups - 1) * a_step"
    ),
    "the tail of K stays": Fault("step + 1 == steps ? left : Shape::kDepth", "Shape::kDepth"),
    "what is before the group in K stays": Fault("step == 0 ? place.before : 0", "0"),
    "the tail of B stays": Fault(
        "(tile_b, consumer * kShare, kShare,",
        "(tile_b, consumer * kShare, 0,",
    ),
    "no fence before the products": Fault(
        "        fence_async_proxy();  // each thread's writes, before wgmma reads them\n", ""
    ),
    "no barrier before the products": Fault(
        "named_barrier_sync(1 + Shape::kConsumers, Shape::kConsumers * kWarpgroupThreads);",
        "",
    ),
    "K from the start": Fault("first, size,   begin - first", "0, size,   begin - first"),
}


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).bfloat16()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, tmp_path):
    run = plant(FAULTS[name], HEADERS, KERNELS, tmp_path)
    offsets = torch.tensor(ENDS, dtype=torch.int32)
    a = integers(ROWS, DEPTH)
    found = []
    for kind, first, second in (
        ("rows", a, integers(len(ENDS), DEPTH, COLUMNS)),
        ("K", a.mT, integers(ROWS, COLUMNS)),
        ("contiguous K", a.mT.contiguous(), integers(ROWS, COLUMNS)),
    ):
        if kind != "rows":  # zeros must not be multiplied by zero
            second[75:150] = torch.inf
        expected = grouped_mm_oracle(first, second, offsets).bfloat16()
        held = first if kind == "contiguous K" else a
        bits = [t.flatten().view(torch.float32) for t in (held, second)]
        values = torch.cat([*bits, offsets.view(torch.float32)])
        for seed in SEEDS:
            message, out = run(
                kind, values=values, blocks=expected.numel() // 2, seed=seed, seconds=120
            )
            product = out.view(torch.bfloat16).view(expected.shape)
            is_right = torch.equal(product.nan_to_num(7.5), expected.nan_to_num(7.5))
            found.append(message or ("" if is_right else f"another product of {kind}"))
    assert any(found) != (name == "none"), found
