"""Which benchmarks, and which of their cases: what `diglot bench` is asked for.

What cannot be had is a ValueError that says why.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from diglot.bench import models, plan_costs
from diglot.bench.harness import AUTOTUNED, COLD, RANKED, Benchmark, Case
from diglot.bench.reports import SHOWN
from diglot.names import suggestion, unknown_name
from diglot.reference.specs import all_op_names

# A benchmark has the name of its op's files.
OPS = all_op_names()
# These are no ops, and measure and write by themselves.
APART = ("graphs", "patched", "stream_cases", "stream_map")

MOST_ELEMENTS = 1 << 40
# Of the ranking: fits a cache, is some megabytes, and goes beyond every cache.
RANKED_SIZES = (1 << 16, 1 << 22, 1 << 27)
RANKED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Selection:
    """The chosen cases; an attribute that is empty or None leaves all.

    Attributes:
        sizes: numbers of elements, likewise; the benchmark makes shapes of them.
        timer: in place of that of cases timed on the device.
        ranking: whether the cases are those of the ranking, and the providers its five.
        models: a seed, which draws shapes of published models in place of the benchmark's own
            cases.
        plans: a way to choose plans, under which our kernels are timed beside their usual plans.
    """

    direction: str | None = None
    dtypes: Sequence[torch.dtype] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    sizes: Sequence[int] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    timer: str | None = None
    providers: Sequence[str] = ()
    ranking: bool = False
    models: int | None = None
    plans: str | None = None

    @property
    def only(self) -> Collection[str]:
        """The providers' names; empty for all."""
        if self.plans is not None:
            return plan_costs.providers(self.plans, self.providers)
        return self.providers or (RANKED if self.ranking else ())

    @property
    def is_everything(self) -> bool:
        """Whether it leaves every benchmark as it is."""
        return self == Selection()


@functools.cache
def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    if name not in (*OPS, *APART):
        raise unknown_name("OP", name, (*OPS, *APART))
    return importlib.import_module(f"diglot.bench.{name}")


def cases_of(benchmark: Benchmark, selection: Selection) -> list[Case]:
    """The cases of a benchmark that are chosen; there may be none."""
    cases = benchmark.cases
    sizes, dtypes = selection.sizes, selection.dtypes
    if selection.models is not None:
        drawn = models.cases(benchmark, selection.models) if benchmark.shape is not None else []
        return _asked([case for case in drawn if _is_chosen(case, selection, dtypes)], selection)
    if selection.ranking:
        if "formula" not in benchmark.providers:
            return []
        if benchmark.ranking is not None:
            cases = benchmark.ranking
        else:
            sizes = sizes or (() if selection.shapes else RANKED_SIZES)
            dtypes = dtypes or RANKED_DTYPES
    if sizes or selection.shapes:
        cases = _swept(benchmark, selection.shapes, sizes, dtypes)
    if selection.timer is not None:
        of_device = [case for case in cases if case.timer in ("device", selection.timer)]
        cases = _unique(replace(case, timer=selection.timer) for case in of_device)
    if AUTOTUNED in selection.providers:
        cases = _unique(replace(case, autotuned=True) for case in cases)
    return _asked([case for case in cases if _is_chosen(case, selection, dtypes)], selection)


def _asked(cases: list[Case], selection: Selection) -> list[Case]:
    """The cases; to compare plans, only those on cold caches, whose calls are graphs already."""
    if selection.plans is None:
        return cases
    return _unique(replace(case, timer="device") for case in cases if case.timer in COLD)


def _is_chosen(case: Case, selection: Selection, dtypes: Sequence[torch.dtype]) -> bool:
    return (
        (selection.direction is None or case.direction.startswith(selection.direction))
        and (not dtypes or case.dtype in dtypes)
        and _has_options(case.options, selection.options)
    )


def _has_options(options: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    return all(str(options.get(name)) == value for name, value in wanted.items())


def why_none(benchmark: Benchmark, selection: Selection) -> str:
    """Why no case of a benchmark is chosen, in one line: an option's values, if that is why."""
    for name, value in selection.options.items():
        known = dict.fromkeys(
            str(case.options[name]) for case in benchmark.cases if name in case.options
        )
        if not known:
            names = {name for case in benchmark.cases for name in case.options}
            return f"{benchmark.op} has no cases of an option {name!r}{suggestion(name, names)}"
        if value not in known:
            shown = (f"{of} (in tables {SHOWN[of]})" if of in SHOWN else of for of in known)
            hint = suggestion(value, known)
            return f"{benchmark.op} has cases of {name} {' and '.join(shown)}, not {value!r}{hint}"
    return f"{benchmark.op} has no such case"


def _swept(
    benchmark: Benchmark,
    shapes: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
    dtypes: Sequence[torch.dtype],
) -> list[Case]:
    """The directions and options of a benchmark's cases, with other shapes."""
    if benchmark.shape is None:
        raise ValueError(f"{benchmark.op} has cases of its own alone: no sizes, no shapes")
    # The host's time does not depend on the size.
    own = [case for case in benchmark.cases if case.timer != "host"]
    chosen = [*shapes, *map(benchmark.shape, sizes)]
    cases = _unique(
        replace(case, dtype=dtype, shape=shape, timer="device", autotuned=False)
        for case in own
        for dtype in dtypes or dict.fromkeys(case.dtype for case in own)
        for shape in chosen
    )
    taken = [case for case in cases if benchmark.takes(case)]
    for shape in chosen:
        if all(case.shape != shape for case in taken):
            known = ", ".join(sorted({str(len(case.shape)) for case in own}))
            raise ValueError(
                f"{benchmark.op} takes shapes of {known} dimensions, unlike "
                f"{'x'.join(map(str, shape))}"
            )
    return taken


def _unique(cases: Iterable[Case]) -> list[Case]:
    """Cases, each once: they are not hashable, because options are not."""
    found: list[Case] = []
    for case in cases:
        if case not in found:
            found.append(case)
    return found


def check_providers(benchmarks: Sequence[Benchmark], providers: Sequence[str]) -> None:
    """Raises ValueError if none of the benchmarks has a provider of some name."""
    known = list(dict.fromkeys(name for of in benchmarks for name in of.providers))
    absent = {name: package for of in benchmarks for name, package in of.absent.items()}
    for name in providers:
        if name in absent:
            raise ValueError(f"--provider {name}: its package, {absent[name]}, is not installed")
        if name not in known:
            raise unknown_name("--provider", name, known)


def parse_sizes(text: str) -> list[int]:
    """The sizes in a text such as "2^12..2^27" (doubling) or "1000,2^20"."""
    sizes: list[int] = []
    for part in text.split(","):
        ends = [_parse_size(end) for end in part.split("..")]
        if len(ends) > 2 or not 0 < ends[0] <= ends[-1] <= MOST_ELEMENTS:
            raise ValueError(
                "--sizes must be numbers of elements such as 2^12..2^27 (doubling) or 1000,2^20, "
                f"from 1 to 2^{MOST_ELEMENTS.bit_length() - 1}, not {text!r}"
            )
        size = ends[0]
        while size <= ends[-1]:
            sizes.append(size)
            size *= 2
    return list(dict.fromkeys(sizes))


def _parse_size(text: str) -> int:
    """A number such as 1000 or 2^20; 0 of another text."""
    match = re.fullmatch(r"(2\^)?([0-9]{1,12})", text.strip())
    if match is None:
        return 0
    return int(match[2]) if match[1] is None else 2 ** min(int(match[2]), 64)


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Names and values of texts such as "approximate=tanh"."""
    options = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise ValueError(f"--option must be NAME=VALUE, not {text!r}")
        options[name] = value
    return options
