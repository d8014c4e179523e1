"""What the modules of a model cost, by a trace: time, launches and memory."""

from __future__ import annotations

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


def module_costs(trace: Trace) -> dict[str, ModuleCost]:
    """By a module's name, what it took, in the order in which modules were called."""
    places, costs = _find_places(trace), dict[str, ModuleCost]()
    for span in trace.spans:
        if span.kind == "module":
            costs.setdefault(_name(span), ModuleCost()).calls += 1

    def around(span: Span | None) -> list[ModuleCost]:
        return [costs[name] for name in set(places[id(span)].modules)] if span else []

    for span in trace.spans:
        for cost in around(span):
            cost.allocated += span.allocated
    on_device = ((kernel.launched_by, kernel.us) for kernel in trace.kernels)
    on_host = ((span, span.self_us) for span in trace.spans)
    for timed, us in on_device if trace.has_device else on_host:
        for cost in around(timed):
            if places[id(timed)].is_backward:
                cost.backward_us += us
            else:
                cost.forward_us += us
    for kernel in trace.kernels:
        for cost in around(kernel.launched_by):
            cost.launches += 1
    return costs


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
