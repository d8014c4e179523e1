"""Faults that a mutation audit put into the sources, which no test had found, are found now."""

from __future__ import annotations

import pytest
from backends import DEVICE
from test_mutations import Fault, assert_found, copy_of_sources

from diglot.backends.registry import has_interpreter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, not interpreted"),
]

NORMS = "csrc/include/diglot/norm/"
PART = NORMS + "backward_part.cuh"
UNITS = NORMS + "backward_units.cuh"
STREAMING = NORMS + "backward_streaming.cuh"
GROUPS = NORMS + "group_sums.cuh"
TEAM_SUM = NORMS + "team_sum.cuh"
TRITON_GROUPS = "triton_ops/lib/norm/group_sums.py"
TRITON_STREAMING = "triton_ops/lib/norm/backward_streaming.py"
TRITON_STARTS = "triton_ops/lib/elementwise.py"


def of_triton(file: str, right: str, wrong: str, tests: str) -> Fault:
    return Fault(file, right, wrong, "layer_norm", tests, "triton")


TRITON = {
    "later slices add nothing": of_triton(
        TRITON_GROUPS,
        "        if LATER:\n            total",
        "        if False:\n            total",
        "test_norm_slices",
    ),
    "later slices begin anew, in tiles": of_triton(
        TRITON_STREAMING, "    if not LATER:", "    if True:", "test_norm_slices"
    ),
    "groups that nobody wrote": of_triton(
        TRITON_GROUPS,
        "    part = tl.arange(0, ROWS)\n",
        "    part = tl.arange(0, ROWS)\n    groups = room\n",
        "test_uninitialized",
    ),
    "the start of a flat walk": of_triton(
        TRITON_STARTS,
        "tl.program_id(0).to(tl.int64) * BLOCK + head",
        "(tl.program_id(0) * BLOCK + head).to(tl.int32)",
        "test_flat_starts",
    ),
    "the start of a strided walk": of_triton(
        TRITON_STARTS,
        "index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)",
        "index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "test_flat_starts",
    ),
    "the table of another stream": of_triton(
        "python/diglot/backends/scratch.py",
        "stream_number(device.index) if",
        "0 if",
        "test_tables_of_streams",
    )._replace(chosen="stream"),
}
CUDA = {
    "later slices add nothing: a row that is held": Fault(
        PART,
        "if (rows_.accumulates) values = load_vector<Compute, kSummed>(address);",
        "",
        "layer_norm",
        "test_norm_slices",
    ),
    "later slices add nothing: a row read twice": Fault(
        STREAMING,
        "rows.accumulates ? stored(field)[i] : Compute(0)",
        "Compute(0)",
        "layer_norm",
        "test_norm_slices",
    ),
    "groups that nobody wrote": Fault(
        GROUPS,
        "if (group + load * parts < groups)",
        "if (group + load * parts <= groups)",
        "layer_norm",
        "test_uninitialized",
    ),
    "a word's first element is another lane's": Fault(
        UNITS,
        "lane == side - 1 ? before : bits, lane - 1",
        "bits, lane - 1",
        "layer_norm",
        "test_norm_backward_shapes",
    ),
    "elements behind a row count": Fault(
        UNITS,
        ": left < kAccessBytes ? left",
        ": left < kAccessBytes ? kAccessBytes",
        "layer_norm",
        "test_norm_backward_shapes",
    ),
    "blocks of a grid do not wait for each other": Fault(
        TEAM_SUM,
        "GridBarrier(barrier_).sync();",
        "__syncthreads();",
        "layer_norm",
        "test_norm_backward_shapes",
    ),
    "blocks of a grid overwrite what others read": Fault(
        TEAM_SUM,
        "number_ % 2 * teams + team",
        "team",
        "layer_norm",
        "test_norm_backward_shapes",
    ),
    "none": Fault(PART, "\n", "\n", "layer_norm", "test_norm_slices"),
}


@pytest.mark.parametrize("fault", TRITON)
def test_a_fault_of_triton_is_found(tmp_path, fault):
    assert_found(tmp_path, copy_of_sources(tmp_path), TRITON[fault], "triton", is_none=False)


@pytest.fixture(scope="module")
def few_dimensions(tmp_path_factory):
    """A folder with a copy of the sources, whose kernels take two dimensions at a time in CUDA C++.
    Then a few rows make several slices, so that rows may be long.
    """
    folder = tmp_path_factory.mktemp("slices")
    places = copy_of_sources(folder)
    for path, right, wrong in (
        (places["csrc"] / "include/diglot/strides.cuh", "kMaxRank = 8;", "kMaxRank = 2;"),
        (places["tests"] / "test_norm_slices.py", '"cuda": (2,) * 9', '"cuda": (2,) * 3'),
        (places["tests"] / "test_norm_slices.py", '"cuda": (8, 61)', '"cuda": (61, 8192, 66_001)'),
    ):
        text = path.read_text()
        assert right in text
        path.write_text(text.replace(right, wrong))
    return folder, places


@pytest.mark.skipif(not has_interpreter(), reason="it builds the interpreter of CUDA kernels")
@pytest.mark.parametrize("fault", CUDA)
def test_a_fault_of_cuda_is_found(few_dimensions, fault):
    chosen = CUDA[fault]._replace(chosen="cuda and layer_norm and not add")
    assert_found(*few_dimensions, chosen, "cuda", is_none=fault == "none")
