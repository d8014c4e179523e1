"""What `diglot.graphs` costs and gains, beside eager calls and the graphs of `torch.compile`.

A training step, the host's time of a replay, a kernel inside a graph, and the memory of buckets;
graphs_serving.py has the sentence encoder.
`diglot bench graphs --results DIR` writes to DIR/<gpu>.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diglot
from diglot import graphs
from diglot.bench.harness import DEVICE, Row
from diglot.bench.reports import judged, run_parts
from diglot.graphs.state import State, StateCheck
from diglot.tools import measure
from diglot.tools.measure import Timing

WIDTH, BATCH, LAYERS = 256, 64, 8  # of the training step
NODES = 1000
CHECKED = (0, 10, 100, 1000)  # parameters
COPIED = (1, 2, 4)  # tensors
SIZES = (1, 8, 32, 64, 128, 256, 384, 512)  # buckets, of a network as wide as these
NARROW, WIDE = 1024, 4096
OURS, OTHER = "graphs of compiled", "reduce-overhead"  # of a compiled function
FIGURES = ("time_us", "p99_us", "pool_bytes", "reserved_bytes")  # that are printed

Part = Callable[[], Iterator[Row]]


def row_of(workload: str, provider: str, timer: str, **figures: Any) -> Row:
    """A row, of a result that was found to be right."""
    return {
        "op": "graphs",
        "provider": provider,
        "workload": workload,
        "timer": timer,
        "verified": True,
        "bars": [],
        **figures,
    }


def judge(row: Row, name: str, value: float, bound: float, at_least: bool = True) -> None:
    """Adds to a row what it reaches of a bar."""
    row["bars"].append(judged(name, value, bound, at_least))


def speed(rows: Mapping[str, Row], provider: str, other: str, figure: str = "time_us") -> float:
    """Of one provider over another."""
    return rows[other][figure] / rows[provider][figure]


# --- a training step -----------------------------------------------------------------------------

Pair = Callable[[Tensor, Tensor], Tensor]  # from inputs and targets to the loss


class Training:
    """A model, its optimizer, and a batch: the same from each new object."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(DEVICE)
        self.loss = nn.MSELoss()
        self.batch = tuple(torch.randn(BATCH, WIDTH, device=DEVICE) for _ in range(2))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=True, capturable=True)

    def pair(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, which torch.compile compiles."""
        return self.loss(self.model(inputs), targets)

    def eager(self, pair: Pair, clip: Callable[..., object]) -> Callable[[], Tensor]:
        """The loop's step."""

        def step() -> Tensor:
            self.optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                value = pair(*self.batch)
            value.backward()
            clip(self.parameters, 1.0)
            self.optimizer.step()
            return value.detach()

        return step

    def graphed(self, pair: Pair) -> graphs.TrainingStep:
        """The same step captured."""
        return graphs.training_step(
            pair, lambda value: value, self.optimizer, (self.batch, ()),
            max_norm=1.0, autocast=torch.bfloat16, clone=False,
        )  # fmt: skip


def _weights_after(training: Training, step: Callable[[], object]) -> list[Tensor]:
    for _ in range(10):
        step()
    return [parameter.detach().clone() for parameter in training.parameters]


def _distance(weights: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    gaps = [(one - other).flatten() for one, other in zip(weights, others, strict=True)]
    return torch.cat(gaps).norm().item()


def training() -> Iterator[Row]:
    """The launch-bound step, eagerly and captured; and compiled, by PyTorch's graphs and ours."""
    clip, steps, weights = diglot.clip_grad_norm_, {}, {}
    made = {name: Training() for name in ("eager", "graphs", OTHER, OURS)}
    steps["eager"] = made["eager"].eager(made["eager"].pair, clip)
    steps[OTHER] = made[OTHER].eager(torch.compile(made[OTHER].pair, mode=OTHER), clip)
    reported = {"graphs": made["graphs"].graphed(made["graphs"].pair)}
    reported[OURS] = made[OURS].graphed(torch.compile(made[OURS].pair))
    for name, step in reported.items():
        steps[name] = functools.partial(step, made[name].batch, ())
    for name, call in steps.items():
        weights[name] = _weights_after(made[name], call)
    # Ours are eager's, bit by bit. Compiled functions round otherwise: they go the same way.
    torch.testing.assert_close(weights["graphs"], weights["eager"], rtol=0, atol=0)
    way = _distance(weights["eager"], Training().parameters)
    for name, found in weights.items():
        apart = _distance(found, weights["eager"])
        if not apart < way / 2:
            raise AssertionError(f"{name}: {apart:.3g} from eager weights, which went {way:.3g}")
    other = Training()  # PyTorch's own clipping: whichever is quicker is what a graph replaces
    steps["eager, PyTorch's clipping"] = other.eager(other.pair, nn.utils.clip_grad_norm_)
    for name, step in reported.items():
        steps[f"{name}, batch in place"] = functools.partial(step, *step.inputs)
    rows = {
        name: row_of("training step", name, "wall", **timing.figures())
        for name, timing in measure.host(steps, rounds=15, calls=40, waits=True).items()
    }
    eager = min(rows[name]["time_us"] for name in rows if name.startswith("eager"))
    judge(rows["graphs"], "speed over eager", eager / rows["graphs"]["time_us"], 4.0)
    judge(rows[OURS], f"speed over {OTHER}", speed(rows, OURS, OTHER), 1.0)
    for name, step in reported.items():
        rows[name]["nodes"] = graphs.inspect(step).kinds
        rows[name]["report"] = step.measure().json()["graphs"]
    yield from rows.values()


# --- the host ------------------------------------------------------------------------------------


def host() -> Iterator[Row]:
    """Host time of a call beside the bare replay: inputs in place, and copied."""
    functions: dict[str, Callable[[], object]] = {}
    kept = []
    for count in COPIED:
        tensors = tuple(torch.randn(1024, device=DEVICE) for _ in range(count))
        with torch.no_grad():
            graphed = graphs.capture(lambda *xs: torch.stack(xs).sum(0), tensors)
            torch.testing.assert_close(graphed(*tensors), torch.stack(tensors).sum(0))
        kept.append(graphed)
        bare = next(iter(graphed.graphs.values())).graphs[0].replay
        functions[f"bare, {count}"] = bare
        functions[f"in place, {count}"] = functools.partial(graphed, *graphed.inputs)
        functions[f"copied, {count}"] = functools.partial(graphed, *tensors)
    with torch.no_grad():
        times = measure.host(functions)
    rows = {
        name: row_of("host", name, "host", **timing.figures()) for name, timing in times.items()
    }
    for count in COPIED:
        bare_us, in_place, copied = (
            rows[f"{name}, {count}"]["time_us"] for name in ("bare", "in place", "copied")
        )
        judge(
            rows[f"in place, {count}"], "µs beyond the bare replay", in_place - bare_us, 6.0, False
        )
        each = (copied - in_place) / count
        judge(rows[f"copied, {count}"], "µs for each copied tensor", each, 6.0, False)
    yield from rows.values()


def checks() -> Iterator[Row]:
    """Host time of a training step's checks of parameters and modes, by their number."""
    for count in CHECKED:
        layers = [nn.Linear(4, 4) for _ in range(count // 2)]
        check = StateCheck(State(nn.Sequential(*layers)), with_gradients=True).check
        calls = max(10, 100_000 // (count + 50))
        times = []
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(calls):
                check()
            times.append(1e6 * (time.perf_counter() - began) / calls)
        row = row_of("checks", f"{count} parameters", "host", **Timing.of(times).figures())
        judge(row, "µs", row["time_us"], 2 + 0.03 * count, False)
        yield row


# --- kernels and memory --------------------------------------------------------------------------


def nodes() -> Iterator[Row]:
    """A small kernel inside a graph: GELU of 4096 elements, ours and PyTorch's."""
    x = torch.randn(4096, device=DEVICE)
    ops: dict[str, Callable[[Tensor], Tensor]] = {"torch": F.gelu}
    for backend in ("cuda", "triton"):
        ops[backend] = functools.partial(diglot.gelu, backend=backend)
    captured, found = {}, {}
    for name, op in ops.items():

        def many(x: Tensor, op: Callable[[Tensor], Tensor] = op) -> Tensor:
            for _ in range(NODES):
                y = op(x)
            return y

        with torch.no_grad():
            captured[name] = graphs.capture(many, x)
            torch.testing.assert_close(captured[name](x), F.gelu(x))
        found[name] = graphs.inspect(captured[name])
    replays = {
        name: next(iter(graphed.graphs.values())).graphs[0].replay
        for name, graphed in captured.items()
    }
    rows = {}
    for name, timing in measure.interleaved(replays, budget_ms=300).items():
        figures = {
            key: value / NODES if key.endswith("_us") else value
            for key, value in timing.figures().items()
        }
        shape = found[name]
        first = next(node for node in shape.nodes if node.kind == "kernel")
        figures |= {"nodes": shape.kinds, "grid": first.grid, "block": first.block}
        rows[name] = row_of("node", name, "graph", **figures)
    for name in ("cuda", "triton"):
        judge(rows[name], "time over PyTorch's", speed(rows, "torch", name), 1.05, False)
    yield from rows.values()


def memory() -> Iterator[Row]:
    """What a pool reserves: for the largest bucket alone, and for eight buckets."""
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(6)
        for layer in (nn.Linear(NARROW, WIDE), nn.GELU(), nn.Linear(WIDE, NARROW))
    ]
    model = nn.Sequential(*layers).to(DEVICE)
    rows: dict[str, Row] = {}
    for name, sizes in (("largest alone", SIZES[-1:]), ("eight buckets", SIZES)):
        with torch.no_grad():
            graphed = graphs.capture(
                model, torch.randn(64, NARROW, device=DEVICE), dims={0: "n"}, buckets={"n": sizes},
                max_padding=1e9,
            )  # fmt: skip
            for size in sizes:
                x = torch.randn(size, NARROW, device=DEVICE)
                torch.testing.assert_close(graphed(x), model(x))
        report = graphed.report()
        figures = {"pool_bytes": report.pool_bytes, "report": report.json()["graphs"]}
        rows[name] = row_of("memory", name, "bytes", **figures)
    eight = rows["eight buckets"]
    over = eight["pool_bytes"] / rows["largest alone"]["pool_bytes"]
    judge(eight, "memory over the largest alone", over, 1.2, False)
    yield from rows.values()


# --- all of it -----------------------------------------------------------------------------------


def parts() -> dict[str, Part]:
    """The parts of the measurement by name, the shortest first."""
    from diglot.bench import graphs_serving

    return {
        "checks": checks,
        "host": host,
        "nodes": nodes,
        "memory": memory,
        "large": graphs_serving.large_batch,
        "training": training,
        "requests": graphs_serving.requests,
    }


def tell(row: Row) -> str:
    """A row in words."""
    figures = (f"{name} {row[name]:,.2f}" for name in FIGURES if name in row)
    bars = (f"{bar['name']} {bar['value']:.2f} ({bar['bound']})" for bar in row["bars"])
    return f"{row['workload']}, {row['provider']}: {', '.join([*figures, *bars])}"


def run(folder: Path | None = None) -> Path:
    """Measures, and writes graphs.json to a folder, by default to bench/results/<gpu>."""
    return run_parts("graphs", parts(), tell, folder)
