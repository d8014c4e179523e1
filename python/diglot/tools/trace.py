"""A trace of PyTorch's profiler, read back: what ran inside what, and which kernels it launched.

The trace is the one thing that the profiler writes in a form of its own, and in all its versions
alike. It has times to the nanosecond, Python's frames, operators, calls of the CUDA runtime, and
kernels.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diglot.backends.runs import MARK
from diglot.tools.module_scopes import PREFIX
from diglot.tools.regimes import input_bytes

# Kinds of spans, by the categories of events in the trace.
KINDS = {
    "cpu_op": "operator",
    "user_annotation": "scope",
    "python_function": "frame",
    "cuda_runtime": "call",
    "cuda_driver": "call",
}
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
MEMORY = "[memory]"
ON_CPU = 0  # "Device Type" of memory

NO_OPERATOR = "(no operator)"
BACKWARD = "autograd::engine::evaluate_function: "
# Frames of the profiler itself; and the callers of the profiled code, above which nothing is shown.
_PROFILER = re.compile(
    r"(^|/)(torch/profiler/|torch/autograd/profiler\.py|diglot/tools/profiling\.py)"
    r"|^<built-in method _disable_profiler "
)
_CALLER = re.compile(r"(^|/)diglot/tools/profiling\.py\(\d+\): profile_call")
_HELPERS = {f"aten::{name}" for name in ("_to_copy", "clone", "copy_", "fill_", "zero_")}
_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")


@dataclass(eq=False, slots=True)
class Span:
    """What a thread of the host did from one time to another.

    Attributes:
        name: of an operator, such as "aten::mm", of a module, of a scope of the user's, of one of
            Python's frames, or of a call of the CUDA runtime.
        kind: "operator", "module", "scope", "frame" or "call".
        sequence: the number of the node of autograd's graph that an operator makes or evaluates.
        is_backward: whether it evaluates one.
        parent: what it is part of.
        self_us: its time without that of its parts.
        allocated: bytes of memory allocated by itself and not by its parts; freed bytes do not
            count. On the GPU where there is one.
        moved: of an operator, the bytes of its inputs plus the bytes allocated in it, which
            include its outputs: about what it must move. NaN where the trace does not tell.
    """

    name: str
    kind: str
    begin_us: float
    end_us: float
    sequence: int | None = None
    is_backward: bool = False
    parent: Span | None = None
    self_us: float = field(default=0.0, repr=False)
    allocated: int = 0
    moved: float = math.nan

    @property
    def us(self) -> float:
        """How long it took, in microseconds."""
        return self.end_us - self.begin_us

    @property
    def is_own(self) -> bool:
        """Whether it is a launcher of diglot's."""
        return self.kind == "scope" and self.name.startswith(MARK)

    def with_ancestors(self) -> Iterator[Span]:
        """Itself, and what it is part of, from the inside out."""
        span: Span | None = self
        while span is not None:
            yield span
            span = span.parent


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill of the GPU's. Where there is no GPU, an operator that computes.

    Attributes:
        us: how long it took on the device, in microseconds.
        launched_by: the innermost span that it was launched in; None if that is not known.
    """

    name: str
    us: float
    launched_by: Span | None


@dataclass(frozen=True)
class Launches:
    """What an operator or a scope launched.

    Attributes:
        kernels: how many times each kernel ran, by name.
        device_us: what the kernels took on the GPU, in microseconds.
        host_us: what all calls took on the host.
        moved: bytes that all calls must move, about. NaN where that is not known.
    """

    calls: int
    kernels: Counter[str]
    device_us: float = 0.0
    host_us: float = 0.0
    moved: float = math.nan

    @property
    def per_call(self) -> float:
        """Kernels for each call."""
        return self.kernels.total() / self.calls


class Trace:
    """What a trace holds.

    Attributes:
        spans: what the host did.
        kernels: what the GPU did; without one, the operators that would have launched a kernel.
    """

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.spans: list[Span] = []
        threads, work = defaultdict(list), []
        calls: dict[int, Span] = {}
        operators: dict[int, Span] = {}
        for event in events:
            category, arguments = event.get("cat"), event.get("args", {})
            if event.get("name") == MEMORY:
                threads[event["pid"], event["tid"]].append((event["ts"], 0.0, arguments))
            elif category in DEVICE_WORK:
                work.append(event)
            elif category in KINDS and event.get("ph") == "X":
                is_module = category == "user_annotation" and event["name"].startswith(PREFIX)
                span = Span(
                    event["name"],
                    "module" if is_module else KINDS[category],
                    event["ts"],
                    event["ts"] + event["dur"],
                    arguments.get("Sequence number"),
                    arguments.get("Fwd thread id", 0) > 0,
                    moved=input_bytes(arguments.get("Input type"), arguments.get("Input Dims")),
                )
                threads[event["pid"], event["tid"]].append((span.begin_us, -span.us, span))
                if span.kind == "call":
                    calls[arguments.get("correlation", 0)] = span
                elif "External id" in arguments:
                    operators[arguments["External id"]] = span
        self.has_device = bool(work)
        for of_thread in threads.values():
            of_thread.sort(key=lambda entry: entry[:2])
            self._nest(entry[2] for entry in of_thread)
        if work:
            self.kernels = [
                Kernel(
                    event["name"],
                    event["dur"],
                    calls.get(event["args"].get("correlation"))
                    or operators.get(event["args"].get("External id")),
                )
                for event in work
            ]
        else:
            self.kernels = [Kernel(s.name, s.us, s) for s in self._computing()]

    @staticmethod
    def read(path: str | Path) -> Trace:
        """From a file that the profiler wrote."""
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return Trace(json.load(file, strict=False)["traceEvents"])

    def _nest(self, entries: Iterable[Span | dict[str, Any]]) -> None:
        """Finds the parents of one thread's spans, given in the order in which they begin."""
        open_spans: list[Span] = []
        for entry in entries:
            if isinstance(entry, dict):  # memory
                is_device = entry.get("Device Type") != ON_CPU
                if open_spans and is_device == self.has_device:
                    allocated = max(0, entry.get("Bytes", 0))
                    open_spans[-1].allocated += allocated
                    for span in open_spans:
                        span.moved += allocated
                continue
            while open_spans and open_spans[-1].end_us <= entry.begin_us:
                open_spans.pop()
            # The profiler misses the end of some frames, of operators that are called from Python,
            # say: none lasts longer than what it began in.
            if entry.kind == "frame" and open_spans:
                entry.end_us = min(entry.end_us, open_spans[-1].end_us)
            # A scope ends later than the frame of its __enter__, in which it begins. So that frame
            # is not its parent. A call's times are the CUDA library's, a little off.
            end = (entry.begin_us + entry.end_us) / 2 if entry.kind == "call" else entry.end_us
            entry.self_us = entry.us
            entry.parent = next((s for s in reversed(open_spans) if s.end_us >= end), None)
            if entry.parent is not None:
                entry.parent.self_us = max(0.0, entry.parent.self_us - entry.us)
            open_spans.append(entry)
            self.spans.append(entry)

    def _computing(self) -> list[Span]:
        """Launchers of diglot's, and operators that would launch one kernel on a GPU, about.

        Those call no other that computes, except copies and fills: on the CPU operators prepare
        their arguments and results by these. Of nested ones the outermost counts.
        """
        computing = [
            s for s in self.spans if s.is_own or (s.kind == "operator" and _has_kernel(s.name))
        ]
        composite = set()
        for span in computing:
            if span.name not in _HELPERS:
                composite |= {id(outer) for outer in span.with_ancestors() if outer is not span}
        single = {id(s): s for s in computing if id(s) not in composite or _is_interpreted(s)}
        return [
            span
            for span in single.values()
            if not any(id(s) in single for s in span.with_ancestors() if s is not span)
        ]

    def kernels_by_op(self) -> dict[str, Launches]:
        """Kernels by the operator that launched them: a launcher of diglot's, or the outermost."""
        calls = _by_name((short(s.name), s) for s in self.spans if operator_of(s) is s)
        launched: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            span = kernel.launched_by and operator_of(kernel.launched_by)
            launched[short(span.name) if span else NO_OPERATOR].append(kernel)
        return {name: self._launches(calls[name], of) for name, of in launched.items()}

    def kernels_by_scope(self) -> dict[str, Launches]:
        """Kernels by the scopes of the user's in which they were launched, however deep."""
        calls = _by_name((s.name, s) for s in self.spans if s.kind == "scope" and not s.is_own)
        launched: dict[str, list[Kernel]] = {name: [] for name in calls}
        for kernel in self.kernels:
            spans = kernel.launched_by.with_ancestors() if kernel.launched_by else ()
            for name in {s.name for s in spans if s.kind == "scope" and not s.is_own}:
                launched[name].append(kernel)
        return {name: self._launches(calls[name], of) for name, of in launched.items()}

    def _launches(self, calls: Sequence[Span], kernels: Sequence[Kernel]) -> Launches:
        return Launches(
            calls=len(calls) or 1,
            kernels=Counter(kernel.name for kernel in kernels),
            device_us=sum(kernel.us for kernel in kernels) if self.has_device else 0.0,
            host_us=sum(span.us for span in calls),
            moved=sum(span.moved for span in calls) if calls else math.nan,
        )

    def stacks(self) -> dict[tuple[str, ...], float]:
        """Time in microseconds by stack: frames, scopes, operators and kernels, outermost first.

        Time on the GPU; where the trace has none of it, on the CPU.
        """
        frames: dict[int, tuple[str, ...] | None] = {}
        for span in self.spans:  # parents come before their parts
            outer = frames[id(span.parent)] if span.parent else ()
            frames[id(span)] = _with_frame(outer, span, self.has_device)
        times: dict[tuple[str, ...], float] = defaultdict(float)
        if self.has_device:
            for kernel in self.kernels:
                outer = frames[id(kernel.launched_by)] if kernel.launched_by else ()
                if outer is not None:
                    stack = (*outer, kernel.name)
                    times[stack] += kernel.us
        else:
            for span in self.spans:
                own = frames[id(span)]
                if own:
                    times[own] += span.self_us
        return {stack: us for stack, us in times.items() if us > 0}


def _by_name(spans: Iterable[tuple[str, Span]]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for name, span in spans:
        found[name].append(span)
    return found


def short(name: str) -> str:
    return name.removeprefix(BACKWARD)


def operator_of(span: Span) -> Span | None:
    """What counts as the operator that a span belongs to."""
    around = list(span.with_ancestors())
    own = [s for s in around if s.is_own]
    return next(iter(own or [s for s in reversed(around) if s.kind == "operator"]), None)


def _with_frame(
    outer: tuple[str, ...] | None, span: Span, on_device: bool
) -> tuple[str, ...] | None:
    """The stack of a span, given that around it; None for the profiler's own."""
    if _CALLER.search(span.name):
        return ()
    if outer is None or (span.kind == "frame" and _PROFILER.search(span.name)):
        return None
    if span.kind == "call" and on_device:
        return outer  # of the kernel it launches
    return (*outer, span.name)


def _is_interpreted(span: Span) -> bool:
    """Whether it is an interpreted kernel, whatever the interpreter does, on a CPU's trace."""
    return span.is_own and not span.name.endswith("[torch]")


@functools.cache
def _has_kernel(name: str) -> bool:
    """Whether an operator is one that would launch a kernel: no view, no allocation."""
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    if not schemas or name.startswith(_ALLOCATES):
        return False  # a node of the autograd graph has no schema

    def is_view(schema: Any) -> bool:
        returned = schema.returns[0].alias_info if schema.returns else None
        return returned is not None and not returned.is_write

    return not any(is_view(schema) for schema in schemas)
