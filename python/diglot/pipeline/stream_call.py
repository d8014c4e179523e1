"""One call of `stream_map` or `stream_reduce`: checks, plan, run and report."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from diglot.backends.registry import INTERPRET
from diglot.backends.selection import AUTO, check_name, choose, scoped_backend, use_backend
from diglot.pipeline.arguments import (
    check_fit,
    check_outputs,
    find_devices,
    is_array,
    numpy_dtype,
    tensor_of,
)
from diglot.pipeline.errors import StreamError
from diglot.pipeline.fold import Fold
from diglot.pipeline.host import HostArray, Maps
from diglot.pipeline.job import Job, Result, Sink
from diglot.pipeline.last_report import last, make_report
from diglot.pipeline.launches import Like, Op, Seen, is_random, op_of
from diglot.pipeline.native import NativeRing, can_drive, native_ring
from diglot.pipeline.planner import (
    DEFAULT_CHUNKING,
    Chunking,
    Plan,
    chunking,
    plan,
)
from diglot.pipeline.progress import progress_bar
from diglot.pipeline.ring import Ring
from diglot.pipeline.shares import Engine, Run, Share, shares_of

Results = tuple[torch.Tensor, ...]


class StreamCall:
    """One call of `stream_map` or `stream_reduce`."""

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
        tensors = [tensor_of(name, f"input {i}", array) for i, array in enumerate(inputs)]
        self.rows = tensors[0].shape[0]
        for i, tensor in enumerate(tensors):
            if tensor.shape[0] != self.rows:
                raise ValueError(
                    f"{name}: all inputs must have the same number of rows; input 0 has "
                    f"{self.rows}, and input {i} has {tensor.shape[0]}"
                )
        self.maps = Maps()
        self.inputs = [HostArray(tensor, maps=self.maps) for tensor in tensors]
        self.devices = find_devices(name, devices)
        self.op = op_of(fn)
        # One row, or none, can be taken in one way only.
        if self.op is not None and self.rows > 1 and len({tensor.dim() for tensor in tensors}) > 1:
            shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(
                f"{name}: inputs of {self.op} must have the same number of dimensions: with shapes "
                f"{shapes}, a chunk's rows would become columns"
            )
        if backend is None and self.op is not None and isinstance(fn, functools.partial):
            backend = fn.keywords.get("backend")
        if backend is not None:
            check_name(backend)
        self.backend = backend
        self.is_single = True
        self.notes: list[str] = []
        if self.op is not None:
            chosen = {choose(self.op, device, backend) for device in self.devices}
            self.backend = chosen.pop() if len(chosen) == 1 else AUTO
            self.fn = functools.partial(fn, backend=self.backend)
        self.autocast = tuple(
            (kind, torch.get_autocast_dtype(kind))
            for kind in ("cuda", "cpu")
            if torch.is_autocast_enabled(kind)
        )
        if self.devices[0].type == "cpu" and not INTERPRET:
            what = f"on the backend {self.backend!r}" if self.op else "as they are"
            why = "" if torch.cuda.is_available() else "no GPU: "
            self.notes.append(f"{why}chunks ran on the CPU, {what}")

    def call(self, *chunks: torch.Tensor) -> Results:
        """Calls fn and checks its results."""
        returned = self.fn(*chunks)
        self.is_single = not isinstance(returned, (tuple, list))
        results = (returned,) if self.is_single else tuple(returned)
        if not results:
            raise TypeError("fn must return at least one tensor")
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"fn must return tensors, not a {type(result).__name__}")
            if self.gives_arrays and numpy_dtype(result.dtype) is None:
                raise TypeError(f"fn returns {result.dtype}, which NumPy lacks: give it tensors")
            if result.device != chunks[0].device:
                raise ValueError(
                    f"fn must return a tensor on the chunk's device, {chunks[0].device}, not on "
                    f"{result.device}"
                )
        return results

    def call_rows(self, *chunks: torch.Tensor) -> Results:
        """`call`, with a check that each result has a row for each row of the chunk."""
        results = self.call(*chunks)
        for result in results:
            if result.dim() == 0 or result.shape[0] != chunks[0].shape[0]:
                raise ValueError(
                    f"fn must return as many rows as its chunk has, {chunks[0].shape[0]}, not a "
                    f"tensor of shape {tuple(result.shape)}"
                )
        return results

    def scope(self) -> Callable[[], Any]:
        """Makes the context in which threads call fn: this thread's autocast and backend."""
        # An op takes its backend as an argument.
        backend = None if self.op is not None else self.backend or scoped_backend()
        if backend is None and not self.autocast:
            return nullcontext

        @contextmanager
        def entered() -> Iterator[None]:
            with ExitStack() as stack:
                for kind, dtype in self.autocast:
                    stack.enter_context(torch.autocast(kind, dtype=dtype))
                if backend is not None:
                    stack.enter_context(use_backend(backend))
                yield

        return entered

    def empty_chunks(self, rows: int) -> list[torch.Tensor]:
        """Uninitialised chunks on the first device."""
        return [array.empty_chunk(rows, self.devices[0]) for array in self.inputs]

    def make_plan(
        self,
        out_row_bytes: Sequence[int],
        default: Chunking = DEFAULT_CHUNKING,
        devices: int = 1,
    ) -> Plan:
        """How all rows are cut. Rows to be folded are cut alike for any devices."""
        row_bytes = [array.row_bytes for array in self.inputs]
        try:
            return plan(
                self.rows,
                row_bytes,
                out_row_bytes,
                self.chunk_bytes,
                self.num_slots,
                default,
                devices,
            )
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def map(self, out: Any, progress: bool) -> Any:
        """stream_map."""
        outs: list[HostArray] | None = None
        if out is not None:
            arrays = out if isinstance(out, (tuple, list)) else [out]
            outs = [
                HostArray(
                    tensor_of(self.name, "out", one, writable=True), is_output=True, maps=self.maps
                )
                for one in arrays
            ]
            self.gives_arrays = False
            check_outputs(self.name, self.rows, outs, self.inputs)

        def make(results: Sequence[Result]) -> list[HostArray]:
            if outs is not None:
                check_fit(self.name, outs, results)
                return outs
            return [HostArray.new((self.rows, *r.shape[1:]), r.dtype) for r in results]

        sink = Sink(make)
        self.wait_for_streams(*self.inputs, *(outs or ()))
        has_begun = False
        try:
            op, one = self.look()
            if one is not None:
                self.is_single = one.is_single
                sink.arrays_for(one.results)
            known = sink.arrays or outs or []
            is_driven = one is not None and all(map(can_drive, self.devices))
            launch = one.launch if one is not None and is_driven else None
            engine = Ring.name if launch is None else NativeRing.name
            is_staged = any(array.is_staged for array in (*self.inputs, *known))
            whole = self.make_plan(
                [array.row_bytes for array in known],
                chunking(engine, is_staged, len(self.devices)),
                len(self.devices),
            )
            shares = shares_of(whole, self.devices)
            native = None
            if op is not None and launch is not None:
                native = functools.partial(native_ring, op=op, one=launch)
            has_begun = True
            self.run(shares, native, progress, sink=sink)
        finally:
            sink.close()
            for array in (outs or ()) if has_begun else ():
                if not array.tensor.is_inference():  # what autograd saved of it is overwritten
                    torch.autograd.graph.increment_version(array.tensor)
        assert sink.arrays is not None
        row_bytes = tuple(array.row_bytes for array in sink.arrays)
        self.report(whole, shares, self.rows * sum(row_bytes), row_bytes)
        return self.give(tuple(array.tensor for array in sink.arrays)) if out is None else out

    def reduce(self, combine: Callable[[Any, Any], Any], progress: bool) -> Any:
        """stream_reduce."""
        if not callable(combine):
            raise TypeError(f"{self.name}: combine must be callable")
        if self.rows == 0:
            raise ValueError(f"{self.name}: there are no rows to reduce")
        self.wait_for_streams(*self.inputs)
        whole = self.make_plan([])
        shares = shares_of(whole, self.devices)
        fold = Fold(combine, lambda results: results[0] if self.is_single else results)
        self.run(shares, None, progress, fold=fold)
        try:
            folded = fold.result()
        except Exception as error:  # of combine, for chunks that were not folded yet
            chunk, what = fold.chunks, f"{type(error).__name__}: {error}"
            done = [(0, whole.rows_of(chunk)[0])]
            raise StreamError(f"{self.name}: chunk {chunk}: {what}", chunk, done) from error
        self.is_single = isinstance(folded, torch.Tensor)
        results = (folded,) if self.is_single else tuple(folded)
        for result in results:
            if self.gives_arrays and numpy_dtype(result.dtype) is None:
                raise TypeError(
                    f"{self.name}: combine returns {result.dtype}, which NumPy lacks: give inputs "
                    "that are tensors"
                )
        self.report(whole, shares, sum(r.numel() * r.element_size() for r in results), ())
        return self.give(results)

    def wait_for_streams(self, *arrays: HostArray) -> None:
        """Waits until no current stream uses an array that threads of the host copy."""
        if any(array.may_be_in_use for array in arrays):
            for device in self.devices:
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()

    def give(self, results: Results) -> Any:
        """Results as arrays, if the first input is one; one alone, or a tuple."""
        converted: tuple[Any, ...] = results
        if self.gives_arrays:
            converted = tuple(r.resolve_conj().resolve_neg().numpy() for r in results)
        return converted[0] if self.is_single else converted

    def run(
        self,
        shares: list[Share],
        native: Callable[[Job], NativeRing | None] | None,
        progress: bool,
        sink: Sink | None = None,
        fold: Fold | None = None,
    ) -> None:
        """Does all shares."""
        scope = self.scope()
        fn = self.call if sink is None else self.call_rows

        def job_of(share: Share, cut: Plan, first: int) -> Job:
            job = Job(share.device, cut, first, self.inputs, fn, sink, scope=scope)
            job.shares_compute = self.op is None
            if fold is not None:
                job.fold = functools.partial(fold.take, share.number)
            return job

        def engine_of(job: Job) -> Engine:
            return (None if native is None else native(job)) or Ring(job)

        row_bytes = sum(array.row_bytes for array in self.inputs)
        with progress_bar(progress, self.name, self.rows, row_bytes) as update:
            run = Run(self.name, shares, job_of, engine_of, update)
            try:
                for array in self.inputs:
                    array.open()
                run()
            finally:
                self.notes += run.notes
                for array in self.inputs:
                    array.close()

    def look(self) -> tuple[Op | None, Seen | None]:
        """fn as an op, and its behaviour on one row, or on no row if the inputs are empty. None:
        unknown.

        Calling an op of diglot for this changes nothing.
        """
        if self.rows > 0 and (self.op is None or is_random(self.fn)):
            return None, None

        def call(*chunks: torch.Tensor) -> tuple[Results, bool]:
            return self.call_rows(*chunks), self.is_single

        state = (self.backend, self.autocast, self.gives_arrays)
        op = Op(self.fn, call, state, is_known=self.op is not None)
        rows = min(self.rows, 1)
        like = [Like(torch.Size((rows, *a.row_shape)), a.tensor.dtype) for a in self.inputs]

        def watch() -> Seen:
            return self.guarded(op.watch, self.empty_chunks(rows))

        return op, op.look(like, self.devices[0], watch)

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the context in which threads call fn."""
        device = self.devices[0]
        on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with on_device, self.scope()(), torch.no_grad():
            return function(*arguments)

    def report(
        self, whole: Plan, shares: list[Share], bytes_out: int, out_row_bytes: tuple[int, ...]
    ) -> None:
        """Keeps the report of the call, for `last_stream_report`."""
        fn: Any = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        done = functools.partial(
            make_report,
            whole,
            # A share's jobs would keep arrays alive.
            [(share.device, share.plan, share.engine, share.timelines) for share in shares],
            out_row_bytes,
            op=getattr(fn, "__name__", type(fn).__name__),
            backend=self.backend or "callable",
            rows=self.rows,
            bytes_in=self.rows * sum(array.row_bytes for array in self.inputs),
            bytes_out=bytes_out,
            seconds=time.perf_counter() - self.began,
            notes=tuple(self.notes),
            device=self.devices[0],
        )
        last.keep(done)
