"""Several devices work on one call: each does neighbouring chunks, on its own thread. A single
device works on the calling thread.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from diglot.pipeline.errors import StreamError, StreamInterrupted, tell
from diglot.pipeline.interrupts import called_on_interrupt
from diglot.pipeline.job import Job
from diglot.pipeline.planner import Plan, split
from diglot.pipeline.report import Times
from diglot.pipeline.runtime import current_stream, on_device

SMALLER = 4  # divides chunks that the device had no memory for
POLL = 0.02  # seconds between looks at the devices' progress


def make_threads() -> ThreadPoolExecutor:
    """Threads that are kept between calls, because a new thread's first calls of CUDA are slow."""
    return ThreadPoolExecutor(64, "diglot-stream")


THREADS = make_threads()


def _after_fork() -> None:
    """A child process has none of its parent's threads."""
    global THREADS
    THREADS = make_threads()


os.register_at_fork(after_in_child=_after_fork)


class _Within(threading.local):
    """The run whose function this thread executes."""

    run: Run | None = None


_within = _Within()


class Engine(Protocol):
    """The engine that drives a job's chunks."""

    name: str
    began: float  # origin of its times, by time.perf_counter

    def run(self) -> None:
        """Does them."""


@dataclass
class Share:
    """The work of one device.

    Attributes:
        number: of the share, from 0 on.
        device: the device.
        begin, end: its rows.
        plan: how the rows are cut.
        chunk: the number of its first chunk, among those of all devices.
        jobs: its jobs: one, or two if the first had too little memory.
        timelines: of each job, when it began, in seconds since the run did, and its chunks' times.
        engine: the engine's name.
        error: the error that ended it.
    """

    number: int
    device: torch.device
    begin: int
    end: int
    plan: Plan
    chunk: int
    jobs: list[Job] = field(default_factory=list)
    timelines: list[tuple[float, list[Times]]] = field(default_factory=list)
    engine: str = "python"
    error: BaseException | None = None

    @property
    def valid(self) -> tuple[int, int]:
        """Its rows whose results are out."""
        if not self.jobs:
            return self.begin, self.begin
        return self.begin, self.jobs[-1].first + self.jobs[-1].control.valid_rows

    def error_of(self, name: str, valid: list[tuple[int, int]]) -> StreamError:
        """The error to raise for the one that ended it."""
        if not self.jobs:
            return StreamError(f"{name}: on {self.device}: {self.error}", self.chunk, valid)
        job = self.jobs[-1]
        begin, end = (job.first + row for row in job.plan.rows_of(job.control.chunk))
        chunk = self.chunk + job.control.chunk + sum(len(of.timeline) for of in self.jobs[:-1])
        what = f"{type(self.error).__name__}: {self.error}"
        if isinstance(self.error, torch.OutOfMemoryError):
            what += f" (for {sizes_of(job.plan)}; give fewer num_slots or chunk_bytes)"
        return StreamError(
            f"{name}: chunk {chunk} (rows {begin} to {end}) on {self.device}: {what}; "
            f"rows that are done: {tell(valid)}",
            chunk,
            valid,
        )


def shares_of(whole: Plan, devices: list[torch.device]) -> list[Share]:
    """The devices' shares. They are whole chunks, so the chunks do not depend on the devices."""
    shares: list[Share] = []
    for device, (first, last) in zip(devices, split(whole.chunks, len(devices)), strict=True):
        if first < last:
            begin, end = whole.rows_of(first)[0], whole.rows_of(last - 1)[1]
            of_share = whole if end - begin == whole.rows else replace(whole, rows=end - begin)
            shares.append(Share(len(shares), device, begin, end, of_share, first))
    return shares


def sizes_of(cut: Plan) -> str:
    """The chunks on a device, in words, with the outputs that are known early."""
    row_bytes = sum(cut.in_row_bytes) + sum(cut.out_row_bytes)
    return f"{cut.slots} chunks of {cut.chunk_rows} rows of {row_bytes} bytes"


class Run:
    """All shares at once.

    Args:
        name: of the called function, for messages.
        shares: the work.
        job_of: a share's job, from how its rows are cut and the first of them.
        engine_of: makes the engine of a job.
        update: called from time to time with how many rows are done; or None.
    """

    def __init__(
        self,
        name: str,
        shares: list[Share],
        job_of: Callable[[Share, Plan, int], Job],
        engine_of: Callable[[Job], Engine],
        update: Callable[[int], None] | None,
    ) -> None:
        self.name, self.shares = name, shares
        self.job_of, self.engine_of, self.update = job_of, engine_of, update
        self.notes: list[str] = []
        self.is_stopped = self.is_interrupted = False
        self.outer = _within.run
        self.inner: list[Run] = []  # those that its function has begun
        self.began = time.perf_counter()
        self.ended: list[threading.Event] = []  # of each share that was given to a thread

    def __call__(self) -> None:
        """Does them, and waits for every one.

        Raises:
            StreamError: a share failed. All have ended then.
            StreamInterrupted: on Ctrl-C; likewise.
            Errors of `fn` or of a signal's handler that are no Exception, such as SystemExit;
                likewise.
        """
        try:
            if self.outer is not None:
                self.outer.inner.append(self)
                if self.outer.is_interrupted:  # before this began
                    self.interrupt()
            self.do_all()
            for share in self.shares:
                if share.error is not None:
                    raise share.error_of(self.name, self.valid()) from share.error
        finally:
            if self.outer is not None:
                self.outer.inner.remove(self)
            for share in self.shares:  # tracebacks of errors keep objects alive
                share.error = None

    def do_all(self) -> None:
        """Does all shares. They have ended when it returns or raises. It raises only errors that
        are not the shares', such as SystemExit of a signal's handler, or Ctrl-C.
        """
        try:
            with called_on_interrupt(self.interrupt) as is_held:
                # A thread would begin some 100 us later, and its end be noticed as late.
                if is_held and self.update is None and len(self.shares) == 1:
                    self.work(self.shares[0], on_device(self.shares[0].device))
                else:
                    self.work_on_threads()
            if self.is_interrupted:
                raise KeyboardInterrupt
            for share in self.shares:
                if share.error is not None and not isinstance(share.error, Exception):
                    raise share.error
        except BaseException as error:
            if not isinstance(error, Exception):  # of a signal's handler
                self.interrupt()
            self.stop()
            if isinstance(error, KeyboardInterrupt):
                valid = self.valid()
                raise StreamInterrupted(
                    f"{self.name} was interrupted; rows that are done: {tell(valid)}", valid
                ) from error
            raise

    def work_on_threads(self) -> None:
        """All shares."""
        for share in self.shares:
            ended = threading.Event()
            work = functools.partial(self.work, share, current_stream(share.device), ended)
            if self.outer is None:
                THREADS.submit(work)
            else:  # runs that wait for inner ones may occupy all kept threads
                threading.Thread(target=work, name="diglot-stream").start()
            self.ended.append(ended)
        for ended in self.ended:
            while not ended.wait(POLL):
                self.tell_progress()
        self.tell_progress()

    def work(
        self,
        share: Share,
        place: AbstractContextManager[Any],
        ended: threading.Event | None = None,
    ) -> None:
        """Does a share on this thread, in the context of its device. If the device has too little
        memory, tries once more with smaller chunks. Sets `ended` at the end.
        """
        plan, first = share.plan, share.begin
        outer, _within.run = _within.run, self
        try:
            with place:
                while True:
                    try:
                        self.drive(share, plan, first)
                        return
                    except torch.OutOfMemoryError:
                        if len(share.jobs) > 1 or plan.chunk_rows == 1:
                            raise
                    torch.cuda.empty_cache()
                    first += share.jobs[-1].control.valid_rows
                    rows = max(1, plan.chunk_rows // SMALLER)
                    self.notes.append(
                        f"{share.device} had no memory for {sizes_of(plan)}: from row {first} on "
                        f"chunks had {rows}"
                    )
                    plan = replace(plan, rows=share.end - first, chunk_rows=rows)
        except BaseException as error:
            share.error = error
            self.ask_to_stop()  # the others need not go on
        finally:
            _within.run = outer
            if ended is not None:
                ended.set()

    def drive(self, share: Share, plan: Plan, first: int) -> None:
        """A part of a share."""
        job = self.job_of(share, plan, first)
        share.jobs.append(job)
        if self.is_stopped:
            job.control.stop()
        engine = self.engine_of(job)
        share.engine = engine.name
        try:
            engine.run()
        finally:
            late = engine.began - self.began
            share.timelines.append((late, job.timeline))

    def ask_to_stop(self) -> None:
        """Makes all shares end after their running chunks."""
        self.is_stopped = True
        for share in self.shares:
            for job in list(share.jobs):
                job.control.stop()

    def interrupt(self) -> None:
        """On Ctrl-C: ends all shares, and the runs that the function has begun."""
        self.is_interrupted = True
        self.ask_to_stop()
        for run in list(self.inner):
            run.interrupt()

    def stop(self) -> None:
        """Asks all to end, and waits for it."""
        self.ask_to_stop()
        for ended in self.ended:
            while not ended.is_set():
                with suppress(KeyboardInterrupt):  # files and memory are theirs until they end
                    ended.wait(POLL)

    def valid(self) -> list[tuple[int, int]]:
        """Rows whose results are out, of each share."""
        return [share.valid for share in self.shares]

    def tell_progress(self) -> None:
        """Calls `update` with the finished rows."""
        if self.update is not None:
            self.update(sum(end - begin for begin, end in self.valid()))
