"""What a benchmark is, as data: cases, providers and bars. bench/running.py runs it.

`bench/<op>.py` describes an op so. A provider is a way of computing a case: a function from the
case and its tensors to a call that returns the result.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from diglot.reference.specs import Expected, OpSpec, nbytes
from diglot.tools.accuracy import Error

OURS = ("cuda", "triton")
# The five ways of writing an op that `diglot bench --ranking` compares: the manual formula,
# PyTorch's own op, one of the two compiled, and the two kernels of ours.
RANKED = ("formula", "torch", "torch.compile", "triton", "cuda")
# The modes of `torch.compile`, by provider. To autotune takes long, and only cases that ask for it
# are. It is done without the compiler's CUDA graphs, which copy their inputs in every call.
AUTOTUNED = "max-autotune"
MODES = {"torch.compile": "default", AUTOTUNED: "max-autotune-no-cudagraphs"}
# Timers of one call on cold caches.
COLD = ("device", "captured")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where nothing is measured
RECORDED = "recorded"  # the direction of a forward call whose input requires grad

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[], Any]
Row = dict[str, Any]
Rows = dict[str, Row]
Function = Callable[..., Any]


@dataclass(frozen=True)
class ErrorOf:
    """What a call's results are worth: the worst of what `diglot.tools.accuracy.Error` says."""

    worst_ulp: float
    worst_absolute: float
    worst_share: float
    failing: float

    @classmethod
    def of(cls, errors: Sequence[Error]) -> ErrorOf:
        """The worst of the results' errors."""
        return cls(*(max(getattr(e, f.name) for e in errors) for f in fields(cls)))


@dataclass(frozen=True)
class Case:
    """One thing to compute.

    Attributes:
        direction: "forward" or "backward".
        timer: "device": on a cold cache. "captured": likewise, of a call that is a CUDA graph.
            "warm": each call after an equal one. "graph": in a CUDA graph of many, warm. "host":
            the host's time.
        autotuned: whether it asks for the provider `AUTOTUNED`.
    """

    direction: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    timer: str = "device"
    autotuned: bool = False


@dataclass(frozen=True)
class OtherCall:
    """A call that has another right result than its case: what ours are compared with."""

    call: Call
    expected: Callable[[], Expected]

    def __call__(self) -> Any:
        return self.call()


@dataclass(frozen=True)
class Bar:
    """What a case must reach.

    Attributes:
        applies: whether it speaks of a row.
        value: the number of a row, from it and the rows of the same case by provider.
        at_least: whether the bound is a floor, not a ceiling.
        mean: the least geometric mean of the values of all rows of a language, if one is asked for.
    """

    name: str
    applies: Callable[[Row], bool]
    value: Callable[[Row, Rows], float]
    bound: Callable[[Row], float]
    at_least: bool = True
    mean: Callable[[Row], float] | None = None


@dataclass
class Benchmark:
    """An op's benchmark, as data.

    Attributes:
        expected: the right values of what a call returns, or of each of several results. None for
            an op in place.
        bytes_moved: of a case: each input read once and each output written once.
        error: of an op in place: from a case, its tensors and a call to what the call made of them.
        prepare: of an op in place: before each timed call, untimed.
        flops: of an op that is bound by arithmetic: its operations.
        shape: from a number of elements, the shape of a sweep; None: sizes cannot be chosen.
        takes: whether a case can be, by its shape, say.
        operands: from a case and its tensors, what functions given to `way` take.
        keywords: from a case, their keyword arguments.
        setting: in which a case is measured, such as PyTorch's switches.
        on_demand: providers that are measured only where they are asked for by name.
        ranking: cases of the ranking; None: those of its sizes.
        code: by provider, the functions that a user writes or calls for it.
        absent: peers that are not installed, and by what name they would be imported.
        how: by provider, a remark for tables: a few words, and after a colon more of them.
    """

    op: str
    cases: list[Case]
    inputs: Callable[[Case], Tensors]
    expected: Callable[[Case, Tensors], Expected | tuple[Expected, ...]] | None
    bytes_moved: Callable[[Case, Tensors], int]
    bars: list[Bar]
    error: Callable[[Case, Tensors, Call], ErrorOf] | None = None
    prepare: Callable[[Tensors], None] | None = None
    flops: Callable[[Case, Tensors], int] | None = None
    shape: Callable[[int], tuple[int, ...]] | None = None
    takes: Callable[[Case], bool] = lambda case: True
    operands: Callable[[Case, Tensors], tuple[Any, ...]] = lambda case, tensors: tensors
    keywords: Callable[[Case], dict[str, Any]] = lambda case: case.options
    setting: Callable[[Case], AbstractContextManager[None]] = lambda case: nullcontext()
    on_demand: Collection[str] = ()
    ranking: list[Case] | None = None
    providers: dict[str, Callable[[Case, Tensors], Call | None]] = field(default_factory=dict)
    code: dict[str, tuple[Function, ...]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)

    def provider(self, name: str, *code: Function) -> Callable[[Callable], Callable]:
        """Decorator: a way of computing a case; None where it cannot.

        Args:
            code: the functions that a user writes for it; by default the one decorated.
        """

        def add(function: Callable[[Case, Tensors], Call | None]) -> Callable:
            self.providers[name] = function
            self.code[name] = code or (function,)
            return function

        return add

    def way(
        self,
        name: str,
        functions: Mapping[str, Function],
        *,
        mode: str | None = None,
        operands: Callable[[Case, Tensors], tuple[Any, ...]] | None = None,
        code: Sequence[Function] = (),
    ) -> None:
        """Adds a provider that calls a function of the case's direction, where there is one.

        Args:
            functions: by direction; they take `operands` and `keywords`.
            mode: in which `torch.compile` compiles them; None: not at all.
            operands: other ones than the benchmark's.
            code: what a user writes for it, where that is more than the functions.
        """

        @self.provider(name, *(code or dict.fromkeys(functions.values())))
        def provide(case: Case, tensors: Tensors) -> Call | None:
            if case.direction not in functions or (name == AUTOTUNED and not case.autotuned):
                return None
            function = functions[case.direction]
            if mode is not None:
                function = torch.compile(function, dynamic=False, mode=mode)
            taken = (operands or self.operands)(case, tensors)
            return functools.partial(function, *taken, **self.keywords(case))

    def compiled(self, functions: Mapping[str, Function], **how: Any) -> None:
        """Adds functions that `torch.compile` compiles, again for each case, in each of `MODES`."""
        for name, mode in MODES.items():
            self.way(name, functions, mode=mode, **how)
            self.how[name] = f"mode {mode}"

    def ours(self, functions: Mapping[str, Function], **how: Any) -> None:
        """Adds the two backends as providers: functions that take the keyword `backend`."""
        for backend in OURS:
            of = {d: functools.partial(f, backend=backend) for d, f in functions.items()}
            self.way(backend, of, **how)

    def peer(
        self,
        name: str,
        module: str,
        *,
        takes: Callable[[Case], bool] = lambda case: True,
        operands: Callable[[Case, Tensors], tuple[Any, ...]] | None = None,
    ) -> Callable[[Callable[[Any], Mapping[str, Function]]], Callable]:
        """Decorator: another package's kernels, if it is installed, as a provider.

        The decorated function returns theirs by direction, from the module that has them. The
        provider's rows tell errors, from the import on.

        Args:
            module: the name to import.
            takes: whether a case is known to be possible.
            operands: other ones than the benchmark's.
        """
        package = module.partition(".")[0]

        def add(find: Callable[[Any], Mapping[str, Function]]) -> Callable:
            if importlib.util.find_spec(package) is None:
                self.absent[name] = package
                return find

            @self.provider(name)
            def provide(case: Case, tensors: Tensors) -> Call | None:
                functions = find(importlib.import_module(module)) if takes(case) else {}
                if case.direction not in functions:
                    return None
                taken = (operands or self.operands)(case, tensors)
                return functools.partial(functions[case.direction], *taken, **self.keywords(case))

            return find

        return add


def normal(shapes: Iterable[int | Sequence[int]], dtype: torch.dtype) -> Tensors:
    """Tensors of random normal numbers, the same every time."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    sizes = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
    return tuple(torch.randn(s, generator=generator, device=DEVICE, dtype=dtype) for s in sizes)


def arrays_of(case: Case) -> Tensors:
    """The input; of a backward pass the output's gradient and the input."""
    return normal([case.shape] * (1 + (case.direction == "backward")), case.dtype)


def expected_of(spec: OpSpec) -> Callable[[Case, Tensors], Expected]:
    """The right values of an op's result, or of its gradient by the first input."""

    def expected(case: Case, tensors: Tensors) -> Expected:
        if case.direction == "backward":
            return spec.backward(*tensors, **case.options)[spec.inputs[0]]
        return spec.forward(*tensors, **case.options)

    return expected


def bytes_moved(case: Case, tensors: Tensors) -> int:
    """Each input once, the output once, which is as large as the first input."""
    return sum(map(nbytes, tensors)) + nbytes(tensors[0])


def rows_of(elements: int) -> tuple[int, ...]:
    """The shape of a number of elements in rows of 4096, one row at least."""
    return max(1, elements // 4096), min(elements, 4096)


def share_of_copy(row: Row, _: Rows) -> float:
    """Speed as a share of the copy ceiling."""
    return row["share_of_copy"]


def speed_over_torch(row: Row, _: Rows) -> float:
    """Speed as a multiple of PyTorch's."""
    return row["speed_over_torch"]


def time_over_torch(row: Row, rows: Rows) -> float:
    """Time as a multiple of PyTorch's."""
    return row["time_us"] / rows["torch"]["time_us"]


def host_cases(shape: tuple[int, ...], options: Mapping[str, Any] | None = None) -> list[Case]:
    """The host's time of the forward call: of an input, and of one that requires grad."""
    return [
        Case(direction, torch.float32, shape, dict(options or {}), timer="host")
        for direction in ("forward", RECORDED)
    ]


def recorded(case: Case, tensors: Tensors) -> Tensors:
    """The tensors of a case, which require grad where its call is recorded."""
    return tuple(t.requires_grad_() for t in tensors) if case.direction == RECORDED else tensors


def host_bar(cuda: tuple[float, float], triton: tuple[float, float]) -> Bar:
    """Microseconds of a call's host time beyond PyTorch's, at most: of both `host_cases`."""
    bounds = {"cuda": cuda, "triton": triton}
    return Bar(
        "host µs over torch",
        lambda row: row["timer"] == "host",
        lambda row, rows: row["time_us"] - rows["torch"]["time_us"],
        lambda row: bounds[row["provider"]][row["direction"] == RECORDED],
        at_least=False,
    )


def graph_bar() -> Bar:
    """Time in a CUDA graph as a multiple of PyTorch's, at most."""
    return Bar(
        "time over torch in a graph",
        lambda row: row["timer"] == "graph",
        time_over_torch,
        lambda row: 1.05,
        at_least=False,
    )
