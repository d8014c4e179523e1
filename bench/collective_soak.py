"""Random all-reduces in a row, in graphs and out, on ranks that are late by turns.

Each launch has inputs that no launch before had at their place, and every element of the output is
compared on the device, as is the memory between outputs. All sums are integers that bfloat16 holds.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from diglot import distributed
from diglot.backends.registry import INTERPRET
from diglot.bench.collective_cases import SIZE, Memory
from diglot.bench.harness import Row
from diglot.distributed.workspace import PROTOCOLS

SETS, CALLS = (1, 4) if INTERPRET else (12, 256)  # sets of calls, each in a graph
SHORT, LONG, LONG_SHARE = (10, 12, 0.02) if INTERPRET else (15, 20, 0.02)  # powers of two
LARGEST, STEPS = 16, 8  # inputs are -16 to 15, and a step from 0 to 7 is added to all
UNTOUCHED = -300.0
LATE_SHARE, LATE_CYCLES = 0.02, 20_000  # inside of graphs; before a graph, ten times as many
EAGER_SHARE = 0.1
BUDGET_S, ROUNDS = 100.0, 32  # graphs, after which ranks agree whether there is time left


class Call(NamedTuple):
    begin: int
    size: int
    protocol: str | None


def draw_calls(numbers: random.Random, most_pushed: int, room: int) -> list[Call]:
    """Calls of random sizes and protocols, one behind the other in `room` elements at most."""
    calls, begin = [], 0
    for _ in range(CALLS):
        is_long = numbers.random() < LONG_SHARE
        power = numbers.uniform(SHORT, LONG) if is_long else numbers.uniform(0, SHORT)
        count = min(int(2**power), room - begin)
        protocol = numbers.choice([*PROTOCOLS, None])
        if protocol == "push" and count * SIZE > most_pushed:
            protocol = "pull"
        calls.append(Call(begin, count, protocol))
        begin += -(-count // 8) * 8 + 8
        if begin >= room:
            break
    return calls


class Set:
    """Calls that run in a row, with new inputs and a check of all outputs."""

    def __init__(
        self, memory: Memory, backend: str, calls: list[Call], bases: list[torch.Tensor], state: Any
    ) -> None:
        self.memory, self.backend, self.calls = memory, backend, calls
        self.shift, self.wrong = state
        end = calls[-1].begin + calls[-1].size
        self.base = bases[memory.rank][:end]
        self.total = functools.reduce(torch.add, (base[:end] for base in bases))
        self.x, self.out = memory.shared[:end], memory.targets[:end]
        self.is_output = torch.zeros(end, dtype=torch.bool, device=memory.device)
        for call in calls:
            self.is_output[call.begin : call.begin + call.size] = True

    def run(self, late: random.Random) -> None:
        self.shift.add_(1).remainder_(STEPS)
        torch.add(self.base, self.shift, out=self.x)
        self.out.fill_(UNTOUCHED)
        for begin, size, protocol in self.calls:
            if not INTERPRET and late.random() < LATE_SHARE:
                torch.cuda._sleep(late.randrange(LATE_CYCLES))
            x, out = (pool[begin : begin + size] for pool in (self.x, self.out))
            distributed.all_reduce(x, backend=self.backend, protocol=protocol, out=out)
        expected = self.total + self.memory.ranks * self.shift
        expected = torch.where(self.is_output, expected, UNTOUCHED)
        self.wrong += (self.out != expected).sum()


def soak(memory: Memory, backend: str, count: int, gathered: Callable[[Any], list[Any]]) -> Row:
    """A row: how many all-reduces ran, and how many elements were wrong on each rank.

    Args:
        count: of all-reduces, unless `BUDGET_S` is over before.
        gathered: a value of each rank, as a list.
    """
    begin = time.monotonic()
    numbers, late = random.Random(17), random.Random(memory.rank)
    room = memory.shared.numel()
    bases = []
    for rank in range(memory.ranks):
        seeded = torch.Generator(memory.device).manual_seed(rank)
        drawn = torch.randint(
            -LARGEST, LARGEST, (room,), generator=seeded, device=memory.device, dtype=torch.int8
        )
        bases.append(drawn.to(memory.shared.dtype))
    shift = torch.zeros((), dtype=memory.shared.dtype, device=memory.device)
    wrong = torch.zeros((), dtype=torch.int64, device=memory.device)
    most_pushed = memory.space.layout.most_pushed
    sets = [
        Set(memory, backend, draw_calls(numbers, most_pushed, room), bases, (shift, wrong))
        for _ in range(SETS)
    ]
    graphs = []
    for each in sets:
        each.run(late)  # compiles
        if not INTERPRET:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], capture_error_mode="thread_local"):
                each.run(late)
    done = sum(len(each.calls) for each in sets)
    eager = done
    while done < count and max(gathered(time.monotonic() - begin)) < BUDGET_S:
        for _ in range(ROUNDS):
            chosen, is_eager = numbers.randrange(SETS), INTERPRET or numbers.random() < EAGER_SHARE
            if not INTERPRET and late.random() < 10 * LATE_SHARE:
                torch.cuda._sleep(late.randrange(10 * LATE_CYCLES))
            if is_eager:
                sets[chosen].run(late)
                eager += len(sets[chosen].calls)
            else:
                graphs[chosen].replay()
            done += len(sets[chosen].calls)
            if done >= count:
                break
        memory.space.synchronize()
    wrongs = gathered(int(wrong))
    return {
        "op": "soak", "provider": backend, "way": "", "bytes": 0, "dtype": "bfloat16",
        "timer": "none", "calls": done, "eager": eager, "wrong": wrongs,
        "seconds": round(time.monotonic() - begin, 1), "verified": not any(wrongs), "bars": [],
    }  # fmt: skip
