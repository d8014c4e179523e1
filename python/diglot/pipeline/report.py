"""The report of a run through the pipeline: numbers, a table, a file, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from diglot.files import check_writable, writing
from diglot.instruments import instrument

SCHEMA = "diglot.pipeline_report"
SCHEMA_VERSION = 1

# The stages of a chunk, in order. A chunk's times are the begin and the end of each.
STAGES = ("read", "h2d", "compute", "d2h", "write")
# The bytes that a stage moves, if any.
_MOVES = {"read": "in", "h2d": "in", "d2h": "out", "write": "out"}

ON_HOST = ("read", "write")
ON_DEVICE = slice(2, 8)  # indices of the other stages in a chunk's times
Times = tuple[float, ...]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Stage:
    """One stage of one device's chunks.

    Attributes:
        name: one of `STAGES`.
        chunks: how many went through it.
        timed: how many of them were timed; on the device not all, if there are many
            (`Plan.is_timed`).
        begin: seconds from the run's begin to the begin of the first.
        end: likewise to the end of the last.
        busy: seconds in which it worked on at least one. Chunks without times are assumed to take
            as long as the timed one before them.
    """

    name: str
    chunks: int
    timed: int
    begin: float
    end: float
    busy: float

    @property
    def stall(self) -> float:
        """Idle seconds between its first begin and its last end."""
        return self.end - self.begin - self.busy


@dataclass(frozen=True)
class PipelineReport:
    """A run of `diglot.stream_map` or `diglot.stream_reduce`. Printed, it is a short table.

    Attributes:
        op: the name of the function that was run.
        backend: where its chunks ran; "callable" if the function is not an op of diglot.
        engine: the engine that drove the chunks, "native" or "python".
        devices: where they ran.
        rows: of the inputs, along dimension 0.
        chunk_rows: of a chunk; the last of a device may have fewer.
        chunks: how many there were, on all devices.
        num_slots: chunks that were on a device at once.
        bytes_in: of the inputs.
        bytes_out: of the outputs.
        device_bytes: of the slots' buffers, on all devices.
        seconds: from the call's begin to its end.
        timelines: for each device, ten numbers for each of its chunks in order: begin and end of
            each of `STAGES`, in seconds from the run's begin. NaN for a stage that is missing, or
            was not timed.
        notes: further remarks.
        gpu: the name of the GPU that ran it; None without a GPU, or with several.
    """

    op: str
    backend: str
    engine: str
    devices: tuple[str, ...]
    rows: int
    chunk_rows: int
    chunks: int
    num_slots: int
    bytes_in: int
    bytes_out: int
    device_bytes: int
    seconds: float
    timelines: Sequence[Sequence[Times]] = ()
    notes: tuple[str, ...] = ()
    gpu: str | None = None

    @property
    def gb_per_s_in(self) -> float:
        """Bytes of the inputs per second of the run, in 10^9 bytes/s."""
        return _rate(self.bytes_in, self.seconds)

    @property
    def gb_per_s_out(self) -> float:
        """Likewise of the outputs."""
        return _rate(self.bytes_out, self.seconds)

    def share_of_duplex(self, ceiling_gb_per_s: float) -> float:
        """Speed as a share of that of copies in both directions at once.

        Args:
            ceiling_gb_per_s: in each direction, as `diglot.tools.transfer.duplex` measures
                it.
        """
        return max(self.gb_per_s_in, self.gb_per_s_out) / ceiling_gb_per_s

    @property
    def duplex_ceiling(self) -> float | None:
        """The speed of such copies on this machine, in 10^9 bytes/s each way, as `diglot specs
        --measure` found it. None if that did not run, or if the run was not on one GPU.
        """
        try:
            found = None if self.gpu is None else instrument("ceilings").load(self.gpu)
        except ValueError:  # another machine's file, or no file
            return None
        return None if found is None else found.gb_per_s("both ways")

    def stages(self, device: int = 0) -> dict[str, Stage]:
        """The stages that chunks of a device went through, by name.

        Args:
            device: which of `devices`, counted from 0.
        """
        found = {}
        timeline = self.timelines[device]
        untimed = _untimed_after(timeline)
        for name in STAGES:
            numbered = list(intervals_of(timeline, name))
            if numbered:
                intervals = [interval for _, interval in numbered]
                begin, end = min(b for b, _ in intervals), max(e for _, e in intervals)
                chunks, busy = len(intervals), _covered(intervals)
                if name not in ON_HOST:
                    chunks += sum(untimed[chunk] for chunk, _ in numbered)
                    busy += sum(untimed[chunk] * (e - b) for chunk, (b, e) in numbered)
                busy = min(busy, end - begin)
                found[name] = Stage(name, chunks, len(intervals), begin, end, busy)
        return found

    @property
    def timed_chunks(self) -> int:
        """How many chunks have times of the device's work."""
        return sum(_is_timed(times) for timeline in self.timelines for times in timeline)

    @property
    def busy(self) -> dict[str, float]:
        """Seconds in which each stage worked, summed over devices."""
        return {name: sum(stage.busy for stage in of) for name, of in self._by_stage().items()}

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds in which each stage was idle between its first begin and its last end, summed
        over devices.
        """
        return {name: sum(stage.stall for stage in of) for name, of in self._by_stage().items()}

    def _by_stage(self) -> dict[str, list[Stage]]:
        of_devices = [self.stages(device) for device in range(len(self.timelines))]
        found = {name: [of[name] for of in of_devices if name in of] for name in STAGES}
        return {name: of for name, of in found.items() if of}

    def stage_gb_per_s(self, name: str) -> float | None:
        """The speed of a stage while it works, in 10^9 bytes/s; None if it moves nothing.

        On several devices, of one device on average.
        """
        if name not in _MOVES:
            return None
        moved = self.bytes_in if _MOVES[name] == "in" else self.bytes_out
        return _rate(moved, self.busy.get(name, 0.0))

    def summary(self) -> str:
        """The run and its speed in one sentence."""
        rows = f"{self.rows:,} row{'s' * (self.rows != 1)}"
        chunks = f"{self.chunks:,} chunk{'s' * (self.chunks != 1)}"
        return (
            f"{self.op} of {rows}, {_size(self.bytes_in)} in and {_size(self.bytes_out)} out, on "
            f"{', '.join(self.devices)} (backend {self.backend}, {self.engine} engine, {chunks} of "
            f"{self.chunk_rows:,} rows, {self.num_slots} slots) in {_time(self.seconds)}: "
            f"{self.gb_per_s_in:.3g} GB/s in, {self.gb_per_s_out:.3g} GB/s out"
        )

    def __str__(self) -> str:
        head = ("stage", "chunks", "busy ms", "of the run", "stalls ms", "ms per chunk", "GB/s")
        lines = [head]
        for name, of in self._by_stage().items():
            busy, count = sum(stage.busy for stage in of), sum(stage.chunks for stage in of)
            rate = self.stage_gb_per_s(name)
            share = busy / len(of) / self.seconds if self.seconds else math.nan
            lines.append(
                (
                    name,
                    str(count),
                    f"{1e3 * busy:.2f}",
                    f"{share:.2f}",
                    f"{1e3 * self.stalls[name]:.2f}",
                    f"{1e3 * busy / count:.3f}",
                    "–" if rate is None else f"{rate:.1f}",
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        table = [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        memory = f"{_size(self.device_bytes)} of device memory"
        notes = [f"note: {note}" for note in self.notes]
        if self.timed_chunks < sum(map(len, self.timelines)):
            notes.append(f"note: what the device did was timed of {self.timed_chunks:,} chunks")
        ceiling = self.duplex_ceiling
        if ceiling is not None:
            share = self.share_of_duplex(ceiling)
            memory += f"; {share:.3f} of the duplex ceiling, {ceiling:.1f} GB/s each way"
        return "\n".join([self.summary(), memory, "", *table, *([""] if notes else []), *notes])

    def to_dict(self) -> dict[str, Any]:
        """All attributes, and numbers derived from them, in types of JSON; timelines to the
        nanosecond.
        """
        values = asdict(self)
        timelines = values.pop("timelines")
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            **{key: list(of) if isinstance(of, tuple) else of for key, of in values.items()},
            "gb_per_s_in": self.gb_per_s_in,
            "gb_per_s_out": self.gb_per_s_out,
            "busy": self.busy,
            "stalls": self.stalls,
            "times": [f"{stage} {end}" for stage in STAGES for end in ("begin", "end")],
            "timelines": [
                [[None if math.isnan(t) else round(t, 9) for t in chunk] for chunk in of]
                for of in timelines
            ],
        }

    def to_json(self) -> str:
        """`to_dict()` as text, with a line for each chunk."""
        values = self.to_dict()
        timelines = values.pop("timelines")
        devices = [
            "  [" + ",".join(f"\n   {json.dumps(chunk)}" for chunk in of) + "\n  ]"
            for of in timelines
        ]
        head = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        listed = ",\n".join(devices)
        return head.removesuffix("\n}") + f',\n "timelines": [\n{listed}\n ]\n}}\n'

    @staticmethod
    def from_json(text: str) -> PipelineReport:
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is something else.
        """
        values = json.loads(text)
        kind = (
            (values.get("schema"), values.get("schema_version")) if isinstance(values, dict) else ()
        )
        if kind != (SCHEMA, SCHEMA_VERSION):
            raise ValueError(f"this is no {SCHEMA} of version {SCHEMA_VERSION}")
        values.setdefault("gpu", None)
        known = {field.name: values[field.name] for field in fields(PipelineReport)}
        known["devices"], known["notes"] = tuple(known["devices"]), tuple(known["notes"])
        known["timelines"] = [
            [tuple(math.nan if t is None else t for t in chunk) for chunk in of]
            for of in known["timelines"]
        ]
        return PipelineReport(**known)

    def save(self, path: str | Path, force: bool = False) -> None:
        """Writes `to_json()`.

        Raises:
            ValueError: the file exists and `force` is not set, or it cannot be written.
        """
        _write(path, self.to_json(), force)

    def trace(self, path: str | Path, force: bool = False) -> None:
        """Writes the timelines as a trace that https://ui.perfetto.dev and chrome://tracing show,
        with a process for each device and a thread for each stage.

        Raises:
            ValueError: the file exists and `force` is not set, or it cannot be written.
        """
        events: list[dict[str, Any]] = []
        for device, (name, timeline) in enumerate(zip(self.devices, self.timelines, strict=True)):
            about = {"ph": "M", "pid": device}
            events.append({**about, "name": "process_name", "args": {"name": name}})
            for lane, stage in enumerate(STAGES):
                found = list(intervals_of(timeline, stage))
                if not found:
                    continue
                args = {"name": stage}
                events.append({**about, "tid": lane, "name": "thread_name", "args": args})
                for chunk, (begin, end) in found:
                    span = {"ts": 1e6 * begin, "dur": 1e6 * (end - begin)}
                    where = {"ph": "X", "pid": device, "tid": lane, "name": f"{stage} {chunk}"}
                    of = {"chunk": chunk, "slot": chunk % self.num_slots}
                    events.append({**where, **span, "args": of})
        _write(path, json.dumps({"traceEvents": events}, indent=0) + "\n", force)

    def plot(self, path: str | Path, force: bool = False) -> None:
        """Draws the work of each slot over time, the first chunks closely and then the whole run.

        Raises:
            ValueError: the file exists and `force` is not set, its name has no picture's suffix, or
                it cannot be written.
            ImportError: matplotlib is not installed.
        """
        check_writable(path, force)
        with writing(path):
            instrument("stream_chart").draw(self, Path(path))


def intervals_of(timeline: Sequence[Times], stage: str) -> Iterator[tuple[int, Interval]]:
    """Number, begin and end of each chunk that went through a stage."""
    first = 2 * STAGES.index(stage)
    for chunk, times in enumerate(timeline):
        begin, end = times[first : first + 2]
        if not (math.isnan(begin) or math.isnan(end)):
            yield chunk, (begin, end)


def _untimed_after(timeline: Sequence[Times]) -> list[int]:
    """For each chunk, how many untimed ones follow it directly. They are assumed to be like it."""
    counts, untimed = [0] * len(timeline), 0
    for chunk in reversed(range(len(timeline))):
        if _is_timed(timeline[chunk]):
            counts[chunk], untimed = untimed, 0
        else:
            untimed += 1
    return counts


def _is_timed(times: Times) -> bool:
    return not all(map(math.isnan, times[ON_DEVICE]))


def _covered(intervals: list[Interval]) -> float:
    """Seconds in at least one of the intervals."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _rate(moved: int, seconds: float) -> float:
    return moved / seconds / 1e9 if seconds > 0 else 0.0


def _size(number: int) -> str:
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= of:
            return f"{number / of:.3g} {unit}"
    return f"{number} bytes"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _write(path: str | Path, text: str, force: bool) -> None:
    check_writable(path, force)
    with writing(path):
        Path(path).write_text(text, encoding="utf-8")
