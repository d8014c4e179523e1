"""What an optimizer must be for its step to be captured, and its state before the first step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from diglot.graphs.errors import GraphError
from diglot.graphs.watch import Place, attribute, watch

# Optimizers whose state before the first step is known: zeros, except for these values. A string
# names the group's number that a value equals.
FIRST_VALUES: dict[str, dict[str, float | str]] = {
    "SGD": {},
    "Adam": {},
    "AdamW": {},
    "Adamax": {},
    "Adadelta": {},
    "RMSprop": {},
    "RAdam": {},
    "NAdam": {"mu_product": 1.0},
    "ASGD": {"eta": "lr", "mu": 1.0},
    "Rprop": {"step_size": "lr"},
}


def state_of(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, str, Any]]:
    """Each value of an optimizer's state: the group, the parameter, the value's name, the value."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                yield group, parameter, name, value


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Its parameters, of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def prepare(optimizer: Optimizer, device: torch.device) -> None:
    """Makes an optimizer's step one that a graph can hold: sets `capturable` where it has it.

    Raises:
        GraphError: it cannot be; the message says why.
    """
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        if isinstance(group.get("lr"), Tensor) and group["lr"].device != device:
            raise GraphError(
                f"training_step: the learning rate is a tensor on {group['lr'].device}, where no "
                f"replay reads it: make it one on {device}"
            )
        if "capturable" in group:
            group["capturable"] = True
    if not list(state_of(optimizer)) and name not in FIRST_VALUES:
        raise GraphError(
            f"training_step: it is not known what {name} has as state before its first step, which "
            "must not be that of the warm-up: take one step without the graph before"
        )
    for group in optimizer.param_groups:
        if group.get("dampening") and group.get("momentum") and not optimizer.state:
            raise GraphError(
                "training_step: the first step of SGD with dampening differs from later ones: take "
                "one step without the graph before"
            )
    for group, parameter, key, value in list(state_of(optimizer)):
        if group.get("capturable") and isinstance(value, Tensor) and value.device != device:
            optimizer.state[parameter][key] = value.to(device)


def check_state(optimizer: Optimizer, device: torch.device, before: dict[Any, Any]) -> None:
    """Raises GraphError if a step changes state that is not on the device.

    Args:
        optimizer: it has taken a step.
        device: where the parameters are.
        before: the state's numbers before that step, by parameter and name.
    """
    for _, parameter, key, value in state_of(optimizer):
        is_elsewhere = isinstance(value, Tensor) and value.device != device
        is_changed = not isinstance(value, Tensor) and before.get((parameter, key), value) != value
        if is_elsewhere or is_changed:
            what = f"a tensor on {value.device}" if is_elsewhere else f"a {type(value).__name__}"
            raise GraphError(
                f"training_step: {type(optimizer).__name__} keeps {key!r} as {what}, which no "
                "replay would change: take an optimizer that has `capturable`, such as AdamW"
            )


def numbers_in(optimizer: Optimizer) -> dict[Any, Any]:
    """What its state has that is no tensor, by parameter and name."""
    return {
        (parameter, key): value
        for _, parameter, key, value in state_of(optimizer)
        if not isinstance(value, Tensor)
    }


@contextlib.contextmanager
def steps_undone(optimizer: Optimizer) -> Iterator[None]:
    """Context manager: steps taken in it are undone. State that was not there is as before the
    first step; if an error ends it, it is gone.

    Gradients are as before, too. Tensors stay where they are.
    """
    gradients = [(parameter, parameter.grad) for parameter in parameters_of(optimizer)]
    known = {
        (parameter, key): value.clone() if isinstance(value, Tensor) else value
        for _, parameter, key, value in state_of(optimizer)
    }
    try:
        yield
    except BaseException:
        for _, parameter, key, _ in list(state_of(optimizer)):
            if (parameter, key) not in known:
                del optimizer.state[parameter][key]
        for parameter in [p for p, state in optimizer.state.items() if not state]:
            del optimizer.state[parameter]
        raise
    finally:
        _restore(optimizer, known)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _restore(optimizer: Optimizer, known: dict[Any, Any]) -> None:
    first = FIRST_VALUES.get(type(optimizer).__name__, {})
    with torch.no_grad():
        for group, parameter, key, value in list(state_of(optimizer)):
            before = known.get((parameter, key))
            if not isinstance(value, Tensor):
                optimizer.state[parameter][key] = before
            elif before is not None:
                value.copy_(before)
            else:
                number = first.get(key, 0.0)
                value.fill_(group[number] if isinstance(number, str) else number)


class HyperparameterCheck:
    """Whether an optimizer's numbers are those that its captured step has."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._sizes = self._sizes_of_groups()
        self._held = [attribute(key, optimizer, key) for key in ("state", "param_groups")]
        first = parameters_of(optimizer)[0]
        if first in optimizer.state:
            self._held.append(Place("state", optimizer.state, first))
        # The graph has their addresses. To look at each would take longer than all other checks.
        self._kept = [value for *_, value in state_of(optimizer) if isinstance(value, Tensor)]
        self._numbers = [
            (Place(f"{key} of parameter group {i}", group, key), value)
            for i, group in enumerate(optimizer.param_groups)
            for key, value in group.items()
            if key != "params"
        ]
        self._first_changed = watch([], [*self._held, *(place for place, _ in self._numbers)])

    def check(self) -> None:
        """Raises GraphError, which names the number, unless they are."""
        changed = self._first_changed()
        if 0 <= changed < len(self._held):
            raise GraphError(
                "training_step: the optimizer's state was replaced, as load_state_dict does, and "
                "the graph has the old one: load it before the capture, or capture anew"
            )
        if self._sizes_of_groups() != self._sizes:
            raise GraphError(
                "training_step: the optimizer has other parameter groups than in the capture, as "
                "after add_param_group, and the graph has the old ones: capture anew"
            )
        if changed < 0:
            return
        for place, value in self._numbers:  # an equal number may be another object
            now = place.owner.get(place.key)
            if now is not value and (isinstance(value, Tensor) or not _is_same(now, value)):
                raise GraphError(
                    f"training_step: {place.name} was {value!r} in the capture, and is {now!r}: a "
                    f"graph keeps numbers. Make it a tensor on the GPU before the capture, and "
                    f"change that in place ({place.key}.fill_), or capture anew"
                )

    def _sizes_of_groups(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, Tensor):
        return False
    is_nan = isinstance(now, float) and isinstance(before, float) and math.isnan(now)
    return now == before or (is_nan and math.isnan(before))
