"""Measured plans on disk: `configs/<op>/<gpu>.json`, and those that a user's tuning adds.

A file has entries, one for each problem that was measured: a launcher, a backend, dtypes, a layout
and a shape. An entry has a time for each plan that was tried. A plan is named by the numbers in
which it differs from the planner's own choice.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diglot.backends.tunable_files import TunableError
from diglot.backends.tunables import named_numbers, specs

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

VERSION = 1
# An entry serves shapes within these factors of its own, in the first dimension and in others.
FIRST_FACTOR, FACTOR = 4.0, 2.0
# A plan is taken if it was so much faster than the planner's own. A near shape tells less: with a
# gain of 1 % it chose worse than the planner (bench/stored_plans.py).
EXACT_GAIN, NEAR_GAIN = 1.01, 1.05
# In the name of a plan that means another at another shape: it limits a thread's registers, or
# counts shapes in the planner's order.
HERE_ALONE = (".registers=", ".skipped_shapes=")
Numbers = Mapping[str, int]  # by the names of tunables, for every entry of a table
# Ops whose plans are those of another: what surrounds a product hardly changes which is best.
KEPT_AS = dict.fromkeys(("linear", "addmm", "bmm", "baddbmm", "mlp"), ("matmul", "matmul_forward"))
# Ops whose best plan a near shape does not tell: it depends on how many rounds of tiles there are.
EXACT_ONLY = ("matmul", "grouped_mm", "scaled_mm")
# Types of products whose plans are those of another type: the same instructions, bytes and speed.
TIMED_AS = {"float16": "bfloat16", "float8_e5m2": "float8_e4m3fn"}


@dataclass(frozen=True)
class Problem:
    """The facts that two calls share if the same plan is best for both.

    Attributes:
        op: the op, whose file has it.
        launcher: its direction, such as "softmax_forward".
        backend: "cuda" or "triton".
        dtypes: of the arrays that the planner names.
        layout: how these lie in memory, in the planner's words.
        shape: sizes on which the time depends; for rows, their number, then their length.
    """

    op: str
    launcher: str
    backend: str
    dtypes: tuple[str, ...]
    layout: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """All of the problem except the shape. Entries of other kinds say nothing about it."""
        return self.op, self.launcher, self.backend, self.dtypes, self.layout, len(self.shape)


@dataclass(frozen=True)
class Timing:
    """The time of a plan.

    Attributes:
        us: the median, in microseconds.
        run: the number of the run that measured it, in the file's `runs`.
    """

    us: float
    run: int


@dataclass(frozen=True)
class Entry:
    """The measured times of a problem.

    Attributes:
        problem: the problem.
        timings: by the plan's name; "" is the planner's own choice.
    """

    problem: Problem
    timings: Mapping[str, Timing]

    @property
    def best(self) -> str:
        """The name of the best plan; the planner's own, if no other is 1 % faster."""
        return self._best_by(EXACT_GAIN)

    @property
    def best_nearby(self) -> str:
        """The plan for a near problem: the best; the planner's own, if no other is 5 % faster.

        Plans that limit registers are left out: with longer rows their programs would spill. So
        are plans that skip shapes: the planner's next shape is another for other rows. Where such
        a plan is 5 % faster than what remains, the planner's own is the surer choice.
        """
        names = [name for name in self.timings if not any(part in name for part in HERE_ALONE)]
        fastest = min(timing.us for timing in self.timings.values())
        return self._best_by(
            NEAR_GAIN, [name for name in names if self.timings[name].us <= NEAR_GAIN * fastest]
        )

    def _best_by(self, gain: float, names: Iterable[str] | None = None) -> str:
        names = list(self.timings if names is None else names)
        if not names:
            return ""
        name = min(names, key=lambda other: self.timings[other].us)
        own = self.timings.get("")
        return "" if own is not None and own.us <= gain * self.timings[name].us else name


@dataclass
class Store:
    """The entries of an op on a GPU.

    Attributes:
        runs: the measuring runs, by number: date, GPU, versions, a hash of the sources.
        entries: by problem; `put` changes them.
    """

    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    entries: dict[Problem, Entry] = field(default_factory=dict)
    # What `find` keeps: a call of a new shape waits for it.
    _by_kind: dict[tuple[Any, ...], list[tuple[list[float], Entry]]] | None = field(
        default=None, repr=False, compare=False
    )

    def find(self, problem: Problem) -> tuple[str, Entry | None]:
        """("exact", its entry), ("near", the nearest that may serve it) or ("model", the nearest of
        its kind, which may not; None without one).

        How far apart two shapes are is the Euclidean distance of their logarithms.
        """
        exact = self.entries.get(problem)
        if exact is not None:
            return "exact", exact
        logarithms = [*map(_log, problem.shape)]
        alike = self._alike(problem)
        by_distance = sorted(
            (math.dist(theirs, logarithms), entry.problem.shape, i)
            for i, (theirs, entry) in enumerate(alike)
        )
        for _, _, i in by_distance:
            if serves(alike[i][1].problem, problem):
                return "near", alike[i][1]
        return "model", alike[by_distance[0][2]][1] if by_distance else None

    def _alike(self, problem: Problem) -> list[tuple[list[float], Entry]]:
        """The entries of a problem's kind, each with the logarithms of its shape."""
        by_kind = self._by_kind  # whole, whatever other threads do
        if by_kind is None:
            by_kind = {}
            for entry in self.entries.values():
                logarithms = [*map(_log, entry.problem.shape)]
                by_kind.setdefault(entry.problem.kind, []).append((logarithms, entry))
            self._by_kind = by_kind
        return by_kind.get(problem.kind, [])

    def put(self, entry: Entry) -> None:
        """Keeps an entry in place of that of the same problem."""
        self.entries[entry.problem] = entry
        self._by_kind = None

    def add(self, problem: Problem, times_us: Mapping[str, float], run: Mapping[str, Any]) -> None:
        """Adds the times of a problem from a run. Other plans keep their times."""
        number = next((n for n, known in self.runs.items() if known == dict(run)), None)
        if number is None:
            number = max(self.runs, default=0) + 1
            self.runs[number] = dict(run)
        before = self.entries.get(problem)
        timings = dict(before.timings) if before is not None else {}
        timings |= {name: Timing(round(us, 3), number) for name, us in times_us.items()}
        self.put(Entry(problem, timings))


def _log(size: int) -> float:
    return math.log2(max(size, 1))


def serves(measured: Problem, problem: Problem) -> bool:
    """Whether the times of one problem may serve another."""
    if measured.kind != problem.kind or problem.op in EXACT_ONLY:
        return False
    factors = (FIRST_FACTOR if len(problem.shape) > 1 else FACTOR, *(FACTOR,) * len(problem.shape))
    return all(
        max(a, b, 1) <= factor * max(min(a, b), 1)
        for a, b, factor in zip(measured.shape, problem.shape, factors, strict=False)
    )


def plan_name(numbers: Numbers) -> str:
    """The name of a plan: "a.b.c=1, d.e.f=2"; "" of the planner's own choice."""
    return ", ".join(f"{name}={value}" for name, value in sorted(numbers.items()))


def plan_numbers(name: str) -> dict[str, int]:
    """The numbers of a plan, checked.

    Raises:
        ValueError: the text is no such name, or names no tunable, or a number is out of range.
    """
    return dict(_plan_numbers(name))


@functools.lru_cache(1 << 12)  # a file of many entries has few names
def _plan_numbers(name: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for pair in filter(None, name.split(", ")):
        tunable, equals, value = pair.partition("=")
        if not equals or not value.lstrip("-").isdigit():
            raise TunableError(f"{pair!r} is no number of a tunable")
        for full in named_numbers(tunable):
            specs()[full].check(int(value), tunable)
            if specs()[full].same_everywhere:
                raise TunableError(f"{tunable} is the same for every call: results depend on it")
        numbers[tunable] = int(value)
    return numbers


# --- files ---------------------------------------------------------------------------------------


def user_folder() -> Path:
    """Where tuning writes: $DIGLOT_CONFIGS, else a folder of the user's cache."""
    chosen = os.environ.get("DIGLOT_CONFIGS")
    if chosen:
        return Path(chosen)
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # the user's home is unknown
        cache = tempfile.gettempdir()
    return Path(cache) / "diglot/configs"


def shipped_folder() -> Traversable:
    """The stores that are part of diglot."""
    return resources.files("diglot.configs")


def read_all(op: str, gpu: str) -> Store:
    """The shipped store of an op on a GPU, with the entries that the user has tuned, which win."""
    made = Store()
    for folder in (shipped_folder(), user_folder()):
        found = read(op, folder / op / f"{gpu}.json")
        moved = {number: len(made.runs) + i + 1 for i, number in enumerate(found.runs)}
        made.runs |= {moved[number]: run for number, run in found.runs.items()}
        for problem, entry in found.entries.items():
            timings = {n: Timing(t.us, moved.get(t.run, 0)) for n, t in entry.timings.items()}
            made.put(Entry(problem, timings))
    return made


def read(op: str, file: Traversable | Path) -> Store:
    """The store of an op in a file. Wrong entries are left out, with one warning."""
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Store()
    except (OSError, UnicodeDecodeError) as error:
        _warn(file, str(error))
        return Store()
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        entries = content["entries"]
        runs = {int(number): dict(run) for number, run in content["runs"].items()}
        if not isinstance(entries, list):
            raise ValueError("its entries are no list")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _warn(file, f"{type(error).__name__}: {error}")
        return Store()
    store = Store(runs)
    wrong: list[str] = []
    for raw in entries:
        try:
            entry = _entry(op, raw)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            wrong.append(str(error))
            continue
        store.put(entry)
    if wrong:
        _warn(file, f"{len(wrong)} of {len(entries)} entries, the first: {wrong[0]}")
    return store


def _warn(file: Traversable | Path, reason: str) -> None:
    warnings.warn(f"diglot ignores measured plans in {file}: {reason}", stacklevel=2)


def _entry(op: str, raw: Mapping[str, Any]) -> Entry:
    """An entry of a file."""
    unknown = raw.keys() - {"launcher", "backend", "dtypes", "layout", "shape", "plans"}
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    shape = tuple(raw["shape"])
    if not shape or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"the shape {raw['shape']!r}")
    names = [raw["launcher"], raw["backend"], raw["layout"], *raw["dtypes"]]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"no names: {names}")
    where = raw["launcher"], raw["backend"], tuple(raw["dtypes"]), raw["layout"], shape
    problem = Problem(op, *where)
    timings: dict[str, Timing] = {}
    for name, (us, run) in raw["plans"].items():
        if type(run) is not int or not 0 < float(us) < math.inf:
            raise ValueError(f"the time {us!r} of {name!r}")
        plan_numbers(name)
        timings[name] = Timing(float(us), run)
    if not timings:
        raise ValueError("an entry without plans")
    return Entry(problem, timings)


def write(store: Store, file: Path) -> None:
    """Writes a store by an atomic rename, an entry to a line."""
    lines = []
    for entry in sorted(store.entries.values(), key=_order):
        p = entry.problem
        times = sorted(entry.timings.items(), key=lambda pair: pair[1].us)
        plans = {name: [timing.us, timing.run] for name, timing in times}
        raw = {"launcher": p.launcher, "backend": p.backend, "dtypes": p.dtypes}
        lines.append(json.dumps(raw | {"layout": p.layout, "shape": p.shape, "plans": plans}))
    runs = [f"{json.dumps(str(n))}: {json.dumps(run)}" for n, run in store.runs.items()]
    text = (
        f'{{"version": {VERSION},\n"about": "docs/tuning.md says what an entry has.",\n'
        f'"runs": {{\n{_joined(runs)}\n}},\n"entries": [\n{_joined(lines)}\n]}}\n'
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _order(entry: Entry) -> tuple[Any, ...]:
    return entry.problem.kind[:-1], entry.problem.shape


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


@contextlib.contextmanager
def updating(op: str, file: Path) -> Iterator[Store]:
    """Context manager: a file's store, which is written at its end; one process at a time."""
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / f".{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            try:
                store = read(op, file)
            except UserWarning as warning:
                raise ValueError(f"{warning}; move it away before times are added") from None
        yield store
        write(store, file)
