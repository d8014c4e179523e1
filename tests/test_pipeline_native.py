"""The native engine of the pipeline, called as diglot.stream_map calls it: what comes out is bit by
bit what one launch gives.

Where there is no GPU, its streams are simulated: work is done in a random order, as far as streams
and events allow one.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import DEVICE, FLOATING, HAS_CUDA, draw, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diglot.backends.registry import cuda_module
from diglot.pipeline.planner import plan

pytestmark = [] if HAS_CUDA else [pytest.mark.gpu]

SEED = "DIGLOT_PIPELINE_SEED"
STAGES = ("read", "h2d", "compute", "d2h", "write")
ROW_SHAPES = [(), (1,), (3,), (2, 5), (0,)]


def pin(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


@dataclass(eq=False)
class Array:
    """Rows on the host, or in a file, and how they are copied.

    Attributes:
        rows: the tensor; of a file, its right content.
        is_output: whether it is written.
        is_staged: whether it goes through pinned buffers.
        path: the file.
        offset: of the rows in the file.
        shift: an error of that offset.
    """

    rows: Tensor
    is_output: bool = False
    is_staged: bool = False
    path: Path | None = None
    offset: int = 0
    shift: int = 0

    @property
    def row_bytes(self) -> int:
        return math.prod(self.rows.shape[1:]) * self.rows.element_size()


@dataclass
class Run:
    """A call of run_pipeline. Of its arguments, arrays are cut into chunks; others are the same for
    all."""

    launcher: str | None
    arguments: tuple[Any, ...]
    chunk_rows: int
    num_slots: int = 3
    copy_threads: int = 2
    control: Tensor = field(default_factory=lambda: torch.tensor([0, 0, -1, 0]))
    bad_slot: int | None = None  # whose device buffers no kernel can use

    def buffers(self, array: Array, count: int) -> list[Tensor]:
        """This number of buffers, each for a chunk."""
        shape = (self.chunk_rows, *array.rows.shape[1:])
        return [torch.full(shape, 7, dtype=array.rows.dtype) for _ in range(count)]

    def __call__(self) -> tuple[str, list[tuple[float, ...]]]:
        arrays = [a for a in self.arguments if isinstance(a, Array)]
        on_device, files, kept, specs = {}, [], [], []
        for array in arrays:
            buffers = [buffer.to(DEVICE) for buffer in self.buffers(array, self.num_slots)]
            depth = self.num_slots + self.copy_threads if array.is_staged else 0
            staging = [pin(buffer) for buffer in self.buffers(array, depth)]
            kept += buffers + staging
            on_device[array] = buffers[0]
            place = (array.rows.data_ptr(), -1, 0)
            if array.path is not None:
                files.append(os.open(array.path, os.O_RDWR if array.is_output else os.O_RDONLY))
                place = (array.rows.data_ptr(), files[-1], array.offset + array.shift)
                if array.is_output:
                    kept.append(mapped(array.path))
                    place = (kept[-1].data_ptr() + array.offset, *place[1:])
            addresses = [[b.data_ptr() for b in of] for of in (buffers, staging)]
            if self.bad_slot is not None:
                kept.append(torch.empty(buffers[0].numel() + 1, dtype=array.rows.dtype))
                addresses[0][self.bad_slot] = kept[-1].data_ptr() + 1
            is_new = array.is_output and array.path is None
            addresses = [tuple(of) for of in addresses]
            specs.append((array.is_output, array.row_bytes, *addresses, *place, 1 << 60, is_new))
        try:
            return module().run_pipeline(
                self.launcher,
                (  # and no scratch
                    *(on_device.get(a, a) if isinstance(a, Array) else a for a in self.arguments),
                    None,
                ),
                tuple(
                    arrays.index(a) if isinstance(a, Array) else -1
                    for a in self.arguments
                    if isinstance(a, Array | Tensor)
                ),
                tuple(specs),
                arrays[0].rows.shape[0],
                self.chunk_rows,
                self.num_slots,
                0 if DEVICE == "cuda" else -1,
                self.copy_threads,
                self.control.data_ptr(),
                threading.current_thread() is threading.main_thread(),
            )
        finally:
            for file in files:
                os.close(file)

    def expected(self) -> Tensor:
        """The output of one launch."""
        arguments = [
            a.rows.to(DEVICE, copy=True) if isinstance(a, Array) else a for a in self.arguments
        ]
        getattr(module(), self.launcher)(*arguments, None)
        return arguments[-1].cpu()


def module() -> Any:
    found, reason = cuda_module()
    assert found is not None, reason
    return found


def assert_bits(result: Tensor, expected: Tensor) -> None:
    """Asserts that two tensors are the same, bit by bit."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (result, expected)]
    different = (bits[0] != bits[1]).nonzero()
    assert len(different) == 0, f"{len(different)} bytes, the first at {int(different[0])}"


def gelu(
    rows: int,
    row_shape: tuple[int, ...] = (5,),
    dtype: torch.dtype = torch.float32,
    staged: tuple[bool, bool] = (False, False),
    **options: Any,
) -> tuple[Run, Tensor]:
    """A run of gelu, and where its output goes."""
    input = draw((rows, *row_shape), dtype).cpu()
    # A chunk that is copied in place lies beside other memory, at any address.
    out = pin(torch.full((rows * input[:1].numel() + 1,), 5, dtype=dtype))[1:].view_as(input)
    arrays = Array(pin(input), False, staged[0]), Array(out, True, staged[1])
    return Run("gelu_forward", (arrays[0], "none", arrays[1]), **options), out


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("staged", [(False, False), (True, True)], ids=["in place", "staged"])
def test_gelu_of_every_dtype(dtype, staged):
    run, out = gelu(23, (4, 3), dtype, staged, chunk_rows=5)
    variant, timeline = run()
    assert variant.startswith("flat")
    assert len(timeline) == 5
    assert_bits(out, run.expected())
    assert run.control.tolist() == [0, 23, 4, 0]


@pytest.mark.parametrize("seed", range(30))
def test_gelu_in_any_order(monkeypatch, seed):
    monkeypatch.setenv(SEED, str(seed))
    for num_slots in (1, 2, 3):
        for staged in ((False, False), (True, False), (False, True), (True, True)):
            run, out = gelu(26, (3,), staged=staged, chunk_rows=4, num_slots=num_slots)
            run()
            assert_bits(out, run.expected())


@settings(max_examples=examples(300))
@given(st.data())
def test_gelu_of_any_chunks(data):
    rows = data.draw(st.integers(0, 40), "rows")
    chunk_rows = data.draw(st.integers(1, 45), "chunk_rows")
    run, out = gelu(
        rows,
        data.draw(st.sampled_from(ROW_SHAPES), "row shape"),
        data.draw(st.sampled_from(FLOATING), "dtype"),
        data.draw(st.tuples(st.booleans(), st.booleans()), "staged"),
        chunk_rows=chunk_rows,
        num_slots=data.draw(st.integers(1, 5), "num_slots"),
        copy_threads=data.draw(st.integers(1, 3), "copy_threads"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SEED, str(data.draw(st.integers(0, 2**32), "seed")))
        _, timeline = run()
    assert len(timeline) == -(-rows // chunk_rows)
    assert run.control[1] == rows
    assert_bits(out, run.expected())


@pytest.mark.parametrize("chunk_rows", [2, 1000])
def test_of_large_rows(chunk_rows):
    """Chunks of less than a thread's part, and of some and a rest."""
    x = torch.randn(23, 4099)
    input, out = Array(x, False, True), Array(torch.zeros_like(x), True, True)
    Run("add_forward", (input, None, 1, out), chunk_rows, copy_threads=3)()
    assert_bits(out.rows, x + 1)


# The second operand, the same for all chunks; None: an array that is cut into chunks like the
# other.
ADDED = {
    "rows": None,
    "a vector": torch.randn(6),
    "a number": torch.randn(()),
    "a column": torch.randn(4, 1),
    "float16": torch.randn(1, 4, 6).half(),
    "strided": torch.randn(6, 4).T,
}


@pytest.mark.parametrize("other", ADDED)
@pytest.mark.parametrize("chunk_rows", [1, 3, 11, 20])
def test_add(other, chunk_rows):
    constant = ADDED[other]
    input = Array(pin(torch.randn(11, 4, 6)))
    added = Array(pin(torch.randn(11, 4, 6)), is_staged=True) if constant is None else constant
    if isinstance(added, Tensor):
        added = added.to(DEVICE)
    out = Array(pin(torch.full((11, 4, 6), 5.0)), True)
    run = Run("add_forward", (input, added, 0.5, out), chunk_rows)
    variant, _ = run()
    assert_bits(out.rows, run.expected())
    assert variant.startswith("flat" if constant is None else "strided")


def test_without_an_optional_tensor():
    input, out = Array(pin(torch.randn(7, 3))), Array(pin(torch.zeros(7, 3)), True)
    run = Run("add_forward", (input, None, 2, out), 2)
    run()
    assert_bits(out.rows, input.rows + 2)


def test_an_input_twice():
    """One array may stand for two tensors."""
    input, out = Array(pin(torch.randn(7, 3))), Array(pin(torch.zeros(7, 3)), True)
    run = Run("add_forward", (input, input, 1, out), 2)
    run()
    assert_bits(out.rows, input.rows + input.rows)


def mapped(path: Path) -> Tensor:
    """All of a file, as a shared map."""
    return torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)


def file_of(path: Path, rows: Tensor, offset: int) -> Path:
    path.write_bytes(b"\1" * offset + rows.contiguous().numpy().tobytes() + b"\2" * 3)
    return path


@pytest.mark.parametrize("chunk_rows", [2, 7, 1000])
def test_files(tmp_path, chunk_rows):
    # Rows of a size that is no multiple of a thread's part, beginning anywhere in a file.
    x = torch.randn(23, 4099)
    input = Array(x, False, True, file_of(tmp_path / "in", x, 129), 129)
    out = Array(torch.zeros_like(x), True, True, file_of(tmp_path / "out", x * 0, 77), 77)
    run = Run("add_forward", (input, None, 1, out), chunk_rows, copy_threads=3)
    _, timeline = run()
    cut = plan(23, [8], [8], 8 * chunk_rows)
    contents = (tmp_path / "out").read_bytes()
    assert contents == b"\1" * 77 + (x + 1).numpy().tobytes() + b"\2" * 3
    whole = [chunk for chunk, times in enumerate(timeline) if not any(map(math.isnan, times))]
    assert whole == [chunk for chunk in range(len(timeline)) if cut.is_timed(chunk)]


def test_times_are_in_order():
    run, _ = gelu(26, staged=(True, True), chunk_rows=4)
    began = time.perf_counter()
    _, timeline = run()
    took = time.perf_counter() - began
    slack = 1e-3 if DEVICE == "cuda" else 0  # between the clocks of host and device
    for times in timeline:
        assert -slack <= times[0] and times[-1] <= took + slack
        assert all(b >= a - slack for a, b in itertools.pairwise(times)), times
    for before, after in zip(timeline, timeline[run.num_slots :], strict=False):  # of one slot
        assert after[2] >= before[7] - slack
    for before, after in zip(timeline, timeline[run.num_slots + 2 :], strict=False):
        assert after[0] >= before[3] - slack  # of one pinned buffer
        assert after[6] >= before[9] - slack


def test_times_of_stages_that_are_not_there():
    run, _ = gelu(26, chunk_rows=4)
    _, timeline = run()
    for times in timeline:
        there = [stage for stage, at in zip(STAGES, times[::2], strict=True) if not math.isnan(at)]
        assert there == ["h2d", "compute", "d2h"]


def test_of_nothing():
    run, _ = gelu(0, chunk_rows=4)
    assert run() == ("", [])


def test_stop_before_it_begins():
    run, out = gelu(26, chunk_rows=4)
    run.control[0] = 1
    assert run() == ("", [])
    assert run.control[1] == 0
    assert (out == 5).all()


@pytest.mark.parametrize("staged", [(False, False), (True, True)], ids=["in place", "staged"])
def test_stop_on_the_way(staged):
    run, out = gelu(100_000, (2,), staged=staged, chunk_rows=2, num_slots=4)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        while run.control[1] < 20:
            time.sleep(0.001)
        run.control[0] = 1
        _, timeline = running.result(10)
    valid = int(run.control[1])
    assert 20 <= valid < 100_000
    assert len(timeline) == valid // 2
    assert_bits(out[:valid], run.expected()[:valid])


def test_two_runs_at_once():
    runs = [gelu(200, staged=(True, True), chunk_rows=4) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for running in [pool.submit(run) for run, _ in runs]:
            running.result(60)
    for run, out in runs:
        assert_bits(out, run.expected())


def assert_fails_at(run: Run, chunk: int, what: str) -> None:
    """Asserts that a run says what failed at a chunk, and that all before it is there."""
    rows = run.chunk_rows
    with pytest.raises(RuntimeError, match=what) as failed:
        run()
    begin = chunk * rows
    assert f"chunk {chunk} (rows {begin} to {min(begin + rows, 26)})" in str(failed.value)
    assert run.control[2] == chunk
    assert run.control[1] <= begin


@pytest.mark.parametrize("chunk", [0, 3, 6])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_an_input_file_that_is_cut_short(tmp_path, chunk, num_slots):
    x = torch.randn(26, 5)
    path = file_of(tmp_path / "in", x[: 4 * chunk + 1], 0)
    out = Array(pin(torch.zeros_like(x)), True)
    run = Run("add_forward", (Array(x, False, True, path), None, 1, out), 4, num_slots)
    assert_fails_at(run, chunk, "reading a file at byte .*: the file ended")
    valid = int(run.control[1])
    # Chunks that had been fed were done.
    assert valid == 4 * chunk
    assert_bits(out.rows[:valid], x[:valid] + 1)
    assert (out.rows[valid:] == 0).all()


def test_a_file_that_cannot_be_written(tmp_path):
    x = pin(torch.randn(26, 5))
    path = file_of(tmp_path / "out", x, 0)
    out = Array(torch.zeros_like(x), True, True, path)
    run = Run("add_forward", (Array(x), None, 1, out), 4)
    with pytest.MonkeyPatch.context() as patch:
        opened = os.open
        patch.setattr(os, "open", lambda path, _: opened(path, os.O_RDONLY))
        assert_fails_at(run, 0, f"writing a file at byte 0: {os.strerror(errno.EBADF)}")
    assert run.control[1] == 0


def test_a_chunk_that_cannot_be_written_before_others_that_can(monkeypatch, tmp_path):
    """The valid rows end before it, whatever came after."""
    x = pin(torch.randn(26, 5))
    for seed in range(20):
        monkeypatch.setenv(SEED, str(seed))
        path = file_of(tmp_path / "out", x * 0, 0)
        out = Array(torch.zeros_like(x), True, True, path, shift=-80)  # so far chunk 0 is outside
        run = Run("gelu_forward", (Array(x), "none", out), 4)
        assert_fails_at(run, 0, os.strerror(errno.EINVAL))
        assert run.control[1] == 0


def test_a_file_that_cannot_be_read(tmp_path):
    x = torch.randn(26, 5)
    out = Array(pin(torch.zeros_like(x)), True)
    run = Run("add_forward", (Array(x, False, True, tmp_path), None, 1, out), 4)
    assert_fails_at(run, 0, os.strerror(errno.EISDIR))


def test_a_launcher_that_fails():
    run, _ = gelu(26, chunk_rows=4)
    run.arguments = (run.arguments[0], "exactly", run.arguments[2])
    assert_fails_at(run, 0, "approximate must be")
    assert run.control[1] == 0


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU's context does not survive it")
@pytest.mark.parametrize("staged", [(False, False), (True, True)], ids=["in place", "staged"])
def test_a_kernel_that_fails_on_the_way(monkeypatch, staged):
    """Chunks before are being finished meanwhile."""
    for seed in range(60):
        monkeypatch.setenv(SEED, str(seed))
        run, out = gelu(26, staged=staged, chunk_rows=4, num_slots=4, bad_slot=3)
        assert_fails_at(run, 3, "aligned")
        valid = int(run.control[1])
        assert_bits(out[:valid], run.expected()[:valid])


def test_failures_leave_nothing_behind():
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    for i in range(50):
        run, _ = gelu(26, staged=(True, True), chunk_rows=4)
        run.arguments = (run.arguments[0], "exactly", run.arguments[2])
        assert_fails_at(run, 0, "approximate must be")
        if i == 0:
            before = threads()
    assert threads() <= before


def test_wrong_arguments():
    def call(run: Run, match: str, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=match):
            run()

    run, _ = gelu(8, chunk_rows=4)
    input, out = run.arguments[0], run.arguments[2]
    call(Run("gelu_sideways", run.arguments, 4), "no launcher gelu_sideways")
    call(Run("run_pipeline", run.arguments, 4), "no launcher run_pipeline")
    call(Run("gelu_forward", (input, out), 4), "expected 4 arguments, got 3", TypeError)
    call(Run("gelu_forward", run.arguments, 4, copy_threads=0), "sizes must be positive")
    with pytest.raises(TypeError, match="expected 11 arguments"):
        module().run_pipeline("gelu_forward")
    call(Run(None, run.arguments, 4), "without a launcher there must be one function")
    specs = (True, 20, (0,), (), out.rows.data_ptr(), -1, 0, 0, False)
    for places, arrays, what in [
        ((0, 0), (specs,), "a tensor must be a chunk of its array"),
        ((0,), (specs,), "places must have a number for every tensor"),
        ((0, 1), (specs,), "a tensor must be a chunk of its array"),
        ((0, 0), (specs[:5],), "a tuple is too short"),
        ((0, 0), ((True, 20, (), *specs[3:]),), "a buffer for every slot"),
        ((0, 0), ((*specs[:5], 1, 0, 0, False),), "a file needs pinned buffers"),
    ]:
        tensors = torch.zeros(4, 6, device=DEVICE), torch.zeros(4, 6, device=DEVICE)
        with pytest.raises(ValueError, match=what):
            module().run_pipeline(
                "gelu_forward",
                (tensors[0], "none", tensors[1], None),
                *(places, arrays, 8, 4, 1, -1, 1, run.control.data_ptr(), False),
            )


def test_python_runs_meanwhile():
    """The interpreter's lock is free during a run."""
    run, _ = gelu(40_000, (2,), chunk_rows=2)
    worker = threading.Thread(target=run)
    worker.start()
    turns = 0
    while worker.is_alive() and turns < 5:
        turns += int(run.control[1]) < 40_000
        time.sleep(0.001)
    run.control[0] = 1
    worker.join(10)
    assert turns == 5
