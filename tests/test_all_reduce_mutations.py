"""Faults in the protocols between ranks, put into a copy of the sources, are found.

The slow tests run the ranks' own tests on the copy. Those of Triton's all_reduce have a quick test,
too, which plants the fault in the ranks' processes.
"""

from __future__ import annotations

import functools
import importlib
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from backends import DEVICE
from peers import SECOND, Ranks, at_once, read_late
from test_all_reduce import EVERY_PROTOCOL, FP32, IN_WORKSPACE, ORDERED
from test_mutations import ROOT, Fault, assert_found, copy_of_sources

from diglot.backends.registry import has_interpreter

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="kernels are interpreted here")

SIGNAL, EXCHANGE = (f"csrc/include/diglot/sync/{name}.cuh" for name in ("signal", "exchange"))
GATHER, SCATTER, NORM = "all_gather", "reduce_scatter", "all_reduce_add_rms_norm"
TRITON_SIGNAL, TRITON_EXCHANGE = (f"triton_ops/lib/sync/{n}.py" for n in ("signal", "exchange"))
TESTS = "(in_a_row or order_of_ranks)"


def cuda(file: str, right: str, wrong: str, op: str = "all_reduce") -> Fault:
    return Fault(file, right, wrong, op, f"test_{op}", f"cuda and {TESTS}")


def triton(file: str, right: str, wrong: str, op: str = "all_reduce") -> Fault:
    return Fault(file, right, wrong, op, f"test_{op}", f"triton and {TESTS}")


def cuda_of(op: str, right: str, wrong: str) -> Fault:
    """A fault in the op's own file."""
    return cuda(f"csrc/ops/distributed/{op}.cu", right, wrong, op)


def triton_of(op: str, right: str, wrong: str) -> Fault:
    """A fault in the op's own file."""
    return triton(f"triton_ops/distributed/{op}.py", right, wrong, op)


CUDA = {
    "the epoch is not advanced": cuda(
        SIGNAL, "atomicAdd(&space_->epochs, step)", "atomicAdd(&space_->epochs, 0 * step)"
    ),
    "a packet's flag comes before its data": cuda(
        SIGNAL,
        "  for (int i = 0; i < 2; ++i) {\n    interpreter::atomic_store(&address->packets[i], "
        "value.packets[i],\n",
        "  for (int i = 0; i < 4; ++i) {\n    if (i == 2) interpreter::poll(place);\n"
        "    interpreter::atomic_store(&address->packets[i % 2],\n"
        "                              i < 2 ? value.packets[i] >> 32 << 32 : value.packets[i % 2],"
        "\n",
    ),
    "a signal comes before the block's data": cuda(
        SIGNAL, "meet(SignalPhase phase) {\n    __syncthreads();", "meet(SignalPhase phase) {"
    ),
    "a signal releases nothing": cuda(SIGNAL, "Ordering::kRelease,", "Ordering::kRelaxed,"),
    "a wait acquires nothing": cuda(SIGNAL, "Ordering::kAcquire,", "Ordering::kRelaxed,"),
    "the closing meeting is missing": cuda(EXCHANGE, "if (!kIsStaged) signals.meet(kClosing);", ""),
    "the order of ranks, of a push": cuda(
        EXCHANGE,
        "unpack_ranks(data, values);",
        "unpack_ranks(data, values);\n"
        "    for (int r = 0; r < ranks; ++r) memcpy(&values[r], &data[ranks - 1 - r], 8);",
    ),
    "the order of ranks, of a pull": cuda(
        EXCHANGE,
        "unpack_ranks(bits[l], values);",
        "for (int r = 0; r < kRanks; ++r)\n"
        "        memcpy(&values[r], &bits[l][kRanks > 2 && r < 3 ? 2 - r : r], 16);",
    ),
    "a buffer is used again one call too early": cuda(
        SIGNAL, "return static_cast<int>(epoch_ & 1);", "return 0;"
    ),
    "the order of gathered ranks": cuda(
        EXCHANGE, "begin = sender * pitch", "begin = (ranks - 1 - sender) * pitch", GATHER
    ),
    "the second meeting of two shots is missing": cuda(
        EXCHANGE, "are_reduced = signals.meet(kClosing);", "are_reduced = have_met;"
    ),
    "a part of two shots that lies in the place of another": cuda(
        EXCHANGE,
        "(owners[r] + staging) + place;",
        "(owners[r] + staging) + (r < ranks ? ranks - 1 - r : rank) * pitch;",
    ),
    "a part of two shots that is sent to the place of another": cuda(
        EXCHANGE, "theirs + rank * pitch", "theirs + (ranks - 1 - rank) * pitch"
    ),
    "a launch after a fault sends parts": cuda(
        EXCHANGE, "kIsStaged && !signals.has_failed_before()", "kIsStaged"
    )._replace(chosen="cuda and does_not_come and shots"),
    "the second meeting of direct shots is missing": cuda(
        EXCHANGE, "if (signals.meet(kClosing)) return;", "return;"
    ),
    "a direct shot in the place of another part": cuda(
        EXCHANGE, "(owners[r] + target) + rank *", "(owners[r] + target) + (ranks - 1 - rank) *"
    ),
    "a direct shot to a rank that is not there": cuda(
        EXCHANGE, "    if (have_met) {", "    {"
    )._replace(chosen="cuda and does_not_come and direct"),
    "a launch after a fault comes to a meeting": cuda(
        SIGNAL, "peer_ != nullptr && !has_failed_before()", "peer_ != nullptr"
    )._replace(chosen="cuda and after_a_fault"),
    "a launch after a fault meets its peers": cuda(
        SIGNAL, "have_met = !has_failed_before();", "have_met = true;"
    )._replace(chosen="cuda and after_a_fault"),
    "a direct shot that failed keeps old data": cuda(
        EXCHANGE,
        "fill_share<kRanks>(out + part * pitch, count_of(part), convert<T>(quiet_nan()));",
        "",
    )._replace(chosen="cuda and does_not_come and direct"),
    "a part that is pushed to another rank": cuda(
        EXCHANGE, "&pushed[kHasParts ? peer : 0]", "&pushed[kHasParts ? rank : 0]", SCATTER
    ),
    "a part that is staged for another rank": cuda(
        EXCHANGE, "staging + part * distance", "staging + (ranks - 1 - part) * distance", SCATTER
    ),
    "the closing meeting of the norm is missing": cuda_of(
        NORM, "if (!kIsStaged) signals.wait(kClosing);", ""
    ),
    "the norm's rows are read before the peers are there": cuda_of(
        NORM, "const bool have_met = signals.meet(kOpening);", "const bool have_met = true;"
    ),
    "the norm's buffer is used again one call too early": cuda_of(
        NORM, "= signals.parity() * room;", "= 0 * room;"
    ),
    "none": cuda(SIGNAL, "\n", "\n"),
    "none, gathered": cuda(SIGNAL, "\n", "\n", GATHER),
    "none, scattered": cuda(SIGNAL, "\n", "\n", SCATTER),
    "none, of the norm": cuda(SIGNAL, "\n", "\n", NORM),
}
TRITON = {
    "the epoch is not advanced": triton(
        TRITON_SIGNAL,
        "tl.atomic_add(space + EPOCHS, step,",
        "tl.atomic_add(space + EPOCHS, 0 * step,",
    ),
    "a packet's flag comes before its data": triton(
        TRITON_SIGNAL,
        "            packet = upper |",
        "            early = _pointers(addresses + 8 * word), upper + 0 * data.to(tl.int64)\n"
        '            tl.atomic_xchg(*early, mask=mask, sem="relaxed", scope="sys")\n'
        "            time.sleep(0.001)\n"
        "            packet = upper |",
    ),
    "a signal comes before the program's data": triton(
        TRITON_EXCHANGE,
        "    part = rank * 0\n",
        "    part = rank * 0\n"
        "    signal.meet(space, peers, signal.OPENING, rank, NUMBER, call, epoch, patience)\n",
    ),
    "the closing meeting is missing": triton(
        TRITON_EXCHANGE, "    if not IS_STAGED:\n        signal", "    if False:\n        signal"
    ),
    "the order of ranks, of a push": triton(
        TRITON_EXCHANGE,
        "for sender in tl.static_range(RANKS):",
        "for sender in tl.static_range(RANKS - 1, -1, -1):",
    ),
    "the order of ranks, of a pull": triton(
        TRITON_EXCHANGE,
        "address = tl.where(rank == r, own, sources[r] + offset",
        "address = tl.where(rank == RANKS - r, own, sources[RANKS - r] + offset",
    ),
    "a slot is used again one call too early": triton(
        TRITON_EXCHANGE, "parity = (epoch & 1) *", "parity = (epoch & 0) *"
    ),
    "a buffer is used again one call too early": triton(
        TRITON_EXCHANGE,
        "\n        buffer = staging + (epoch & 1)",
        "\n        buffer = staging + 0",
    ),
    "a buffer of two shots is used again one call too early": triton(
        TRITON_EXCHANGE, "\n    buffer = staging + (epoch & 1)", "\n    buffer = staging + 0"
    ),
    "the second meeting of two shots is missing": triton(
        TRITON_EXCHANGE,
        "\n        has_met = signal.meet(space, peers, signal.CLOSING",
        "\n        (space, peers, 0",
    ),
    "the second meeting of direct shots is missing": triton(
        TRITON_EXCHANGE,
        "\n            has_met = signal.meet(space, peers, signal.CLOSING",
        "\n            (space, peers, 0",
    ),
    "a direct shot in the place of another part": triton(
        TRITON_EXCHANGE,
        "- here + rank * distance",
        "- here + (RANKS - 1 - rank) * distance",
    ),
    "a direct shot to a rank that is not there": triton(
        TRITON_EXCHANGE,
        "        if has_met:\n            target",
        "        if True:\n            target",
    )._replace(chosen="triton and does_not_come and direct"),
    "a direct shot that failed keeps old data": triton(
        TRITON_EXCHANGE,
        "fill_share(out + p * pitch, elements_of(p, pitch, n), BLOCK, THREADS)",
        "pass",
    )._replace(chosen="triton and does_not_come and direct"),
    "a part of two shots that is sent to the place of another": triton(
        TRITON_EXCHANGE,
        "space, input, rank, buffer + rank * distance",
        "space, input, rank, buffer + (RANKS - 1 - rank) * distance",
    ),
    "a launch after a fault sends parts": triton(
        TRITON_EXCHANGE, "if patience != signal.NONE:", "if True:"
    )._replace(chosen="triton and does_not_come and shots"),
    "a launch after a fault comes to a meeting": triton(
        TRITON_SIGNAL, "(peers != 0) & (patience != NONE)", "peers != 0"
    )._replace(chosen="triton and after_a_fault"),
    "a launch after a fault meets its peers": triton(
        TRITON_SIGNAL, "return (worst == 1) & (patience != NONE)", "return worst == 1"
    )._replace(chosen="triton and after_a_fault"),
    "a part of two shots that lies in the place of another": triton(
        TRITON_EXCHANGE,
        "places, buffer, distance,",
        "places, buffer + (RANKS - 1) * distance, -distance,",
    ),
    "the order of gathered ranks": triton(
        TRITON_EXCHANGE,
        "store_bits(out + sender * pitch,",
        "store_bits(out + rank * pitch,",
        GATHER,
    ),
    "a part that is pushed to another rank": triton(
        TRITON_EXCHANGE,
        "load_pair(input + peer * pitch,",
        "load_pair(input + rank * pitch,",
        SCATTER,
    ),
    "a part that is staged for another rank": triton(
        TRITON_EXCHANGE,
        "copy_share(input + p * pitch, target, n, BLOCK",
        "copy_share(input + rank * pitch, target, n, BLOCK",
        SCATTER,
    ),
    "the closing meeting of the norm is missing": triton_of(
        NORM, "    if not IS_STAGED:\n        signal", "    if False:\n        signal"
    ),
    "the norm's buffer is used again one call too early": triton_of(
        NORM, "staging + (epoch & 1) *", "staging + (epoch & 0) *"
    ),
    "none": triton(TRITON_SIGNAL, "\n", "\n"),
    "none, gathered": triton(TRITON_SIGNAL, "\n", "\n", GATHER),
    "none, scattered": triton(TRITON_SIGNAL, "\n", "\n", SCATTER),
    "none, of the norm": triton(TRITON_SIGNAL, "\n", "\n", NORM),
}
# Each fault compiles its kernels again: for one type, one operation and up to four ranks.
LAUNCHES = "include/diglot/launch/exchange.h"
FEWER = [
    (
        LAUNCHES,
        "  dispatch_floating(dtype, [&](auto type) {",
        "  call_for<float>([&](auto type) {",
    ),
    (
        LAUNCHES,
        "  if (ranks <= 2) return function(std::integral_constant<int, 2>{});\n",
        "",
    ),
    (
        LAUNCHES,
        "  if (ranks <= kMostRanks) return function(std::integral_constant<int, kMostRanks>{});\n",
        "",
    ),
    (LAUNCHES, '  if (op == "max") return function(Maximum{}, 2);\n', ""),
    (LAUNCHES, '  if (op == "min") return function(Minimum{}, 3);\n', ""),
    (f"ops/distributed/{GATHER}.cu", "    case 1: return function(Type<uint8_t>{});\n", ""),
    (f"ops/distributed/{GATHER}.cu", "    case 2: return function(Type<int16_t>{});\n", ""),
    (
        f"ops/distributed/{NORM}.cu",
        "dispatch_ranks(ranks <= 2 ? ranks : kMostRanks,",
        "dispatch_ranks(ranks,",
    ),
    (f"ops/distributed/{NORM}.cu", "if constexpr (kRanks != 4) {", "{"),
    (
        f"ops/distributed/{NORM}.cu",
        "  if (accesses <= kMostRowAccesses * kRowThreads) {\n"
        "    return function(std::integral_constant<int, kMostRowAccesses>{});\n  }\n",
        "",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """For an op, a folder with a copy of the sources. There only what changes is compiled again."""

    @functools.cache
    def copy(op: str):
        folder = tmp_path_factory.mktemp(op)
        places = copy_of_sources(folder)
        shutil.rmtree(places["csrc"] / "ops/sm_90a")
        for name, right, wrong in FEWER:
            path = places["csrc"] / name
            text = path.read_text()
            assert text.count(right) == 1
            path.write_text(text.replace(right, wrong))
        return folder, places

    return copy


def plant(fault: Fault, folder: Path) -> None:
    """Puts a fault into Triton's all_reduce, in this process."""
    for name in ("lib/sync/signal", "lib/sync/exchange", "distributed/all_reduce"):
        file, path = f"triton_ops/{name}.py", folder / f"{Path(name).name}.py"
        text = (ROOT / file).read_text()
        if file == fault.file:
            assert text.count(fault.right) == 1 or fault.right == fault.wrong
            text = text.replace(fault.right, fault.wrong)
        path.write_text(text)  # the interpreter reads it
        module = importlib.import_module("diglot.triton_ops." + name.replace("/", "."))
        changed = ModuleType(module.__name__)
        changed.__file__ = str(path)
        exec(compile(text, path, "exec"), vars(changed))
        vars(module).update(vars(changed))


def count_wrong(ranks: Ranks, backend: str, rank: int) -> int:
    """Wrong elements of calls in a row, whose inputs change afterwards. Rank 1 reads late."""
    if rank == 1:
        read_late()
    wrong, room, count = 0, ranks.layout.room, ranks.layout.ranks
    place = ranks.spaces[rank].view(torch.int32)[room // 4 :].view(FP32)

    def reduce(x: torch.Tensor, protocol: str) -> torch.Tensor:
        return ranks.reduce(
            backend, rank, x, protocol=protocol, source=room, patience=2 * SECOND
        )  # fmt: skip

    for protocol in EVERY_PROTOCOL:
        # An aligned part of its own, a rank does not stage.
        x = place[:9] if protocol in IN_WORKSPACE else torch.empty(10)[1:]
        x.copy_(ORDERED[rank].repeat(3))
        wrong += int((reduce(x, protocol) != torch.tensor([0.0, 0.0, 1.0]).repeat(3)).sum())
        for call in range(3):
            x.fill_(call + rank)
            wrong += int((reduce(x, protocol) != count * call + 3).sum())
            x.fill_(-1e6)
    return wrong


QUICK = [
    name
    for name, fault in TRITON.items()
    if fault.op == "all_reduce" and fault.chosen == f"triton and {TESTS}"
]


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_of_triton_is_found_at_once(tmp_path, name):
    def work(ranks: Ranks, backend: str, rank: int) -> int:
        folder = tmp_path / str(rank)
        folder.mkdir()
        plant(TRITON[name], folder)
        try:
            return count_wrong(ranks, backend, rank)
        except Exception:
            return -1

    wrong = at_once("triton", Ranks(3, symmetric=1024), work)
    assert (wrong == [0] * 3) == (name == "none"), wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", TRITON)
def test_a_fault_of_triton_is_found(tmp_path, name):
    fault, places = TRITON[name], copy_of_sources(tmp_path)
    assert_found(tmp_path, places, fault, "triton", is_none=name.startswith("none"))


@pytest.mark.slow
@pytest.mark.skipif(not has_interpreter(), reason="it builds the interpreter of CUDA kernels")
@pytest.mark.parametrize("name", CUDA)
def test_a_fault_of_cuda_is_found(copies, name, monkeypatch):
    monkeypatch.setenv("DIGLOT_INTERPRET_RACES", "2")  # in the workspaces too
    fault = CUDA[name]
    assert_found(*copies(fault.op), fault, "cuda", is_none=name.startswith("none"))
