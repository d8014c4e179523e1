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
        *("split.cuh", "ring.cuh", "schedule.cuh", "row_sums.cuh"),
    )
]
KERNELS = ROOT / "tests/planted/tensor_cores.cu"
WHOLE, SPLIT, AROUND = (136, 136, 616), (40, 136, 1160), (136, 136, 152)  # M, N, K
MEETING, SHARING, TURNS = (136, 136, 680), (72, 264, 616), (136, 264, 392)
HELPED = (264, 64, 616)
SUMMED, SUMMED_PARTS = (136, 136, 328), (136, 136, 456)
SEEDS = range(4)
pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE != "cpu", reason="it interprets kernels"),
]


FAULTS = {
    "none": NO_FAULT,
    "K's tail": Fault("step < part.end", "step + 1 < part.end"),
    "phase": Fault(
        "wait_at(at.full(ring.stage), ring.parity);", "wait_at(at.full(ring.stage), 0);"
    ),
    "no wait for the stage": Fault("wait_at(at.full(ring.stage), ring.parity);", ""),
    "no wait for its release": Fault(
        "wait_for_readers(at.empty(ring.stage), ring.parity ^ 1);\n      const", "const"
    ),
    "release before the products end": Fault("wgmma_wait<1>();", "wgmma_wait<2>();"),
    "bytes": Fault("arrive_expect_at(full, bytes);", "arrive_expect_at(full, Shape::kBytesA);"),
    "no fence before the store": Fault(
        "fence_async_proxy();  // each thread's writes, before TMA", "// TMA"
    ),
    "no barrier before the store": Fault(
        "named_barrier_sync(parts.barrier, kWarpgroupThreads);\n  parts.advance();\n  if",
        "parts.advance();\n  if",
    ),
    "memory written while TMA reads it": Fault(
        "if (thread == 0) wait_bulk_groups_read<Shape::kParts - 2>();\n  named", "named"
    ),
    "one part of memory": Fault("parts.advance();\n  if", "if"),
    "consumers before the barriers": Fault("named_barrier_sync(kReady, kThreads);", ""),
    "several producers": Fault("kProducers && elect_one())", "kProducers && thread % 32 < 2)"),
    "one operand's bytes are expected": Fault("(kLoadsB ? bytes_b : 0)", "0"),
    "one producer ends a phase": Fault("barrier.init(kProducers)", "barrier.init(1)"),
    "a producer before the barriers": Fault(
        "named_barrier_sync(kProducing, kProducers * kWarp);", ""
    ),
    "memory ends while TMA reads it": Fault(
        "if (threadIdx.x % kWarpgroupThreads == 0) wait_bulk_groups_read<0>();", ""
    ),
    "the other consumer's rows": Fault("sums, ring, at, tile_row,", "sums, ring, at, 0,"),
    "registers": Fault("kConsumers > 2 ? 160 : 232;", "kConsumers > 2 ? 160 : 240;"),
}
# Of exchanged operands, whose K is split.
SPLIT_FAULTS = {
    "none, split": NO_FAULT,
    "a part of K": Fault("for (; part < parts; ++part)", "for (; part + 1 < parts; ++part)"),
    "a part of K, twice": Fault(
        "add(load(part, i), i);", "add(load(part, i), i), add(load(part, i), i);"
    ),
    "parts at once, the first twice": Fault("load(part + other, i)", "load(part, i)"),
    "K's tail of a part": Fault(
        "part.end = begin_of(part.part + 1);",
        "part.end = begin_of(part.part + 1) - (part.part == 1);",
    ),
    "no counter is reset": Fault("if (is_last[consumer]) *counter = 0;", ""),
    "arrival before all sums": Fault(
        "named_barrier_sync(barrier, kWarpgroupThreads);  // the arrival is that of all threads\n"
        "  if (",
        "if (",
    ),
    "C is not transposed": Fault("? row : along", "? along : row"),
}
# Of a last round with helpers.
HELPED_FAULTS = {
    "none, with helpers": NO_FAULT,
    "more than a share": Fault("share_end < segment_end ? share_end : segment_end", "segment_end"),
    "a step of the next helper": Fault(
        "part.end = step_at(share_end", "part.end = (helper == 0) + step_at(share_end"
    ),
    "all steps of a helped tile": Fault("part.end = last.kept;", "part.end = steps;"),
    "no step beside the helpers": Fault("part.end = last.kept;", "part.end = 0;"),
    "helpers' sums in one place": Fault("first_helper(tile) + tile + part - 1", "part - 1"),
    "a tile of one helper": Fault("last_helper(tile) - first_helper(tile) + 2;", "2;"),
    "another part": Fault("helper - last.first_helper(number) + 1;", "helper + 1;"),
    "every part is whole": Fault("return part.end - part.first == steps;", "return true;"),
    "another tile": Fault("first_helped() + static_cast<uint32_t>(number);", "first_helped();"),
}
# Of tiles whose parts clusters have.
MEETING_FAULTS = {
    "none, in clusters": NO_FAULT,
    "a share that no block finishes": Fault("parts == rank; }", "parts == rank && column > 0; }"),
    "both consumers' sums in one place": Fault(
        "Shape::kConsumers + consumer) *", "Shape::kConsumers) *"
    ),
    "all parts in one place": Fault("number * (parts - 1) + from - (from > owner)", "number"),
    "another part's place": Fault("+ from - (from > owner)", "+ from - (from < owner)"),
    "sums over tiles in use": Fault(
        "named_barrier_sync(Shape::kConsumers > 1 ? kAll : barrier, kConsuming);", ""
    ),
    "sums over another block's tiles": Fault("wait_for_readers(is_free, 0);", ""),
    "memory is free for few": Fault("is_free.init(blocks);", "is_free.init(1);"),
    "arrival at barriers that are not ready": Fault(
        "cluster_wait();  // the others'", "// the others'"
    ),
    "no wait for other blocks": Fault("are_there.wait(0);", ""),
    "few bytes": Fault("bytes += (parts - 1) *", "bytes += (parts - 2) *"),
    "its own sums alone": Fault("from == rank ? own", "from >= 0 ? own"),
    "C over sums in use": Fault(
        "named_barrier_sync(barrier, kWarpgroupThreads);  // C's tile", "// C's tile"
    ),
}
# Of clusters whose blocks share tiles of A and of B.
SHARING_FAULTS = {
    "none, in clusters that share": NO_FAULT,
    "a share in the first one's place": Fault("+ static_cast<uint32_t>(line * kLineBytes)", ""),
    "another share": Fault("side += line, line = 0", "line = 0"),
    "another share along K": Fault("depth + line}", "depth}"),
    "shares of few lines": Fault("? kSide : kDepth) >> share.log", "? kSide : kDepth) / 4"),
    "a share for one block": Fault(
        "below << sharing.rows * sharing.column()", "1 << sharing.rank()"
    ),
    "a share of A for one block": Fault("beside << sharing.row()", "1 << sharing.rank()"),
    "no stage is handed to the other column": Fault(
        "rows * (1 - column) + row", "rows * column + row"
    ),
    "stages are handed to few": Fault("return rows + columns - 1;", "return rows;"),
    "a stage is filled before all have used it": Fault(
        "Cluster{sharing.blocks(), true, sharing.receivers()}",
        "Cluster{sharing.blocks(), true, 4}",
    ),
    "the first column's tile": Fault("tile.column * columns + column()", "tile.column * columns"),
    "a wait of the block's scope": Fault(
        "wait_for_readers(at.empty(ring.stage), ring.parity ^ 1);\n      const",
        "wait_at(at.empty(ring.stage), ring.parity ^ 1);\n      const",
    ),
    "memory ends while others reach it": Fault(
        "for (int stage = 0; stage < Shape::kStages; ++stage, ring.advance()) {",
        "for (int stage = Shape::kStages; stage < Shape::kStages; ++stage, ring.advance()) {",
    ),
    "shares before the others' barriers": Fault(
        "if (cluster.shares) cluster.wait();\n    if constexpr (Shape::kMovesRegisters) release",
        "if constexpr (Shape::kMovesRegisters) release",
    ),
}
# Of consumers that take turns. A block has three tiles, so its consumers have two and one.
TURNS_FAULTS = {
    "none, in turns": NO_FAULT,
    "out of turn": Fault("turns.await();", ""),
    "no turn for the other": Fault("if (number + clusters < parts.count) turns.pass();", ""),
    "no first turn": Fault("turns.begin();", ""),
    "its own turn again": Fault("kFirst + 1 - consumer", "kFirst + consumer"),
    "the other consumer's stages": Fault(
        "ring.advance(product.schedule.steps);  // the other", "// the other"
    ),
    "the first consumer's first stages": Fault(
        "if (turn > 0) ring.advance(product.schedule.steps);", ""
    ),
    "the ring's round": Fault("parity ^= static_cast<uint32_t>(rounds) & 1;", ""),
    "the other consumer's tiles too": Fault("(Shape::kTakesTurns ? 2 : 1)", "1"),
    "the first half's rows of A": Fault("half * Shape::kConsumerRows, k", "0, k"),
    "the first half's rows of C": Fault("half * Shape::kConsumerRows, has", "0, has"),
    "the first half's sums": Fault("sums[0][i] = sums[1][i];", ";"),
    "a release by both": Fault("kTakesTurns ? 1 : kConsumers;", "kConsumers;"),
    "memory written while TMA reads it, in turns": Fault(
        "wait_bulk_groups_read<Shape::kParts - 2>", "wait_bulk_groups_read<Shape::kParts - 1>"
    ),
}
# With a bias, an input and an activation.
AROUND_FAULTS = {
    "none, around": NO_FAULT,
    "beta ignored": Fault("fma(epilogue.beta, input[i], part[i])", "part[i] + input[i]"),
    "the bias of another column": Fault("pairs[i / 4][i % 2];", "pairs[i / 4][0];"),
    "the bias of another part": Fault(
        "next_bias.load(epilogue, row, column + first + kColumns);",
        "next_bias.load(epilogue, row, column);",
    ),
    "the sums of another part": Fault("sums[i] = sums[i + kPart];", ";"),
    "the input of the row below": Fault(
        "first + below * 8 * across", "first + (1 - below) * 8 * across"
    ),
    "the previous tile's epilogue": Fault(
        "input_batch_strides)), row,", "input_batch_strides)), row % Shape::kRows,"
    ),
    "no activation": Fault("sum = activate<decltype(constant)::value, T>(sum);", "sum += 0;"),
}
# With the sums of A's rows.
SUMMED_FAULTS = {
    "none, with sums": NO_FAULT,
    "ones without a fence": Fault("fence_async_proxy();  // each thread's write, before", "//"),
    "ones without a barrier": Fault(
        "named_barrier_sync(barrier, kWarpgroupThreads);\n    return Ones", "return Ones"
    ),
    "ones of few threads": Fault("tile[warpgroup_thread()] =", "tile[warpgroup_thread() % 64] ="),
    "no tile is summed": Fault("column == 0 ? multiply(of_rows)", "column < 0 ? multiply(of_rows)"),
    "another column of tiles is summed": Fault(
        "column == 0 ? multiply(of_rows)", "column > 0 ? multiply(of_rows)"
    ),
    "all columns of tiles store": Fault("if (column == 0) of_rows.store", "of_rows.store"),
    "the sum of another row": Fault(
        "row + accumulator_row(thread, i);\n      if", "row + i;\n      if"
    ),
    "rows past the last": Fault("if (at < m) out[at]", "out[at]"),
    "K's tail of the sums": Fault(
        "of_rows.template add<kMajorA>", "if (step + 1 < steps) of_rows.template add<kMajorA>"
    ),
}
SUMMED_PARTS_FAULTS = {
    "none, with sums of parts": NO_FAULT,
    "the last part's sums alone": Fault(
        "decltype(to_all)::value ? all[i] = one : one = all[i];",
        "if (decltype(to_all)::value) { all[i] = one; } else if (i < kProduct) { one = all[i]; }",
    ),
}
ALL = FAULTS | SPLIT_FAULTS | MEETING_FAULTS | SHARING_FAULTS | TURNS_FAULTS | AROUND_FAULTS
ALL |= SUMMED_FAULTS | SUMMED_PARTS_FAULTS | HELPED_FAULTS


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).bfloat16()


@pytest.mark.parametrize("name", ALL)
def test_a_fault_is_found(name, tmp_path):
    fault = ALL[name]
    run = plant(fault, HEADERS, KERNELS, tmp_path)
    groups = {WHOLE: FAULTS, SPLIT: SPLIT_FAULTS, MEETING: MEETING_FAULTS}
    groups |= {SHARING: SHARING_FAULTS, TURNS: TURNS_FAULTS, AROUND: AROUND_FAULTS}
    groups |= {SUMMED: SUMMED_FAULTS, SUMMED_PARTS: SUMMED_PARTS_FAULTS, HELPED: HELPED_FAULTS}
    (m, n, k) = next(sizes for sizes, faults in groups.items() if name in faults)
    a, b = integers(m, k), integers(k, n)
    expected = a.double() @ b.double()
    if name in AROUND_FAULTS:
        expected = (expected + a[0, :n] - 2 * a[:, :n]).relu()
    has_sums = (m, n, k) in (SUMMED, SUMMED_PARTS)
    if has_sums:
        expected = torch.cat([expected.flatten(), a.double().sum(1)])
    expected = expected.bfloat16().flatten()
    first = a.mT if has_sums else a
    values = torch.cat([first.flatten(), b.flatten()]).view(torch.float32)
    found = []
    for seed in SEEDS:
        message, out = run(
            f"{m}x{n}x{k}", values=values, blocks=len(expected) // 2, seed=seed, seconds=60
        )
        product = out.view(torch.bfloat16)
        found.append(message or ("" if torch.equal(product, expected) else "another product"))
    assert any(found) != (fault == NO_FAULT), found
