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
    Row,
    Rows,
    Tensors,
)
from diglot.bench.instruments import CEILINGS, GPU, WITH_CEILING, Instruments, Timer
from diglot.tools.accuracy import measure_error
from diglot.tools.inputs import is_out_of_memory, tell_out_of_memory
from diglot.tools.measure import Timing
from diglot.tools.tune import choices_of

# Ours have no speed unless every element is within the tolerance. Peers round as they please, and
# after each step of a formula: they are only held to an error that is small beside the largest
# value that a result has, which tells a wrong kernel from an inaccurate one; their worst error is
# written beside their time.
PEER_ERROR = 1 / 16
# With cold caches nothing moves its bytes at so many times the speed of a copy: what seems to was
# not waited for. (Bytes that are counted twice may come from the L2 cache the second time.)
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
        benchmark: what to run.
        cases: which cases; by default its own.
        only: names of the providers; by default all.
        launches: whether to count those of each call, with a profiler.
        weighs: whether to measure the host's time and the memory of each call.
        tell: is told what happens next.
        instruments: what measures.

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
        rows = _run_case(benchmark, case, only, launches, weighs, instruments)
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


def _run_case(
    benchmark: Benchmark,
    case: Case,
    only: Collection[str],
    launches: bool,
    weighs: bool,
    instruments: Instruments,
) -> Rows:
    chosen = [name for name in benchmark.providers if not only or name in only]
    common: Row = {"op": benchmark.op, **row_of(case)}
    if not MODES.keys().isdisjoint(chosen):
        torch.compiler.reset()  # each case is compiled for its shape alone
    try:
        tensors = benchmark.inputs(case)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {name: _row(benchmark, common, name) | _failure(error) for name in chosen}
    _refuse_constant(benchmark, case, tensors)
    common["bytes"] = benchmark.bytes_moved(case, tensors)
    if benchmark.flops is not None:
        common["flops"] = benchmark.flops(case, tensors)
    rows: Rows = {}
    calls: dict[str, Call] = {}
    for name in chosen:
        row = _row(benchmark, common, name)
        try:
            call = benchmark.providers[name](case, tensors)
            if call is None:
                continue
            rows[name] = row
            if name in OURS:
                chosen = _try(choices_of, call)
                row["chosen"] = chosen[0].source if chosen else None
            _admit(benchmark, case, tensors, call, row, instruments)
        except Exception as error:  # whatever a provider raises is told in its row
            rows[name] = row | _failure(error)
            continue
        if "reason" not in row:
            calls[name] = call
        instruments.release()
    _time(benchmark, case, tensors, calls, rows, instruments)
    if weighs:
        _weigh(case, {n: c for n, c in calls.items() if "time_us" in rows[n]}, rows, instruments)
    if launches:
        # Last: what the profiler leaves behind may cost the host a little from then on.
        for name, call in calls.items():
            if "time_us" in rows[name]:
                rows[name]["launches"] = _try(instruments.launches, call)
    return rows


def _row(benchmark: Benchmark, common: Row, provider: str) -> Row:
    how = benchmark.how.get(provider)
    return {"op": common["op"], "provider": provider, **common, "how": how, "bars": []}


def _refuse_constant(benchmark: Benchmark, case: Case, tensors: Tensors) -> None:
    """Power draw, and with it the clock, depends on the bits: zeros are fast, and tell nothing."""
    for place, tensor in enumerate(tensors):
        if tensor.is_floating_point() and tensor.numel() > 1:
            least, most = torch.aminmax(tensor.detach())
            if bool(least == most):
                raise ValueError(
                    f"{benchmark.op}, {describe(case)}: input {place} is {least.item():g} "
                    "everywhere, and nothing is timed on constant data"
                )


def _admit(
    benchmark: Benchmark,
    case: Case,
    tensors: Tensors,
    call: Call,
    row: Row,
    instruments: Instruments,
) -> None:
    """Calls for the first time and checks the result; a reason says why there is nothing to time.

    A wrong result of ours has no speed. Peers are timed whatever their tail is worth, and their
    error stands beside it.
    """
    if benchmark.prepare is not None:
        benchmark.prepare(tensors)
    instruments.synchronize()
    begin = time.perf_counter()
    call()
    instruments.synchronize()
    row["first_call_ms"] = (time.perf_counter() - begin) * 1e3
    row |= asdict(_error(benchmark, case, tensors, call))
    row["verified"] = (
        row["failing"] == 0 if row["provider"] in OURS else row["worst_share"] < PEER_ERROR
    )
    if not row["verified"]:
        row["reason"] = (
            f"wrong result: {100 * row['failing']:.3g} % beyond the tolerance, "
            f"by up to {row['worst_absolute']:.3g}, {row['worst_share']:.3g} of the largest value"
        )
    elif not instruments.ends_in_stream(call):
        row["reason"] = "not timed: it leaves work to a stream that is not waited for"


def _error(benchmark: Benchmark, case: Case, tensors: Tensors, call: Call) -> ErrorOf:
    if benchmark.error is not None:
        return benchmark.error(case, tensors, call)
    assert benchmark.expected is not None
    return ErrorOf.of([measure_error(call(), benchmark.expected(case, tensors))])


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
    """The times of calls; one that fails in the middle is left out, and the rest timed anew."""
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


def _time(
    benchmark: Benchmark,
    case: Case,
    tensors: Tensors,
    calls: Mapping[str, Call],
    rows: Rows,
    instruments: Instruments,
) -> None:
    """Adds times and speeds to rows."""
    if not calls:
        return
    common = next(iter(rows.values()))
    moved, flops = common["bytes"], common.get("flops", 0)
    timed, done = dict(calls), 0
    if case.timer in WITH_CEILING:
        timed["copy"] = instruments.copy(moved, case.dtype)
        if flops:
            timed["product"], done = instruments.product(case.dtype)
    prepare = functools.partial(benchmark.prepare, tensors) if benchmark.prepare else None
    timings = _timings(instruments.timers[case.timer], timed, prepare, rows)
    ceilings = {name: timings.pop(name) for name in CEILINGS if name in timings}
    for name, timing in timings.items():
        row, us = rows[name], timing.median_us
        speeds: Row = {}
        if "copy" in ceilings:
            copy_us = ceilings["copy"].median_us
            speeds = {
                "tb_per_s": moved / us / 1e6,
                "copy_tb_per_s": moved / copy_us / 1e6,
                "share_of_copy": copy_us / us,
            }
            if case.timer in COLD and copy_us / us > TOO_FAST:
                row["reason"] = (
                    f"refused: {copy_us / us:.3g} times as fast as a copy of as many bytes, which "
                    "no kernel is: its end was not waited for"
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
    if "time_us" in rows.get("torch", {}):
        for name in timings:
            if "time_us" in rows[name]:
                rows[name]["speed_over_torch"] = rows["torch"]["time_us"] / rows[name]["time_us"]


def _weigh(case: Case, calls: Mapping[str, Call], rows: Rows, instruments: Instruments) -> None:
    """Adds the host's time and the memory of calls to rows."""
    for name, call in calls.items():
        row = rows[name]
        is_host = case.timer == "host"
        us = row["time_us"]
        row["host_us"] = us if is_host else _try(instruments.host_us, call, us)
        row["peak_bytes"] = _try(instruments.peak_bytes, call)


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
            met = value is not None and (value >= bound if bar.at_least else value <= bound)
            judged = {"name": bar.name, "value": value, "bound": bound, "at_least": bar.at_least}
            row["bars"].append({**judged, "met": met})
