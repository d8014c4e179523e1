"""Shapes that published models have, drawn by a seed, and what came out over all of them.

A benchmark's own cases are few and known beforehand. Here a seed draws 40 shapes for each op. Most
are rows of a published hidden size (`models.json`), with 1 to 65536 tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import random
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from diglot.bench.evidence import versions
from diglot.bench.harness import OURS, Benchmark, Case, Row
from diglot.bench.reports import by_case
from diglot.bench.result_files import read_file
from diglot.bench.running import row_of

# Of a draw: rows of a hidden size; of a vocabulary; at most 4 MB; of an odd length.
KINDS = ("hidden", "vocabulary", "small", "odd")
WEIGHTS = (62, 15, 15, 8)
SMALL_BYTES = 4 << 20
MOST_BYTES, LEAST_BYTES = 512 << 20, 8 << 10  # of an input
MOST_TOKENS = 1 << 16
ODD_ROWS = ((7, 1000003), (100003, 77), (8191, 4097), (4096, 12289), (33333, 769))
FLOAT32 = 4  # one case in this number
CASES = 40
LAYER_SIZES = 3  # tokens, N, K
CASE = ("direction", "dtype", "shape", "options", "timer")


@dataclass(frozen=True)
class Model:
    """Dimensions of a published model, by the names of its config.json."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    source: str


def published() -> list[Model]:
    """The models of `models.json`."""
    text = (resources.files("diglot.bench") / "models.json").read_text(encoding="utf-8")
    return [Model(**raw) for raw in json.loads(text)["models"]]


def sides_of(hidden: int, inner: int) -> list[tuple[int, int]]:
    """N and K of a model's layers: projections of the hidden size, to the inner one, and back."""
    return [(hidden, hidden), (inner, hidden), (hidden, inner)]


def sizes_of(benchmark: Benchmark) -> int:
    """How many sizes a shape of an op's has."""
    return 2 if benchmark.shape is None else len(benchmark.shape(1))


def shapes_of(
    config: dict[str, Any], tokens: Sequence[int] = (1, 256, 4096), sizes: int = 2
) -> list[Any]:
    """Rows that a model has, by its config.json: of its hidden size, and of its vocabulary.

    Args:
        sizes: of a shape. Three are those of products: tokens, N, K.

    Raises:
        ValueError: the file does not say them.
    """
    config = config.get("text_config", config)
    lengths: list[Any] = [
        config.get(name) for name in ("hidden_size", "intermediate_size", "vocab_size")
    ]
    if not all(isinstance(length, int) and length > 0 for length in lengths):
        raise ValueError("a model's config has hidden_size, intermediate_size and vocab_size")
    if sizes == LAYER_SIZES:
        sides = dict.fromkeys(sides_of(*lengths[:2]))
        return [(rows, *side) for side in sides for rows in tokens]
    return [(rows, length) for length in lengths for rows in tokens]


def draw(seed: str, count: int = CASES) -> list[tuple[tuple[int, int], torch.dtype]]:
    """A number of shapes (rows, length) and dtypes, the same for the same seed."""
    chance = random.Random(seed)
    models = published()
    drawn: list[tuple[tuple[int, int], torch.dtype]] = []
    while len(drawn) < count:
        dtype = torch.float32 if len(drawn) % FLOAT32 == FLOAT32 - 1 else torch.bfloat16
        kind = chance.choices(KINDS, WEIGHTS)[0]
        model = chance.choice(models)
        if kind == "odd":
            shape = chance.choice(ODD_ROWS)
        else:
            n = model.vocab_size if kind == "vocabulary" else model.hidden_size
            most = (SMALL_BYTES if kind == "small" else MOST_BYTES) // (n * dtype.itemsize)
            least = 1 if kind == "small" else SMALL_BYTES // (n * dtype.itemsize) + 1
            most = min(most, MOST_TOKENS)
            if most < least:
                continue
            shape = (tokens(chance, least, most), n)
        size = shape[0] * shape[1] * dtype.itemsize
        if LEAST_BYTES <= size <= MOST_BYTES and (shape, dtype) not in drawn:
            drawn.append((shape, dtype))
    return drawn


def tokens(chance: random.Random, least: int, most: int) -> int:
    """A number of tokens: a batch of sequences, or a few that are decoded."""
    count = int(math.exp(chance.uniform(math.log(least), math.log(most + 1))))
    step = 128 if count >= 1024 else 8 if count >= 64 else 1
    return max(least, min(most, count // step * step))


def options_of(benchmark: Benchmark, direction: str) -> dict[str, Any]:
    """The options of the first case that an op's benchmark has in a direction."""
    options = (case.options for case in benchmark.cases if case.direction == direction)
    return {name: value for name, value in next(options, {}).items() if name != "dim"}


def cases(benchmark: Benchmark, seed: int) -> list[Case]:
    """The cases of an op: each shape in every direction that it has."""
    made = []
    directions = dict.fromkeys(
        case.direction for case in benchmark.cases if case.direction in ("forward", "backward")
    )
    for shape, dtype in draw(f"{benchmark.op} {seed}"):
        is_small = shape[0] * shape[1] * dtype.itemsize <= SMALL_BYTES
        for direction in directions:
            timer = "captured" if is_small else "device"
            case = Case(direction, dtype, shape, options_of(benchmark, direction), timer)
            if benchmark.takes(case):
                made.append(case)
    return made


def kernels_hash(op: str) -> str:
    """A hash of all on which the times of an op of ours depend: kernels, plans, versions."""
    from diglot.backends.choosing import store_of
    from diglot.backends.tunables import short_name, tunables
    from diglot.tools.op_sources import families_of, ops_of, sources_hash

    gpu = short_name(torch.cuda.get_device_name()) if torch.cuda.is_available() else "none"
    parts = [sources_hash("cuda", op), sources_hash("triton", op), torch.__version__]
    entries = [entry for other in ops_of(op) for entry in store_of(other, gpu).entries.values()]
    values = tunables(gpu).values.items()
    families = families_of(op)  # which reads files, so once
    parts += [repr(sorted(map(repr, entries))), str(versions()["triton"])]
    parts += [repr(sorted(v for v in values if v[0].split(".")[0] in families))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def known(
    folder: Path | None,
    op: str,
    cases: Sequence[Case],
    kernels: str,
    providers: Collection[str],
) -> tuple[list[Row], list[Case]]:
    """What an earlier run has measured of the same kernels, and the cases that are left.

    A case is left unless it has a row of each of these providers.
    """
    path = None if folder is None else folder / f"{op}.json"
    if path is None or not path.exists():
        return [], list(cases)
    found = [row for row in read_file(path).content["rows"] if row.get("kernels") == kernels]
    of_case = [{name: row[name] for name in CASE} for row in found]
    have = [
        {row["provider"] for row, of in zip(found, of_case, strict=True) if of == row_of(case)}
        for case in cases
    ]
    left = [case for case, names in zip(cases, have, strict=True) if not {*providers} <= names]
    again = [row_of(case) for case in left]
    return [row for row, of in zip(found, of_case, strict=True) if of not in again], left


def compile_beforehand(ops: Sequence[str], seed: int, jobs: int) -> None:
    """Fills the compilers' caches in some processes: each calls once what it compiles."""
    command = [sys.executable, "-m", "diglot.bench.models", str(seed), str(jobs)]
    workers = [subprocess.Popen([*command, str(i), *ops]) for i in range(jobs)]
    for worker in workers:
        worker.wait()


def _compile(benchmark: Benchmark, case: Case) -> None:
    tensors = benchmark.inputs(case)
    for name in ("triton", "torch.compile", "liger"):
        if name in benchmark.providers:
            with contextlib.suppress(Exception):  # whoever measures it will say so
                call = benchmark.providers[name](case, tensors)
                if call is not None:
                    call()


# --- what came out -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """A case of ours beside the best peer of the case."""

    row: Row
    peer: Row

    @property
    def value(self) -> float:
        """The peer's time over ours."""
        return self.peer["time_us"] / self.row["time_us"]


def ratios(rows: Sequence[Row]) -> Iterator[Ratio]:
    """Of every timed row of ours that has a peer."""
    for case in by_case(rows):
        timed = {name: row for name, row in case.items() if "time_us" in row}
        ways = (*OURS, "formula")
        peers = [row for name, row in timed.items() if name.partition(",")[0] not in ways]
        if peers:
            best = min(peers, key=lambda row: row["time_us"])
            yield from (Ratio(row, best) for name, row in timed.items() if name in OURS)


Groups = dict[tuple[str, ...], tuple[list[Row], list[Ratio]]]


def groups(rows: Sequence[Row]) -> Groups:
    """Our timed rows, and their ratios, by op, direction and language."""
    names = ("op", "direction", "provider")
    found: Groups = {}
    for row in rows:
        if row["provider"] in OURS and "time_us" in row:
            found.setdefault(tuple([row[name] for name in names]), ([], []))[0].append(row)
    for ratio in ratios(rows):
        found[tuple([ratio.row[name] for name in names])][1].append(ratio)
    return found


WORST = 20  # cases in the table
WORST_HEADER = (
    "op", "direction", "language", "dtype", "shape", "time µs", "best peer", "peer / ours",
    "share of a copy", "plan",
)  # fmt: skip


def worst(rows: Sequence[Row]) -> list[list[str]]:
    """The cases in which the best peer is furthest ahead, under `WORST_HEADER`."""
    lines = []
    for ratio in sorted(ratios(rows), key=lambda ratio: ratio.value)[:WORST]:
        row, share = ratio.row, ratio.row.get("share_of_copy")
        shape = "x".join(map(str, row["shape"]))
        cells = [row["op"], row["direction"], row["provider"], row["dtype"], shape]
        cells += [f"{row['time_us']:.1f}", ratio.peer["provider"], f"{ratio.value:.2f}"]
        lines.append([*cells, "–" if share is None else f"{share:.2f}", row.get("chosen") or "–"])
    return lines


def main(seed: str, jobs: str, part: str, *ops: str) -> None:
    """Calls a part of the cases once, so that what they need is compiled."""
    from diglot.bench.selection import load

    pairs = [
        (load(op).benchmark, case) for op in ops for case in cases(load(op).benchmark, int(seed))
    ]
    for benchmark, case in pairs[int(part) :: int(jobs)]:
        torch._dynamo.reset()  # which compiles a function for a few shapes only
        _compile(benchmark, case)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
