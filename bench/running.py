"""Runs benchmarks: all providers of a case interleaved with its ceiling, nothing unverified."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from diglot.bench.harness import (
    COLD,
    MODES,
    OURS,
    Bar,
    Benchmark,
    Call,
    Case,
    ErrorOf,
    OtherCall,
    Row,
    Rows,
    Tensors,
)
from diglot.bench.instruments import CEILINGS, GPU, WITH_CEILING, Instruments, Timer
from diglot.bench.reports import judged
from diglot.reference.specs import Expected, as_tuple
from diglot.tools.accuracy import measure_error
from diglot.tools.inputs import is_out_of_memory, tell_out_of_memory
from diglot.tools.measure import Timing
from diglot.tools.tune import choices_of

# Ours have no speed unless every element is within the tolerance. Peers round as they please, and
# after each step of a formula. They are only held to an error that is small beside the largest
# value of a result. That tells a wrong kernel from an inaccurate one. Their worst error is written
# beside their time.
PEER_ERROR = 1 / 16
# With cold caches nothing moves its bytes at this multiple of a copy's speed: its end was not
# waited for. (Bytes that are counted twice may come from the L2 cache the second time.)
TOO_FAST = 2.0
REASON_LENGTH = 200
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in messages of some packages


def run(
    benchmark: Benchmark,
    cases: Sequence[Case] | None = None,
    *,
    only: Collection[str] = (),
    launches: bool = False,
    weighs: bool = True,
    tell: Callable[[str], None] = lambda _: None,
    instruments: Instruments = GPU,
) -> Iterator[list[Row]]:
    """Measures case by case.

    Args:
        only: names of the providers; by default all but those on demand.
        launches: whether to count those of each call, with a profiler.
        weighs: whether to measure the host's time and the memory of each call.

    Yields:
        The rows of a case, one for each provider that takes it. One without a time has a reason.

    Raises:
        RuntimeError: kernels are interpreted, or there is no GPU.
        ValueError: an input is constant.
    """
    instruments.check()
    cases = benchmark.cases if cases is None else cases
    for i, case in enumerate(cases):
        tell(f"{benchmark.op} {i + 1}/{len(cases)}: {describe(case)}")
        with benchmark.setting(case):
            rows = _Run(benchmark, case, instruments).measure(only, launches, weighs)
        if case in benchmark.cases and not only:
            judge(benchmark.bars, rows)
        yield list(rows.values())
        del rows
        instruments.release()


def describe(case: Case) -> str:
    """A case in words."""
    shape = "x".join(map(str, case.shape))
    options = "".join(f", {name} {value}" for name, value in case.options.items())
    return f"{case.direction} {dtype_name(case.dtype)} {shape}{options} [{case.timer}]"


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" of torch.float32."""
    return str(dtype).removeprefix("torch.")


def row_of(case: Case) -> Row:
    """What a row says of its case."""
    return {
        "direction": case.direction,
        "dtype": dtype_name(case.dtype),
        "shape": list(case.shape),
        "options": case.options,
        "timer": case.timer,
    }


class _Run:
    """All providers of one case: called, checked, timed in turns, and weighed."""

    def __init__(self, benchmark: Benchmark, case: Case, instruments: Instruments) -> None:
        self.benchmark, self.case, self.instruments = benchmark, case, instruments
        self.tensors: Tensors = ()
        self.common: Row = {"op": benchmark.op, **row_of(case)}
        self.rows: Rows = {}
        self.right: tuple[Expected, ...] | None = None  # results, once they are known

    def measure(self, only: Collection[str], launches: bool, weighs: bool) -> Rows:
        """The rows of the providers that take the case."""
        chosen = [
            name
            for name in self.benchmark.providers
            if (name in only if only else name not in self.benchmark.on_demand)
        ]
        if not MODES.keys().isdisjoint(chosen):
            torch.compiler.reset()  # each case is compiled for its shape alone
        try:
            self.tensors = self.benchmark.inputs(self.case)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return {name: self._row(name) | _failure(error) for name in chosen}
        self._refuse_constant()
        self.common["bytes"] = self.benchmark.bytes_moved(self.case, self.tensors)
        if self.benchmark.flops is not None:
            self.common["flops"] = self.benchmark.flops(self.case, self.tensors)
        calls = {name: call for name in chosen if (call := self._admitted(name)) is not None}
        self.right = None  # which may fill a good part of the memory
        self._time(calls)
        timed = {name: call for name, call in calls.items() if "time_us" in self.rows[name]}
        for name, call in timed.items() if weighs else ():
            row, us = self.rows[name], self.rows[name]["time_us"]
            is_host = self.case.timer == "host"
            row["host_us"] = us if is_host else _try(self.instruments.host_us, call, us)
            row["peak_bytes"] = _try(self.instruments.peak_bytes, call)
        # Last: what the profiler leaves behind may cost the host a little from then on.
        for name, call in timed.items() if launches else ():
            self.rows[name]["launches"] = _try(self.instruments.launches, call)
        return self.rows

    def _row(self, provider: str) -> Row:
        how = self.benchmark.how.get(provider)
        op = self.benchmark.op
        return {"op": op, "provider": provider, **self.common, "how": how, "bars": []}

    def _refuse_constant(self) -> None:
        """Power draw, and with it the clock, depends on the bits: zeros are fast and no measure."""
        for place, tensor in enumerate(self.tensors):
            if tensor.is_floating_point() and tensor.numel() > 1:
                is_short = tensor.element_size() == 1  # PyTorch orders no 8-bit floats
                values = tensor.detach().float() if is_short else tensor.detach()
                least, most = torch.aminmax(values)
                if bool(least == most):
                    raise ValueError(
                        f"{self.benchmark.op}, {describe(self.case)}: input {place} is "
                        f"{least.item():g} everywhere, and nothing is timed on constant data"
                    )

    def _admitted(self, name: str) -> Call | None:
        """A provider's call, if it takes the case and is to be timed; else its row says why not."""
        row = self._row(name)
        try:
            call = self.benchmark.providers[name](self.case, self.tensors)
            if call is None:
                return None
            self.rows[name] = row
            if name in OURS:
                choices = _try(choices_of, call)
                row["chosen"] = choices[0].source if choices else None
            self._check(call, row)
        except Exception as error:  # whatever a provider raises is told in its row
            self.rows[name] = row | _failure(error)
            return None
        self.instruments.release()
        return None if "reason" in row else call

    def _check(self, call: Call, row: Row) -> None:
        """Calls for the first time and checks the result; a reason says why nothing is timed.

        A wrong result of ours has no speed. Peers are timed whatever their tail is worth, and their
        error stands beside it.
        """
        if self.benchmark.prepare is not None:
            self.benchmark.prepare(self.tensors)
        self.instruments.synchronize()
        begin = time.perf_counter()
        call()
        self.instruments.synchronize()
        row["first_call_ms"] = (time.perf_counter() - begin) * 1e3
        row |= asdict(self._error(call))
        row["verified"] = (
            row["failing"] == 0
            if row["provider"].partition(",")[0] in OURS
            else row["worst_share"] < PEER_ERROR
        )
        if not row["verified"]:
            row["reason"] = (
                f"wrong result: {100 * row['failing']:.3g} % beyond the tolerance, by up to "
                f"{row['worst_absolute']:.3g}, {row['worst_share']:.3g} of the largest value"
            )
        elif not self.instruments.ends_in_stream(call):
            row["reason"] = "not timed: it leaves work to a stream that is not waited for"

    def _error(self, call: Call) -> ErrorOf:
        if self.benchmark.error is not None:
            return self.benchmark.error(self.case, self.tensors, call)
        if isinstance(call, OtherCall):
            right = as_tuple(call.expected())
        else:
            assert self.benchmark.expected is not None
            if self.right is None:
                self.right = as_tuple(self.benchmark.expected(self.case, self.tensors))
            right = self.right
        pairs = zip(as_tuple(call()), right, strict=True)
        return ErrorOf.of([measure_error(result, of) for result, of in pairs])

    def _time(self, calls: Mapping[str, Call]) -> None:
        """Adds times and speeds to rows."""
        if not calls:
            return
        moved, flops = self.common["bytes"], self.common.get("flops", 0)
        timed, done, prepare = dict(calls), 0, self.benchmark.prepare
        if self.case.timer in WITH_CEILING:
            timed["copy"] = self.instruments.copy(moved, self.case.dtype)
            if flops:
                timed["product"], done = self.instruments.product(self.case.dtype)
        timings = _timings(
            self.instruments.timers[self.case.timer],
            timed,
            functools.partial(prepare, self.tensors) if prepare else None,
            self.rows,
        )
        ceilings = {name: timings.pop(name) for name in CEILINGS if name in timings}
        for name, timing in timings.items():
            row, us = self.rows[name], timing.median_us
            speeds: Row = {}
            if "copy" in ceilings:
                copy_us = ceilings["copy"].median_us
                speeds = {
                    "tb_per_s": moved / us / 1e6,
                    "copy_tb_per_s": moved / copy_us / 1e6,
                    "share_of_copy": copy_us / us,
                }
                if self.case.timer in COLD and copy_us / us > TOO_FAST:
                    row["reason"] = (
                        f"refused: {copy_us / us:.3g} times as fast as a copy of as many bytes, "
                        "which no kernel is: its end was not waited for"
                    )
                    continue
            if "product" in ceilings:
                most = done / ceilings["product"].median_us / 1e6
                speeds |= {
                    "tflop_per_s": flops / us / 1e6,
                    "product_tflop_per_s": most,
                    "share_of_product": flops / us / 1e6 / most,
                }
            row |= {**timing.figures(), "exposed": timing.exposed, **speeds}
        torch_us = self.rows.get("torch", {}).get("time_us")
        for name in timings if torch_us is not None else ():
            if "time_us" in self.rows[name]:
                self.rows[name]["speed_over_torch"] = torch_us / self.rows[name]["time_us"]


def _failure(error: BaseException) -> Row:
    if is_out_of_memory(error):
        reason = tell_out_of_memory(error)
    else:
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}"
    return {"verified": False, "reason": COLOUR.sub("", reason)[:REASON_LENGTH]}


def _try(instrument: Callable[..., Any], *arguments: Any) -> Any:
    """What an instrument says; None where it cannot, which is no reason to lose the time."""
    try:
        return instrument(*arguments)
    except Exception:
        return None


class _FailedCall(Exception):
    """A call has failed while it was timed."""


def _tagged(name: str, call: Call) -> Call:
    def tagged() -> Any:
        try:
            return call()
        except Exception as error:
            raise _FailedCall(name) from error

    return tagged


def _failed_call(error: BaseException | None) -> BaseException | None:
    while error is not None and not isinstance(error, _FailedCall):
        error = error.__cause__ or error.__context__
    return error


def _timings(
    timer: Timer, calls: Mapping[str, Call], prepare: Call | None, rows: Rows
) -> dict[str, Timing]:
    """The times of calls; one that fails in the middle is left out, and the rest timed again."""
    remaining = dict(calls)
    told_apart = False  # which takes the host time, and so is only done after a failure
    while remaining.keys() - set(CEILINGS):
        timed = {n: _tagged(n, c) for n, c in remaining.items()} if told_apart else remaining
        try:
            return timer(timed, prepare)
        except Exception as error:
            if not told_apart:
                told_apart = True
                continue
            failed = _failed_call(error)
            if failed is not None and failed.args[0] in rows:
                name = failed.args[0]
                rows[name] |= _failure(failed.__cause__ or failed)
                del remaining[name]
                continue
            for name in remaining.keys() - set(CEILINGS):
                rows[name] |= _failure(error)
            break
    return {}


def judge(bars: Iterable[Bar], rows: Rows) -> None:
    """Adds to each row of ours what it reaches of the bars that speak of it."""
    for row in rows.values():
        for bar in bars if row["provider"] in OURS else ():
            if not bar.applies(row):
                continue
            bound = bar.bound(row)
            try:
                value = bar.value(row, rows) if "time_us" in row else None
            except KeyError:  # what it is measured by has no time
                value = None
            mean = None if bar.mean is None else bar.mean(row)
            row["bars"].append(judged(bar.name, value, bound, bar.at_least, mean))
