"""What the modules of a model cost, by a trace: time, launches and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diglot.tools.module_scopes import PREFIX
from diglot.tools.trace import Span, Trace


@dataclass
class ModuleCost:
    """What all calls of a module took, together with the modules in it.

    Attributes:
        forward_us: microseconds of the forward passes: on the GPU, or without one on the CPU.
        backward_us: of the backward passes, by autograd's numbers: a step has that of the operator
            whose derivative it is. Steps that add up a parameter's gradient have none.
        launches: kernels, forward and backward; without a GPU, operators that would launch one.
        allocated: bytes that were allocated, forward and backward; freed bytes do not count.
    """

    calls: int = 0
    forward_us: float = 0.0
    backward_us: float = 0.0
    launches: int = 0
    allocated: int = 0


@dataclass(frozen=True)
class _Place:
    """The modules around a span, outermost first, and whether it is of their backward pass."""

    modules: tuple[str, ...] = ()
    is_backward: bool = False


class ModuleTrace:
    """A trace, by modules.

    Attributes:
        costs: by a module's name, what it took, in the order in which modules were called.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places = _find_places(trace)
        self.costs: dict[str, ModuleCost] = {}
        for span in trace.spans:
            if span.kind == "module":
                self.costs.setdefault(_name(span), ModuleCost()).calls += 1
        for span in trace.spans:
            for cost in self._costs_at(span):
                cost.allocated += span.allocated
        for timed, us in self._timed():
            for cost in self._costs_at(timed):
                if self._place(timed).is_backward:
                    cost.backward_us += us
                else:
                    cost.forward_us += us
        for kernel in trace.kernels:
            for cost in self._costs_at(kernel.launched_by):
                cost.launches += 1

    def _timed(self) -> Iterator[tuple[Span | None, float]]:
        """Spans, and microseconds that are theirs alone: on a GPU, of a kernel of theirs."""
        if self._trace.has_device:
            return ((of.launched_by, of.us) for of in self._trace.kernels)
        return ((span, span.self_us) for span in self._trace.spans)

    def _place(self, span: Span | None) -> _Place:
        return self._places[id(span)] if span else _Place()

    def _costs_at(self, span: Span | None) -> list[ModuleCost]:
        return [self.costs[name] for name in set(self._place(span).modules)]


def _find_places(trace: Trace) -> dict[int, _Place]:
    """By the identity of a span, where it is."""
    places: dict[int, _Place] = {}
    forward: dict[int | None, tuple[str, ...]] = {}
    for _ in range(2):  # autograd's thread may come before the one whose operators it knows
        for span in trace.spans:  # of a thread, in the order in which they begin
            place = places[id(span.parent)] if span.parent else _Place()
            if span.kind == "module":
                place = _Place((*place.modules, _name(span)), place.is_backward)
            elif span.is_backward and not place.is_backward and forward.get(span.sequence):
                place = _Place(forward[span.sequence], is_backward=True)
            elif not span.is_backward and span.sequence is not None:
                # The last operator with a number makes the node that has the number.
                forward[span.sequence] = place.modules
            places[id(span)] = place
    return places


def _name(span: Span) -> str:
    return span.name.removeprefix(PREFIX)
