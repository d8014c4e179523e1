"""`stream_map` and `stream_reduce`: a function over arrays in host memory, chunk by chunk, with
copies to the device, compute and copies back at the same time."""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from diglot.backends.registry import INTERPRET
from diglot.backends.selection import AUTO, check_name, choose, use_backend
from diglot.pipeline.host import HostArray
from diglot.pipeline.native import Call, NativeRing, differ_in_rows_alone, op_of, tensors_given
from diglot.pipeline.native import watch as watch_call
from diglot.pipeline.planner import NUM_SLOTS, Plan, plan, split
from diglot.pipeline.report import PipelineReport
from diglot.pipeline.ring import Control, Job, Ring, Sink, Times

SMALLER = 4  # so many times smaller are the chunks after one that the device had no memory for
POLL = 0.02  # seconds between looks at what the devices do

Results = tuple[torch.Tensor, ...]


class StreamError(RuntimeError):
    """A chunk failed. Its cause is what `fn`, `combine` or a copy raised.

    Attributes:
        chunk: its number, from 0 on.
        valid: ranges of rows, (begin, end), that are in `out` for good.
        rows: how many first rows of `out` are.
    """

    def __init__(self, message: str, chunk: int, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)


class StreamInterrupted(KeyboardInterrupt):
    """Ctrl-C. Attributes `valid` and `rows` as of `StreamError`."""

    def __init__(self, message: str, valid: Sequence[tuple[int, int]]) -> None:
        super().__init__(message)
        self.valid = tuple(valid)
        self.rows = prefix(self.valid)


class _Thread(threading.local):
    report: PipelineReport | None = None


_thread = _Thread()


def last_stream_report() -> PipelineReport | None:
    """What the last `stream_map` or `stream_reduce` on this thread did; None if there was none."""
    return _thread.report


def stream_map(
    fn: Callable[..., Any],
    *inputs: Any,
    out: Any = None,
    chunk_bytes: int | None = None,
    num_slots: int = NUM_SLOTS,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    progress: bool = False,
) -> Any:
    """Applies a function along dimension 0 of arrays in host memory, chunk by chunk.

    While one chunk is computed, the next is copied to the device and the one before is copied back.
    The device holds `num_slots` chunks, whatever the arrays' size.

    Args:
        fn: an op of diglot, or any callable that takes a chunk of each input, as tensors on a
            device, and returns a tensor with as many rows, or several; a row's result must not
            depend on other rows. It is called on a thread of its own, without gradients, and
            enqueues its work on the current stream. functools.partial gives it options.
        inputs: CPU tensors or NumPy arrays, also memory-mapped ones, of one length and any row
            shapes and dtypes.
        out: where the result goes: a contiguous CPU tensor or array, or a writable map, of the
            result's shape and dtype; several of them for several results. By default new ones.
        chunk_bytes: of a chunk's largest array, at most; by default 16 MiB, less for small arrays.
        num_slots: chunks on the device at once.
        devices: indices of GPUs, or devices, that share the rows; by default the current GPU, or
            the CPU if there is none or kernels are interpreted.
        backend: for ops of diglot: "cuda", "triton", "torch" or "auto"; by default what
            `use_backend`, the variable DIGLOT_BACKEND or "auto" say.
        progress: whether to show a bar, with GB/s; takes `pip install "diglot[tools]"`.

    Returns:
        `out`, or the result: an array if the first input is one, otherwise a tensor, in ordinary
        memory; a tuple of them if `fn` returns several. It equals fn(*inputs) for every `fn` whose
        rows are independent and that computes a row the same way in a chunk of any size.

    Raises:
        TypeError: an input is neither tensor nor array.
        ValueError: lengths differ, an array has no rows to cut (0-d), a row is larger than
            `chunk_bytes`, `out` does not fit, overlaps an input, cannot be written or is not
            contiguous, a device is named twice, a number is out of range.
        diglot.BackendUnavailable: the backend asked for cannot run there.
        StreamError: a chunk failed. The message names it; the attribute `rows` says how many first
            rows of `out` are valid. A chunk that the device has no memory for is tried again, once,
            a quarter as large.
        KeyboardInterrupt: on Ctrl-C, within a chunk's time.
    """
    stream = _Stream("stream_map", fn, inputs, chunk_bytes, num_slots, devices, backend)
    return stream.map(out, progress)


def stream_reduce(
    fn: Callable[..., Any],
    combine: Callable[[Any, Any], Any],
    *inputs: Any,
    chunk_bytes: int | None = None,
    num_slots: int = NUM_SLOTS,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    progress: bool = False,
) -> Any:
    """Reduces arrays in host memory: `fn` maps chunks to partial results, `combine` folds those.

    Partial results are folded from the left in the chunks' order, so that the result does not
    depend on `num_slots` or `devices`; it may depend on `chunk_bytes`.

    Args:
        fn: as for `stream_map`, but returns a partial result: a tensor on the device, or several.
        combine: from what was folded so far and the next partial result, both as `fn` returns
            them but on the CPU, to the same.
        inputs, chunk_bytes, num_slots, devices, backend, progress: as for `stream_map`.

    Returns:
        What was folded: tensors on the CPU; arrays if the first input is one.

    Raises:
        ValueError: as for `stream_map`; or there are no rows.
        StreamError: a chunk failed, in `fn` or in `combine`.
    """
    stream = _Stream("stream_reduce", fn, inputs, chunk_bytes, num_slots, devices, backend)
    return stream.reduce(combine, progress)


def prefix(valid: Sequence[tuple[int, int]]) -> int:
    """How many first rows neighbouring ranges cover."""
    rows = 0
    for begin, end in valid:
        if begin != rows:
            break
        rows = end
    return rows


@dataclass
class _Share:
    """What one device does.

    Attributes:
        device: which.
        begin, end: its rows.
        plan: how they are cut.
        jobs: what it did or does: one, or two if the first had too little memory.
        timeline: of all its chunks.
        error: what ended it.
        chunk: the number of its first chunk, of all devices'.
    """

    device: torch.device
    begin: int
    end: int
    plan: Plan
    chunk: int
    jobs: list[Job] = field(default_factory=list)
    timeline: list[Times] = field(default_factory=list)
    error: BaseException | None = None
    engine: str = "python"

    @property
    def valid(self) -> tuple[int, int]:
        """Its rows whose results are out."""
        if not self.jobs:
            return self.begin, self.begin
        return self.begin, self.jobs[-1].first + self.jobs[-1].control.valid_rows

    @property
    def failed_chunk(self) -> int:
        """The chunk at which it ended, of all devices'."""
        return self.chunk + len(self.timeline) + (self.jobs[-1].control.chunk if self.jobs else 0)


class _Stream:
    """One call."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        inputs: tuple[Any, ...],
        chunk_bytes: int | None,
        num_slots: int,
        devices: Sequence[Any] | None,
        backend: str | None,
    ) -> None:
        self.name = name
        self.began = time.perf_counter()
        if not callable(fn):
            raise TypeError(f"{name}: fn must be callable, not a {type(fn).__name__}")
        if not inputs:
            raise TypeError(f"{name}: there must be at least one input")
        for what, number in (("chunk_bytes", chunk_bytes), ("num_slots", num_slots)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{name}: {what} must be an int, not {number!r}")
        self.fn, self.chunk_bytes, self.num_slots = fn, chunk_bytes, num_slots
        self.gives_arrays = is_array(inputs[0])
        tensors = [self.tensor_of(f"input {i}", given) for i, given in enumerate(inputs)]
        self.rows = tensors[0].shape[0]
        for i, tensor in enumerate(tensors):
            if tensor.shape[0] != self.rows:
                raise ValueError(
                    f"{name}: all inputs must have the same number of rows; input 0 has "
                    f"{self.rows}, and input {i} has {tensor.shape[0]}"
                )
        self.inputs = [HostArray(tensor) for tensor in tensors]
        self.devices = self.find_devices(devices)
        if backend is not None:
            check_name(backend)
        self.op = op_of(fn)
        self.backend = backend
        self.is_single = True
        self.notes: list[str] = []
        if self.op is not None:
            chosen = {choose(self.op, device, backend) for device in self.devices}
            self.backend = chosen.pop() if len(chosen) == 1 else AUTO
            self.fn = functools.partial(fn, backend=self.backend)
        if self.devices[0].type == "cpu" and not INTERPRET:
            what = f"on the backend {self.backend!r}" if self.op else "as they are"
            self.notes.append(f"no GPU: chunks ran on the CPU, {what}")

    # --- what is given ----------------------------------------------------------------------------

    def tensor_of(self, what: str, given: Any, writable: bool = False) -> torch.Tensor:
        """An input or output as a CPU tensor that shares its memory."""
        if isinstance(given, torch.Tensor):
            tensor = given
        elif is_array(given):
            if writable and not given.flags.writeable:
                raise ValueError(f"{self.name}: {what} is read-only")
            if any(stride < 0 for stride in given.strides):
                raise ValueError(f"{self.name}: {what} has a negative stride: copy it first")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is read-only: nobody writes to inputs
                try:
                    tensor = torch.from_numpy(given)
                except TypeError as error:
                    raise TypeError(
                        f"{self.name}: {what} has a dtype that tensors lack, {given.dtype}"
                    ) from error
        else:
            raise TypeError(
                f"{self.name}: {what} must be a CPU tensor or a NumPy array, not a "
                f"{type(given).__name__}"
            )
        if tensor.device.type != "cpu":
            raise ValueError(f"{self.name}: {what} must be in host memory, not on {tensor.device}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{self.name}: {what} must be dense, not {tensor.layout}")
        if tensor.dim() == 0:
            raise ValueError(f"{self.name}: {what} has no dimension 0 to cut into chunks")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{self.name}: {what} requires grad, and nothing is differentiated here: detach it"
            )
        return tensor.detach()

    def find_devices(self, given: Sequence[Any] | None) -> list[torch.device]:
        """Where chunks go."""
        if given is None:
            if INTERPRET or not torch.cuda.is_available():
                return [torch.device("cpu")]
            return [torch.device("cuda", torch.cuda.current_device())]
        if isinstance(given, (str, int, torch.device)):
            given = [given]
        devices = []
        for one in given:
            device = torch.device("cuda", one) if isinstance(one, int) else torch.device(one)
            if device.type == "cuda":
                count = torch.cuda.device_count()
                index = torch.cuda.current_device() if device.index is None else device.index
                if index >= count:
                    raise ValueError(f"{self.name}: there is no {device}: GPUs found: {count}")
                device = torch.device("cuda", index)
            elif device.type != "cpu":
                raise ValueError(f"{self.name}: devices are GPUs, or the CPU, not {device}")
            devices.append(device)
        if not devices:
            raise ValueError(f"{self.name}: devices must name at least one")
        if len(set(devices)) < len(devices):
            raise ValueError(f"{self.name}: a device is named twice: {list(map(str, devices))}")
        return devices

    def check_out(self, outs: Sequence[Any], results: Results) -> list[HostArray]:
        """The arrays of `out`, which fit the results."""
        if len(outs) != len(results):
            raise ValueError(
                f"{self.name}: fn returns {len(results)} tensors, and out has {len(outs)}"
            )
        arrays = [HostArray(tensor, is_output=True) for tensor in outs]
        for i, (array, result) in enumerate(zip(arrays, results, strict=True)):
            what = "out" if len(outs) == 1 else f"out {i}"
            shape = (self.rows, *result.shape[1:])
            if tuple(array.tensor.shape) != shape or array.tensor.dtype != result.dtype:
                raise ValueError(
                    f"{self.name}: {what} must have the result's shape and dtype, {shape} and "
                    f"{result.dtype}, not {tuple(array.tensor.shape)} and {array.tensor.dtype}"
                )
        return arrays

    def check_memory(self, outs: Sequence[torch.Tensor]) -> None:
        """No output overlaps another array, or itself."""
        arrays = [HostArray(tensor, is_output=True) for tensor in outs]
        for i, array in enumerate(arrays):
            what = "out" if len(outs) == 1 else f"out {i}"
            if array.kind == "strided":
                raise ValueError(f"{self.name}: {what} must be contiguous")
            for j, other in enumerate([*self.inputs, *arrays[:i]]):
                if overlap(array, other):
                    which = f"input {j}" if j < len(self.inputs) else f"out {j - len(self.inputs)}"
                    raise ValueError(
                        f"{self.name}: {what} shares memory with {which}: give it memory of its own"
                    )

    # --- what is done -----------------------------------------------------------------------------

    def call(self, *chunks: torch.Tensor) -> Results:
        """fn, whose results are checked."""
        returned = self.fn(*chunks)
        self.is_single = isinstance(returned, torch.Tensor)
        results = (returned,) if self.is_single else tuple(returned)
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"fn must return tensors, not a {type(result).__name__}")
            if result.device != chunks[0].device:
                raise ValueError(
                    f"fn must return a tensor on the chunk's device, {chunks[0].device}, not on "
                    f"{result.device}"
                )
        return results

    def call_rows(self, *chunks: torch.Tensor) -> Results:
        """The same where each result has a row for each row of the chunk."""
        results = self.call(*chunks)
        for result in results:
            if result.dim() == 0 or result.shape[0] != chunks[0].shape[0]:
                raise ValueError(
                    f"fn must return as many rows as it is given, {chunks[0].shape[0]}, not a "
                    f"tensor of shape {tuple(result.shape)}"
                )
        return results

    def scope(self) -> Callable[[], Any]:
        """What the threads that call fn are in, of this thread's."""
        autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in ("cuda", "cpu")
            if torch.is_autocast_enabled(kind)
        ]
        backend = self.backend

        @contextmanager
        def entered() -> Iterator[None]:
            with ExitStack() as stack:
                for kind, dtype in autocast:
                    stack.enter_context(torch.autocast(kind, dtype=dtype))
                if backend is not None:
                    stack.enter_context(use_backend(backend))
                yield

        return entered

    def empty_chunks(self, device: torch.device, rows: int) -> list[torch.Tensor]:
        """Chunks of nothing in particular."""
        return [
            torch.empty((rows, *array.row_shape), dtype=array.tensor.dtype, device=device)
            for array in self.inputs
        ]

    def make_plan(self, out_row_bytes: Sequence[int]) -> Plan:
        """How all rows are cut."""
        of_inputs = [array.row_bytes for array in self.inputs]
        try:
            return plan(self.rows, of_inputs, out_row_bytes, self.chunk_bytes, self.num_slots)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def shares_of(self, whole: Plan) -> list[_Share]:
        """The devices' shares: whole chunks, so that they are the same ones for any devices."""
        shares = []
        for device, (first, last) in zip(
            self.devices, split(whole.chunks, len(self.devices)), strict=True
        ):
            if first == last:
                continue
            begin, end = whole.rows_of(first)[0], whole.rows_of(last - 1)[1]
            of_share = Plan(
                end - begin,
                whole.chunk_rows,
                whole.num_slots,
                whole.in_row_bytes,
                whole.out_row_bytes,
            )
            shares.append(_Share(device, begin, end, of_share, first))
        return shares

    def map(self, out: Any, progress: bool) -> Any:
        """stream_map."""
        given = None
        if out is not None:
            given = list(out) if isinstance(out, (tuple, list)) else [out]
            outs = [self.tensor_of("out", one, writable=True) for one in given]
            self.check_memory(outs)
            for tensor in outs:
                if tensor.shape[0] != self.rows:
                    raise ValueError(
                        f"{self.name}: out must have a row for each of the inputs' {self.rows}, "
                        f"not {tensor.shape[0]}"
                    )

        def make(results: Results) -> list[HostArray]:
            if given is not None:
                return self.check_out(outs, results)
            return [
                HostArray(torch.empty((self.rows, *r.shape[1:]), dtype=r.dtype), is_output=True)
                for r in results
            ]

        sink = Sink(make)
        try:
            if self.rows == 0:
                with self.scope()(), torch.no_grad():
                    sink.of(self.call_rows(*self.empty_chunks(self.devices[0], 0)))
                whole = self.make_plan([])
                shares: list[_Share] = []
            else:
                one = self.watch(1)
                if one is not None:
                    sink.of(one.results)
                elif given is not None:
                    pass
                known = sink.arrays or ([HostArray(t) for t in outs] if given is not None else [])
                whole = self.make_plan([array.row_bytes for array in known])
                shares = self.shares_of(whole)
                self.run(shares, sink, None, one, progress)
        finally:
            for array in sink.arrays or []:
                array.close()
        assert sink.arrays is not None
        self.report(whole, shares, sum(a.rows * a.row_bytes for a in sink.arrays))
        if given is not None:
            return out
        return self.give(tuple(array.tensor for array in sink.arrays))

    def reduce(self, combine: Callable[[Any, Any], Any], progress: bool) -> Any:
        """stream_reduce."""
        if not callable(combine):
            raise TypeError(f"{self.name}: combine must be callable")
        if self.rows == 0:
            raise ValueError(f"{self.name}: there are no rows to reduce")
        whole = self.make_plan([])
        shares = self.shares_of(whole)
        folding = _Fold(combine, lambda results: results[0] if self.is_single else results)
        self.run(shares, None, folding, None, progress)
        result = folding.result()
        results = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        self.report(whole, shares, sum(r.numel() * r.element_size() for r in results))
        return self.give(results)

    def give(self, results: Results) -> Any:
        """Results in the kind that was given."""
        of_kind = tuple(r.numpy() for r in results) if self.gives_arrays else results
        return of_kind[0] if self.is_single else of_kind

    def watch(self, rows: int) -> Call | None:
        """The one launch that fn does on chunks of so many rows, if it does one in CUDA."""
        if self.op is None or self.backend != "cuda":
            return None
        with torch.random.fork_rng(), self.scope()(), torch.no_grad():
            chunks = self.empty_chunks(self.devices[0], rows)
            return watch_call(self.call_rows, chunks, tensors_given(self.fn))

    def ring_of(self, job: Job, one: Call | None) -> Ring | NativeRing:
        """The engine: the library's own where it can do what fn does."""
        if one is None or job.sink is None:
            return Ring(job)
        if any(array.kind == "strided" for array in self.inputs):
            return Ring(job)
        chunk_rows, slots = job.plan.chunk_rows, job.plan.slots
        buffers = [self.empty_chunks(job.device, chunk_rows) for _ in range(slots)]
        with torch.random.fork_rng(), self.scope()(), torch.no_grad():
            call = watch_call(self.call_rows, buffers[0], tensors_given(self.fn))
        if call is None or not differ_in_rows_alone(one, call, (1, chunk_rows)):
            return Ring(job)
        for slot in buffers[1:]:
            slot += [torch.empty_like(result) for result in call.results]
        buffers[0] += call.results
        return NativeRing(job, call, buffers)

    def run(
        self,
        shares: list[_Share],
        sink: Sink | None,
        folding: _Fold | None,
        one: Call | None,
        progress: bool,
    ) -> None:
        """Does all shares at once, and waits for every one."""
        scope = self.scope()
        for array in self.inputs:
            array.open()
        fn = self.call_rows if sink is not None else self.call

        def work(number: int, share: _Share) -> None:
            fold = None if folding is None else functools.partial(folding.take, number)
            cut, first = share.plan, share.begin
            try:
                while True:
                    job = Job(share.device, cut, first, self.inputs, fn, sink, scope=scope)
                    job.fold, job.control = fold, Control()
                    if share.jobs and share.jobs[-1].control.is_stopped:
                        job.control.stop()
                    share.jobs.append(job)
                    try:
                        if share.device.type == "cuda":
                            with torch.cuda.device(share.device):
                                ring = self.ring_of(job, one)
                        else:
                            ring = self.ring_of(job, one)
                        share.engine = "native" if isinstance(ring, NativeRing) else "python"
                        share.timeline += ring.run()
                        return
                    except torch.OutOfMemoryError:
                        if len(share.jobs) > 1 or cut.chunk_rows == 1:
                            raise
                        first += job.control.valid_rows
                        rows = max(1, cut.chunk_rows // SMALLER)
                        ring = None
                        torch.cuda.empty_cache()
                        cut = Plan(
                            share.end - first,
                            rows,
                            cut.num_slots,
                            cut.in_row_bytes,
                            cut.out_row_bytes,
                        )
                        self.notes.append(
                            f"{share.device} had no memory for chunks of {share.plan.chunk_rows} "
                            f"rows: from row {first} on they had {rows}"
                        )
            except BaseException as error:
                share.error = error
                for other in shares:  # the others need not go on
                    for its in other.jobs:
                        its.control.stop()

        threads = [
            threading.Thread(target=work, args=(i, share), name=f"diglot-stream-{share.device}")
            for i, share in enumerate(shares)
        ]
        try:
            for thread in threads:
                thread.start()
            with _Progress(progress, self.name, shares, self.inputs) as bar:
                while any(thread.is_alive() for thread in threads):
                    threads[-1].join(POLL) if threads[-1].is_alive() else time.sleep(POLL / 10)
                    bar.update()
        except KeyboardInterrupt as interrupt:
            valid = self.stop(shares, threads)
            raise StreamInterrupted(
                f"{self.name} was interrupted; rows of out that are valid: {tell(valid)}", valid
            ) from interrupt
        except BaseException:
            self.stop(shares, threads)
            raise
        finally:
            for array in self.inputs:
                array.close()
        for share in shares:
            if share.error is not None:
                self.fail(share, [one.valid for one in shares])

    def stop(self, shares: list[_Share], threads: list[threading.Thread]) -> list[tuple[int, int]]:
        """Ends all shares early; the rows that are done."""
        for thread, share in zip(threads, shares, strict=True):
            while thread.is_alive():
                for job in share.jobs:
                    job.control.stop()
                thread.join(POLL)
        return [share.valid for share in shares]

    def fail(self, share: _Share, valid: list[tuple[int, int]]) -> None:
        """Raises what ended a share."""
        error = share.error
        assert error is not None
        chunk, (begin, end) = share.failed_chunk, (0, 0)
        job = share.jobs[-1]
        begin, end = job.plan.rows_of(job.control.chunk)
        raise StreamError(
            f"{self.name}: chunk {chunk} (rows {job.first + begin} to {job.first + end}) on "
            f"{share.device}: {type(error).__name__}: {error}; rows of out that are valid: "
            f"{tell(valid)}",
            chunk,
            valid,
        ) from error

    def report(self, whole: Plan, shares: list[_Share], bytes_out: int) -> None:
        """Keeps what was done, for `last_stream_report`."""
        fn: Any = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        name: str = self.op or getattr(fn, "__name__", type(fn).__name__)
        engines = {share.engine for share in shares} or {"python"}
        _thread.report = PipelineReport(
            op=name,
            backend=self.backend or "callable",
            engine=engines.pop() if len(engines) == 1 else "python",
            devices=tuple(str(share.device) for share in shares) or (str(self.devices[0]),),
            rows=self.rows,
            chunk_rows=whole.chunk_rows,
            chunks=sum(len(share.timeline) for share in shares),
            num_slots=whole.num_slots,
            bytes_in=sum(array.rows * array.row_bytes for array in self.inputs),
            bytes_out=bytes_out,
            device_bytes=sum(share.plan.device_bytes for share in shares),
            seconds=time.perf_counter() - self.began,
            timelines=[share.timeline for share in shares],
            notes=tuple(self.notes),
        )


class _Fold:
    """Partial results, folded in the order of all chunks, whichever device is faster."""

    def __init__(self, combine: Callable[[Any, Any], Any], shape: Callable[[Results], Any]) -> None:
        self._combine, self._shape = combine, shape
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Any]] = {}
        self._folded: list[Any] = []

    def take(self, share: int, chunk: int, results: Results) -> None:
        """A chunk's, in order within a share."""
        partial = self._shape(results)
        if share > 0:
            with self._lock:
                self._waiting.setdefault(share, []).append(partial)
        else:
            self._add(partial)

    def _add(self, partial: Any) -> None:
        self._folded = [self._combine(self._folded[0], partial) if self._folded else partial]

    def result(self) -> Any:
        """What all fold to."""
        for share in sorted(self._waiting):
            for partial in self._waiting[share]:
                self._add(partial)
        return self._folded[0]


class _Progress:
    """A bar, if it is asked for."""

    def __init__(
        self, is_shown: bool, name: str, shares: list[_Share], inputs: list[HostArray]
    ) -> None:
        self._shares = shares
        self._row_bytes = sum(array.row_bytes for array in inputs)
        self._bar: Any = None
        if is_shown:
            try:
                from rich import progress
            except ImportError:
                raise ImportError('progress needs rich: pip install "diglot[tools]"') from None
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
            )
            rows = sum(share.end - share.begin for share in shares)
            self._task = self._bar.add_task(name, total=rows * self._row_bytes)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self.update()
            self._bar.stop()

    def update(self) -> None:
        """Shows what is done by now."""
        if self._bar is not None:
            done = sum(end - begin for begin, end in (share.valid for share in self._shares))
            self._bar.update(self._task, completed=done * self._row_bytes)


def is_array(given: Any) -> bool:
    """Whether it is one of NumPy's arrays; NumPy need not be there."""
    return any(
        kind.__module__ == "numpy" and kind.__name__ == "ndarray" for kind in type(given).__mro__
    )


def overlap(a: HostArray, b: HostArray) -> bool:
    """Whether two arrays have memory, or a part of a file, in common."""
    size_a, size_b = extent(a.tensor), extent(b.tensor)
    if size_a == 0 or size_b == 0:
        return False
    if a.mapping is not None and b.mapping is not None and a.mapping.path == b.mapping.path:
        first_a, first_b = a.mapping.offset, b.mapping.offset
        if first_a < first_b + size_b and first_b < first_a + size_a:
            return True
    return a.address < b.address + size_b and b.address < a.address + size_a


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def tell(valid: Sequence[tuple[int, int]]) -> str:
    """Ranges of rows in words."""
    return ", ".join(f"{a} to {b}" for a, b in valid if b > a) or "none"
