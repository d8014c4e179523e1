"""The exchanges that bench/collectives.py times, with a check of their results.

All inputs are random. A reference is the sum in float64, in the order of the ranks. Our results
must be that, rounded once, up to the error of sums in float32, and have the same bits on all ranks.
Peers may round after each rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import diglot
from diglot import distributed
from diglot.backends.registry import INTERPRET
from diglot.distributed.workspace import PROTOCOLS

COLUMNS = 8192  # of the rows that are normalized
MOST_SLOTS, MOST_PUSHED = 2 if INTERPRET else 16, 1 << 20
DTYPE, SIZE = torch.bfloat16, 2
HALF_ULP, OF_FLOAT32, EPS = 2.0**-8, 2.0**-20, 1e-5
# Ways that choose the protocol by size, by where x lies, or both x and the output.
PLACES = ("staged", "workspace", "workspace to workspace")
SHARED = (*PLACES[1:], "in place", "two shots in place", "direct shots")  # x is in the workspace
DIRECT = (PLACES[2], "direct shots")  # the output, too

Outputs = tuple[torch.Tensor, ...]


class Contender(NamedTuple):
    """One way to run an op.

    Attributes:
        provider: "nccl", "torch one-shot", "torch two-shot", or a backend of ours.
        way: of ours; "" for peers.
        pool: where its inputs lie: "plain", "shared" or "symmetric", as in `Memory`.
        call: from an input, and the number of its slot, to outputs.
        is_in_place: it overwrites its inputs. After k calls they are ranks^(k - 1) times the sum,
            exactly, if the number of ranks is a power of two.
    """

    provider: str
    way: str
    pool: str
    call: Callable[[torch.Tensor, int], torch.Tensor | Outputs]
    is_in_place: bool = False


class Memory:
    """Random inputs of all ranks, and the pools where contenders find them.

    Args:
        room: bytes of a pool.
        backends: ours, that run.
    """

    def __init__(self, room: int, backends: list[str]) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.room, self.backends = room, backends
        self.device = torch.device("cpu" if INTERPRET else f"cuda:{self.rank}")
        self.drawn = [self._random(rank, room // SIZE) for rank in range(self.ranks)]
        self.residual = self._random(self.ranks, room // SIZE)
        self.weight = self._random(self.ranks + 1, COLUMNS)
        self.plain = torch.empty_like(self.residual)
        self.symmetric: torch.Tensor | None = None
        if not INTERPRET:
            import torch.distributed._symmetric_memory as symmetric_memory

            self.symmetric = symmetric_memory.empty(room // SIZE, dtype=DTYPE, device=self.device)
            self.handle = symmetric_memory.rendezvous(self.symmetric, self.group)
        self.open()

    @property
    def group(self) -> Any:
        """The name of all ranks' group."""
        assert dist.group.WORLD is not None
        return dist.group.WORLD.group_name

    def open(self) -> None:
        """Makes the workspace, and the pools in it: collective."""
        self.space = distributed.Workspace(
            most_pushed=min(MOST_PUSHED, self.room), most_staged=self.room // 2,
            symmetric=2 * self.room,
        )  # fmt: skip
        self.shared, self.targets = (
            self.space.empty(self.room // SIZE, dtype=DTYPE) for _ in range(2)
        )

    def pool(self, name: str) -> torch.Tensor:
        pool: torch.Tensor = getattr(self, name)
        return pool

    def _random(self, seed: int, count: int) -> torch.Tensor:
        numbers = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(count, generator=numbers, device=self.device).to(DTYPE)


def slot_of(pool: torch.Tensor, slot: int, shape: tuple[int, ...]) -> torch.Tensor:
    """One of several tensors of this shape in a pool."""
    n = torch.Size(shape).numel()
    return pool[slot * n : (slot + 1) * n].view(shape)


def differs(got: torch.Tensor, expected: torch.Tensor, bound: Any) -> torch.Tensor:
    """How many elements are further away; NaN is."""
    return (~((got.double() - expected).abs() <= bound)).sum()


def alone(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, _: int) -> Any:
    """The function of an input, whichever slot it is."""
    return function(x)


class Case:
    """An op with tensors of one size.

    Attributes:
        op: its name, of a function of diglot.distributed.
        bytes: of the tensor, or of the whole that all ranks gather or scatter.
        shape: of a rank's input.
        slots: how many inputs take turns.
        contenders: ways to run it, which are timed.
    """

    def __init__(self, memory: Memory, op: str, size: int) -> None:
        self.memory, self.op = memory, op
        is_norm = op == "all_reduce_add_rms_norm"
        self.bytes = 0 if op == "barrier" else size * COLUMNS * SIZE if is_norm else size
        parts = memory.ranks if op == "all_gather" else 1
        count = max(1, self.bytes // SIZE // parts)
        self.shape = (size, COLUMNS) if is_norm else (count,)
        self.slots = min(MOST_SLOTS, memory.room // max(self.bytes, 1))
        if self.slots < 2:
            raise ValueError(f"{op}: {self.bytes} bytes are too many for pools of {memory.room}")
        makers: dict[str, Callable[[], Iterator[Contender]]] = {
            "all_reduce": self._all_reduces,
            "all_gather": self._all_gathers,
            "reduce_scatter": self._reduce_scatters,
            "all_reduce_add_rms_norm": self._norms,
            "barrier": self._barriers,
        }
        self.contenders = list(makers[op]())
        self.wholes = [drawn[: self.slots * count] for drawn in memory.drawn]
        if op not in ("all_gather", "barrier"):
            self.total = functools.reduce(torch.add, (whole.double() for whole in self.wholes))
            self.magnitude = functools.reduce(torch.add, (w.double().abs() for w in self.wholes))

    def reset(self, contender: Contender) -> None:
        """Writes the inputs."""
        own = self.wholes[self.memory.rank]
        self.memory.pool(contender.pool)[: own.numel()].copy_(own)

    def call(self, contender: Contender, slot: int) -> Outputs:
        pool = self.memory.pool(contender.pool)
        made = contender.call(slot_of(pool, slot, self.shape), slot)
        return (made,) if isinstance(made, torch.Tensor) else made

    def verify(self, contender: Contender, outputs: dict[int, Outputs], calls: int) -> None:
        """Raises ValueError unless all slots' outputs are right, after `calls` calls of each."""
        if self.op == "barrier":
            return self._verify_barrier(contender)
        wrong = torch.zeros((), dtype=torch.int64, device=self.memory.device)
        is_ours = contender.provider in self.memory.backends
        scale = float(self.memory.ranks) ** (calls - 1) if contender.is_in_place else 1.0
        for slot, made in outputs.items():
            wrong += self._wrong(slot, made, scale, is_ours)
            for output in made if is_ours and self.op.startswith("all_reduce") else ():
                first = output.clone()
                dist.broadcast(first.view(torch.uint8), 0)
                wrong += (first.view(torch.int16) != output.view(torch.int16)).sum()
        if (count := int(wrong)) > 0:
            raise ValueError(f"wrong result: {count} elements")
        return None

    def _wrong(self, slot: int, made: Outputs, scale: float, is_ours: bool) -> Any:
        memory = self.memory
        if self.op == "all_gather":
            parts = [slot_of(drawn, slot, self.shape) for drawn in memory.drawn]
            return (made[0] != torch.cat(parts)).sum()
        total = slot_of(self.total, slot, self.shape) * scale
        slack = slot_of(self.magnitude, slot, self.shape) * scale
        slack *= OF_FLOAT32 if is_ours else memory.ranks * HALF_ULP
        if self.op == "reduce_scatter":
            total, slack = (t.chunk(memory.ranks)[memory.rank] for t in (total, slack))
        bound = slack + HALF_ULP * total.abs()
        if self.op != "all_reduce_add_rms_norm":
            return differs(made[0], total, bound)
        normed, got = made
        total = total + slot_of(memory.residual, slot, self.shape)
        root = (got.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
        expected = got.double() * root * memory.weight.double()
        wrong = differs(got, total, bound + 2 * HALF_ULP * total.abs() + 1e-6)
        return wrong + differs(normed, expected, 4 * HALF_ULP * expected.abs() + 1e-6)

    def _verify_barrier(self, contender: Contender) -> None:
        """After a barrier each rank sees what the others wrote before theirs, however late."""
        memory = self.memory
        if memory.symmetric is None:
            return
        nothing = memory.symmetric[:1]
        for turn in range(1, 2 * memory.ranks + 1):
            if turn % memory.ranks == memory.rank:
                torch.cuda._sleep(200_000)
            memory.symmetric[:1].fill_(turn)
            contender.call(nothing, 0)
            seen = [memory.handle.get_buffer(r, (1,), DTYPE).clone() for r in range(memory.ranks)]
            contender.call(nothing, 0)
            if any(float(value) != turn for value in seen):
                raise ValueError("wrong result: a rank did not wait")

    def _peers(self) -> Iterator[tuple[str, str, Callable[[Any], Any], bool]]:
        """All-reduces: the provider, its pool, from an input to the output, whether in place."""
        memory = self.memory
        if memory.symmetric is None:
            return

        def nccl(x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return x

        def one_shot(x: torch.Tensor) -> Any:
            return torch.ops.symm_mem.one_shot_all_reduce(x, "sum", memory.group)

        def two_shot(x: torch.Tensor) -> Any:
            return torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", memory.group)

        yield "nccl", "plain", nccl, True
        yield "torch one-shot", "symmetric", one_shot, False
        yield "torch two-shot", "symmetric", two_shot, True

    def _all_reduces(self) -> Iterator[Contender]:
        memory = self.memory
        for name, pool, peer, is_in_place in self._peers():
            yield Contender(name, "", pool, functools.partial(alone, peer), is_in_place)

        def ours(x: torch.Tensor, slot: int, backend: str, protocol: Any, is_direct: bool) -> Any:
            out = slot_of(memory.targets, slot, self.shape) if is_direct else None
            return distributed.all_reduce(x, backend=backend, protocol=protocol, out=out)

        for backend in memory.backends:
            for way in (*PLACES, *PROTOCOLS):
                if way == "push" and self.bytes > memory.space.layout.most_pushed:
                    continue
                pool = "shared" if way in SHARED else "plain"
                protocol, is_direct = None if way in PLACES else way, way in DIRECT
                call = functools.partial(
                    ours, backend=backend, protocol=protocol, is_direct=is_direct
                )
                yield Contender(backend, way, pool, call)

    def _all_gathers(self) -> Iterator[Contender]:
        def nccl(x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(self.memory.ranks * x.numel())
            dist.all_gather_into_tensor(out, x)
            return out

        yield from self._with_parts(nccl, distributed.all_gather)

    def _reduce_scatters(self) -> Iterator[Contender]:
        def nccl(x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(x.numel() // self.memory.ranks)
            dist.reduce_scatter_tensor(out, x)
            return out

        yield from self._with_parts(nccl, distributed.reduce_scatter)

    def _with_parts(self, nccl: Any, ours: Any) -> Iterator[Contender]:
        memory = self.memory
        if memory.symmetric is not None:
            yield Contender("nccl", "", "plain", functools.partial(alone, nccl))
        for backend in memory.backends:
            for way, pool in (("staged", "plain"), ("workspace", "shared")):
                of = functools.partial(ours, backend=backend)
                yield Contender(backend, way, pool, functools.partial(alone, of))

    def _norms(self) -> Iterator[Contender]:
        memory = self.memory

        def norm(x: torch.Tensor, slot: int, backend: str, reduce: Any) -> Outputs:
            reduced, residual = reduce(x), slot_of(memory.residual, slot, self.shape)
            return diglot.add_rms_norm(
                reduced, residual, (COLUMNS,), memory.weight, EPS, backend=backend
            )

        def joined(x: torch.Tensor, slot: int, backend: str) -> Outputs:
            residual = slot_of(memory.residual, slot, self.shape)
            return distributed.all_reduce_add_rms_norm(
                x, residual, memory.weight, EPS, backend=backend
            )

        for name, pool, peer, is_in_place in self._peers():
            for backend in memory.backends:
                call = functools.partial(norm, backend=backend, reduce=peer)
                yield Contender(name, f"then add_rms_norm by {backend}", pool, call, is_in_place)
        for backend in memory.backends:
            reduce = functools.partial(distributed.all_reduce, backend=backend)
            one = functools.partial(joined, backend=backend)
            two = functools.partial(norm, backend=backend, reduce=reduce)
            for place, pool in (("staged", "plain"), ("workspace", "shared")):
                yield Contender(backend, f"one launch, {place}", pool, one)
                yield Contender(backend, f"two launches, {place}", pool, two)

    def _barriers(self) -> Iterator[Contender]:
        memory = self.memory

        def peer(x: torch.Tensor, _: int) -> Outputs:
            memory.handle.barrier(channel=0)
            return ()

        def ours(backend: str, x: torch.Tensor, _: int) -> Outputs:
            distributed.barrier(backend=backend)
            return ()

        if memory.symmetric is not None:
            yield Contender("torch", "", "plain", peer)
        for backend in memory.backends:
            yield Contender(backend, "", "plain", functools.partial(ours, backend))
