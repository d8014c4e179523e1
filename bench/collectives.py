"""Times diglot.distributed on 2, 4 and 8 GPUs of one machine, beside NCCL and PyTorch.

    python -m diglot.bench.collectives --ranks 2,4,8 --results DIR
    python -m diglot.bench.collectives --ranks 2 --only all_reduce --sizes 4M,16M --soak 1000000

The program starts a process for each rank, and writes DIR/collectives.json after each size. Calls
run inside CUDA graphs. Inputs and outputs rotate through more memory than L2 holds, up to 16 of
each. A figure is the slower rank's: the median of interleaved runs. A graph that has just run on
all ranks precedes each timed one, so that ranks begin together. Results are verified before and
after. What fails is a row with its reason, and the rest goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import diglot
from diglot.backends.registry import INTERPRET, load_interpreter
from diglot.bench.collective_cases import Case, Contender, Memory, Outputs
from diglot.bench.collective_soak import soak
from diglot.bench.collective_tables import judge
from diglot.bench.evidence import RESULTS, gpu_short_name
from diglot.bench.harness import Row
from diglot.bench.reports import make_report, save
from diglot.tools.measure import Timing

OPS = ("barrier", "all_reduce_add_rms_norm", "all_reduce", "all_gather", "reduce_scatter")
SIZES = "1K,8K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M"
NORM_ROWS = (1, 8, 16, 128, 1024)
ROUNDS, MOST_CALLS, BYTES_OF_GRAPH = 7, 128, 256 << 20
ROOM, INTERPRETED_ROOM = 128 << 20, 64 << 10  # bytes of a pool
ENVIRONMENT = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    "GLOO_SOCKET_IFNAME": "lo",  # hosts may have no network
}
T = TypeVar("T")


class Calls:
    """Calls of a contender, one for each slot by turns, in a CUDA graph; or interpreted."""

    def __init__(self, case: Case, contender: Contender) -> None:
        self.case, self.contender = case, contender
        self.outputs: dict[int, Outputs] = {}
        turns = min(MOST_CALLS, BYTES_OF_GRAPH // max(case.bytes, 1)) // case.slots
        self.turns = 1 if INTERPRET else max(1, turns)
        case.reset(contender)
        self._run(1)  # compiles
        ran = diglot.last_run()
        is_ours = contender.provider in case.memory.backends
        self.variant = ran.variant if ran is not None and is_ours else ""
        if not INTERPRET:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self._run(self.turns)

    def _run(self, turns: int) -> None:
        for _ in range(turns):
            for slot in range(self.case.slots):
                self.outputs[slot] = self.case.call(self.contender, slot)

    def replay(self) -> None:
        if INTERPRET:
            self._run(self.turns)
        else:
            self.graph.replay()

    def verify(self) -> None:
        self.case.reset(self.contender)
        self.replay()
        self.case.verify(self.contender, self.outputs, self.turns)

    def time(self) -> float:
        """Microseconds of a call."""
        self.case.reset(self.contender)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.replay()
        begin.record()
        self.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / (self.turns * self.case.slots)


class Session:
    """What a rank measures, and what rank 0 writes."""

    def __init__(self, memory: Memory, path: Path, agreement: Any) -> None:
        self.memory, self.path, self.agreement = memory, path, agreement
        self.rows: list[Row] = []
        self.report = make_report("collectives", [], ranks=memory.ranks) if memory.rank == 0 else {}

    def gathered(self, mine: T) -> list[T]:
        every: list[Any] = [None] * self.memory.ranks
        dist.all_gather_object(every, mine, self.agreement)
        return every

    def together(self, work: Callable[[], T]) -> tuple[T | None, str]:
        """The result of what all ranks do, or the reason why one of them failed."""
        result, reason = None, ""
        try:
            result = work()
            self.memory.space.synchronize()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        reasons = {rank: why for rank, why in enumerate(self.gathered(reason)) if why}
        if not reasons:
            return result, ""
        self.memory.space.close()  # a peer may have waited for one that failed
        dist.barrier(self.agreement)
        self.memory.open()
        rank, why = next(iter(reasons.items()))
        return None, f"rank {rank}: {why}"

    def measure(self, op: str, size: int) -> None:
        """Adds rows for all contenders."""
        case, reason = self.together(lambda: Case(self.memory, op, size))
        if case is None:
            return self.tell([failed_row(op, "none", str(size), reason)])
        ready: list[tuple[Row, Calls]] = []
        rows = []
        for contender in case.contenders:
            row = {
                "op": op, "provider": contender.provider, "way": contender.way,
                "bytes": case.bytes, "shape": list(case.shape), "dtype": "bfloat16",
                "timer": "none" if INTERPRET else "graph", "verified": False, "bars": [],
            }  # fmt: skip
            rows.append(row)
            calls, row["reason"] = self.together(lambda c=contender: Calls(case, c))  # type: ignore[misc]
            if calls is not None:
                row["variant"] = calls.variant
                _, row["reason"] = self.together(calls.verify)
                ready += [] if row["reason"] else [(row, calls)]
        times: dict[int, list[float]] = {number: [] for number in range(len(ready))}
        failed = ""
        if not INTERPRET:
            _, failed = self.together(lambda: self._time(ready, times))
        every = self.gathered(times)
        for number, (row, calls) in enumerate(ready):
            _, row["reason"] = (None, failed) if failed else self.together(calls.verify)
            row["verified"] = not row["reason"]
            slowest = [max(of) for of in zip(*(one[number] for one in every), strict=True)]
            if row["verified"] and slowest:
                row |= Timing.of(slowest).figures()
        for row in rows:
            if not row["reason"]:
                del row["reason"]
        return self.tell(rows)

    def _time(self, ready: list[tuple[Row, Calls]], times: dict[int, list[float]]) -> None:
        for turn in range(-1, ROUNDS):
            for number, (_, calls) in enumerate(ready):
                us = calls.time()
                if turn >= 0:  # the first one uploads the graph
                    times[number].append(us)

    def tell(self, rows: list[Row]) -> None:
        self.rows += rows
        if self.memory.rank != 0:
            return
        first = rows[0]
        said = [
            f"{row['provider']} {row['way']} ".replace("  ", " ")
            + (f"{row['time_us']:.2f}" if "time_us" in row else row.get("reason", "right"))
            for row in rows
        ]
        what = f"{self.memory.ranks} ranks, {first['op']}, {first['bytes']} bytes"
        print(f"{time.strftime('%X')} {what}: {'; '.join(said)}", flush=True)

    def write(self, incomplete: str = "") -> None:
        """Writes the rows, with others that the file has of this commit and GPU."""
        if self.memory.rank != 0:
            return
        report = {**self.report, "rows": list(self.rows)}
        if incomplete:
            report["incomplete"] = incomplete
        content = read(self.path)
        before = content["ranks"].get(str(self.memory.ranks), {})
        if all(before.get(name) == report[name] for name in ("gpu", "commit", "sources")):
            measured = set(map(key_of, self.rows))
            kept = [row for row in before["rows"] if key_of(row) not in measured]
            report["rows"] = [*kept, *report["rows"]]
        report["rows"] = judge(report["rows"], self.memory.ranks)
        content |= {"gpu": report["gpu"]}
        content["ranks"][str(self.memory.ranks)] = report
        save(content, self.path)


def read(path: Path) -> dict[str, Any]:
    """The file of results, or an empty one: a report for each number of ranks."""
    with contextlib.suppress(FileNotFoundError):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"op": "collectives", "gpu": None, "ranks": {}}


def run_rank(options: argparse.Namespace) -> None:
    """The work of one rank."""
    rank = int(os.environ["RANK"])
    if not INTERPRET:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "gloo" if INTERPRET else "nccl",
        device_id=None if INTERPRET else torch.device("cuda", rank),
        timeout=timedelta(seconds=options.limit),
    )
    backends = ["cuda", "triton"]
    if INTERPRET and load_interpreter()[0] is None:
        backends.remove("cuda")
    with torch.inference_mode():
        memory = Memory(INTERPRETED_ROOM if INTERPRET else ROOM, backends)
        session = Session(memory, options.path, dist.new_group(backend="gloo"))
        parts = [(op, size) for op in options.only for size in sizes_of(op, options)]
        for number, (op, size) in enumerate(parts, 1):
            session.measure(op, size)
            is_last = number == len(parts) and not options.soak
            session.write("" if is_last else f"{number} of {len(parts)} sizes")
        for backend in memory.backends if options.soak else ():
            work = functools.partial(soak, memory, backend, options.soak, session.gathered)
            row, reason = session.together(work)
            session.tell([row or failed_row("soak", backend, "", reason)])
            session.write("" if backend == memory.backends[-1] else "soak")
    memory.space.close()
    dist.destroy_process_group()


def key_of(row: Row) -> tuple[Any, ...]:
    """What tells a row from others."""
    return tuple(row[name] for name in ("op", "provider", "way", "bytes"))


def failed_row(op: str, provider: str, way: str, reason: str) -> Row:
    return {
        "op": op, "provider": provider, "way": way, "bytes": 0, "timer": "none",
        "verified": False, "bars": [], "reason": reason,
    }  # fmt: skip


def sizes_of(op: str, options: argparse.Namespace) -> list[int]:
    """The sizes of an op: bytes, or rows."""
    if op == "barrier":
        return [0]
    return list(NORM_ROWS) if op == "all_reduce_add_rms_norm" else options.sizes


def size(text: str) -> int:
    """Bytes: a number, with K or M behind it."""
    return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)


def watch(ranks: list[subprocess.Popen[bytes]], seconds: float) -> str:
    """Waits for processes. If one fails, or time is over, ends all, and says why."""
    end, reason = time.monotonic() + seconds, ""
    while not reason and any(rank.poll() is None for rank in ranks):
        time.sleep(0.2)
        codes = [rank.poll() for rank in ranks]
        if any(codes):
            time.sleep(2)  # others may say more
            reason = f"exit codes of the ranks: {[rank.poll() for rank in ranks]}"
        elif time.monotonic() > end:
            reason = f"ended after {seconds:.0f} s"
    for rank in ranks:
        rank.kill()
        rank.wait()
    return reason if reason or not any(r.returncode for r in ranks) else "a rank failed"


def start(ranks: int, arguments: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """A process for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "diglot.bench.collectives", *arguments]
    return [
        subprocess.Popen(command, env={**os.environ, **ENVIRONMENT, **place, "RANK": str(rank)})
        for rank in range(ranks)
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4,8", help="numbers of GPUs")
    parser.add_argument("--results", type=Path, help="the folder of collectives.json")
    parser.add_argument("--sizes", default=SIZES, help="bytes of tensors")
    parser.add_argument("--only", default=",".join(OPS), help="ops")
    parser.add_argument("--soak", type=int, default=0, help="checked all-reduces of each backend")
    parser.add_argument("--limit", type=float, default=580, help="seconds, at most")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := {*options.only} - {*OPS}:
        parser.error(f"--only knows {', '.join(OPS)}, not {', '.join(unknown)}")
    options.sizes = [size(text) for text in options.sizes.split(",")]
    options.ranks = [int(text) for text in options.ranks.split(",")]
    folder = options.results
    if folder is None:
        folder = RESULTS / gpu_short_name(torch.cuda.get_device_name())
    options.path = folder / "collectives.json"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parse(arguments)
    if "RANK" in os.environ:
        run_rank(options)
        return 0
    end, failed = time.monotonic() + options.limit, False
    for number, ranks in enumerate(options.ranks):
        seconds = (end - time.monotonic()) / (len(options.ranks) - number)
        reason = watch(start(ranks, arguments), seconds)
        print(f"{ranks} ranks: {reason or 'done'}", flush=True)
        failed |= bool(reason)
        content = read(options.path)
        if reason and str(ranks) in content["ranks"]:
            content["ranks"][str(ranks)]["incomplete"] = reason
            save(content, options.path)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
