"""Faults in the protocols between ranks, put into a copy of the sources, are found."""

from __future__ import annotations

import shutil

import pytest
from backends import DEVICE
from test_mutations import Fault, assert_found, copy_of_sources

from diglot.backends.registry import has_interpreter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cuda", reason="kernels are interpreted here"),
]

SIGNAL, REDUCE = "csrc/include/diglot/sync/signal.cuh", "csrc/ops/distributed/all_reduce.cu"
TRITON_SIGNAL = "triton_ops/lib/sync/signal.py"
TRITON_REDUCE = "triton_ops/distributed/all_reduce.py"
TESTS = "(in_a_row or order_of_ranks)"


def cuda(file: str, right: str, wrong: str) -> Fault:
    return Fault(file, right, wrong, "all_reduce", "test_all_reduce", f"cuda and {TESTS}")


def triton(file: str, right: str, wrong: str) -> Fault:
    return Fault(file, right, wrong, "all_reduce", "test_all_reduce", f"triton and {TESTS}")


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
    "the closing meeting is missing": cuda(REDUCE, "if (!kIsStaged) signals.meet(kClosing);", ""),
    "the order of ranks, of a push": cuda(
        REDUCE, "memcpy(&values, &data[sender]", "memcpy(&values, &data[ranks - 1 - sender]"
    ),
    "the order of ranks, of a pull": cuda(
        REDUCE,
        "memcpy(&values, &bits[l][r], sizeof(values));",
        "memcpy(&values, &bits[l][(r + rank) % ranks], sizeof(values));",
    ),
    "a buffer is used again one call too early": cuda(
        SIGNAL, "return static_cast<int>(epoch_ & 1);", "return 0;"
    ),
    "none": cuda(SIGNAL, "\n", "\n"),
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
        TRITON_REDUCE,
        "    buffer = staging * 0\n",
        "    buffer = staging * 0\n"
        "    signal.meet(space, peers, signal.OPENING, rank, OP, call, epoch, patience)\n",
    ),
    "the closing meeting is missing": triton(
        TRITON_REDUCE, "    if not IS_STAGED:\n        signal", "    if False:\n        signal"
    ),
    "the order of ranks, of a push": triton(
        TRITON_REDUCE,
        "for sender in tl.static_range(RANKS):",
        "for sender in tl.static_range(RANKS - 1, -1, -1):",
    ),
    "the order of ranks, of a pull": triton(
        TRITON_REDUCE,
        "load_tile(sources[rank] + offset,",
        "load_tile(sources[RANKS - rank] + offset,",
    ),
    "a slot is used again one call too early": triton(
        TRITON_REDUCE, "parity = (epoch & 1) *", "parity = (epoch & 0) *"
    ),
    "a buffer is used again one call too early": triton(
        TRITON_REDUCE, "staging + (epoch & 1) *", "staging + (epoch & 0) *"
    ),
    "none": triton(TRITON_SIGNAL, "\n", "\n"),
}
# Each fault compiles its kernels again: for one type, one operation and up to four ranks.
FEWER = [
    ("dispatch_floating(input.dtype, [&](auto type) {", "call_for<float>([&](auto type) {"),
    ("  if (ranks <= 2) return function(std::integral_constant<int, 2>{});\n", ""),
    (
        "  if (ranks <= kMostRanks) return function(std::integral_constant<int, kMostRanks>{});\n",
        "",
    ),
    ('  if (op == "max") return function(Maximum{}, 2);\n', ""),
    ('  if (op == "min") return function(Minimum{}, 3);\n', ""),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A folder with a copy of the sources, in which only what changes is compiled again."""
    folder = tmp_path_factory.mktemp("peers")
    places = copy_of_sources(folder)
    shutil.rmtree(places["csrc"] / "ops/sm_90a")
    path = places["csrc"] / "ops/distributed/all_reduce.cu"
    text = path.read_text()
    for right, wrong in FEWER:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    path.write_text(text)
    return folder, places


@pytest.mark.parametrize("fault", TRITON)
def test_a_fault_of_triton_is_found(tmp_path, fault):
    assert_found(
        tmp_path, copy_of_sources(tmp_path), TRITON[fault], "triton", is_none=fault == "none"
    )


@pytest.mark.skipif(not has_interpreter(), reason="it builds the interpreter of CUDA kernels")
@pytest.mark.parametrize("fault", CUDA)
def test_a_fault_of_cuda_is_found(copy, fault, monkeypatch):
    monkeypatch.setenv("DIGLOT_INTERPRET_RACES", "2")  # in the workspaces too
    assert_found(*copy, CUDA[fault], "cuda", is_none=fault == "none")
