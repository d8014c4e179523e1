"""What the tools know of an op: a record, which stands beside the op's oracle.

`diglot.reference.<op>.SPEC` is the record of `diglot.<op>`; no tool names an op.
What is not an op of tensors alone, of which no tool could judge the result, has a `CallSpec` there.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from diglot.names import suggestion, unknown_name


@dataclass(frozen=True)
class Expected:
    """The right values of one result, computed piece by piece.

    Attributes:
        function: from pieces of `tensors` to the values: float64 for floating results, the result's
            own dtype for others.
        tensors: what `function` takes, each broadcasting to the result's shape.
        shown: by name, the tensors of which a report tells the value where an error is worst.
        dtype: dtype that the result is rounded to.
        allowance: what an error may be beyond its ulps, broadcasting to the result's shape: for a
            sum, the rounding of its partial sums. None: nothing.
        float64_ulp: what an error in float64 may be, in ulps, where the oracle, which is no wider,
            has several as well. None: as for other ops.
    """

    function: Callable[..., torch.Tensor]
    tensors: tuple[torch.Tensor, ...]
    shown: Mapping[str, torch.Tensor]
    dtype: torch.dtype
    allowance: torch.Tensor | None = None
    float64_ulp: float | None = None


@dataclass(frozen=True)
class Option:
    """A keyword option of an op.

    Attributes:
        default: its value where none is given.
        allowed: the values that it can have; None: numbers.
        another: of numbers, one beside the default.
    """

    default: Any
    allowed: tuple[Any, ...] | None = None
    another: Any = 2


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """How an op is called: what it takes to ask for its kernels.

    Attributes:
        name: the name of its function, which is `diglot.<name>`.
        inputs: names of the inputs, in order.
        options: the keyword options, by name.
        constants: keyword arguments that the tools always give, by name.
        floating_only: whether the inputs must be floating-point.
        directions: the passes that it has.
        call: from the op's function, the inputs and keyword arguments, its result, where these are
            not simply its arguments.
        shapes: from the shape of the first input, that of each, where they differ.
    """

    name: str
    inputs: tuple[str, ...]
    options: Mapping[str, Option] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    floating_only: bool = False
    directions: tuple[str, ...] = ("forward", "backward")
    call: Callable[..., Any] | None = None
    shapes: Callable[[tuple[int, ...]], Sequence[tuple[int, ...]]] | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The op: `diglot.<name>`, with its constants, as a function of the inputs."""
        function = getattr(importlib.import_module("diglot.ops"), self.name)
        if self.call is not None:
            function = functools.partial(self.call, function)
        return functools.partial(function, **self.constants) if self.constants else function

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError if an option is unknown, or its value is not an allowed one."""
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                hint = suggestion(name, self.options)
                raise ValueError(f"{self.name} has no option {name!r}; its options: {known}{hint}")
            allowed = self.options[name].allowed
            if allowed is not None and value not in allowed:
                names = " or ".join(repr(v) for v in allowed)
                hint = suggestion(value, map(str, allowed))
                raise ValueError(f"{self.name}: {name} must be {names}, not {value!r}{hint}")


@dataclass(frozen=True, kw_only=True)
class OpSpec(CallSpec):
    """One op of tensors, as the tools see it: beside how it is called, what comes of it.

    The launchers of its two directions are `<name>_forward` and `<name>_backward`.

    Attributes:
        outputs: names of the outputs, in order.
        forward: from the inputs and options, what the output must be: an `Expected`, or a tuple of
            them where there are several outputs.
        backward: from the outputs' gradients, the inputs and options, what the gradients of the
            inputs must be, by the names of the inputs.
        backward_bytes: from the same, the bytes that the backward pass must move: each array that
            it reads once, each that it writes once.
    """

    forward: Callable[..., Any]
    backward: Callable[..., dict[str, Expected]]
    backward_bytes: Callable[..., int]
    outputs: tuple[str, ...] = ("output",)

    def expected(self, *inputs: Any, **options: Any) -> dict[str, Expected]:
        """What each output must be, by its name."""
        return dict(zip(self.outputs, as_tuple(self.forward(*inputs, **options)), strict=True))


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Of one result or several."""
    return results if isinstance(results, tuple) else (results,)


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


@functools.cache
def _records() -> dict[str, CallSpec]:
    """The records of all ops, by name."""
    package = importlib.import_module("diglot.reference")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name: module.SPEC for name, module in modules.items() if hasattr(module, "SPEC")}


def all_op_names() -> tuple[str, ...]:
    """Names of all ops, those of their files."""
    return tuple(_records())


@functools.cache
def op_names() -> tuple[str, ...]:
    """Names of all ops of tensors."""
    return tuple(name for name, record in _records().items() if isinstance(record, OpSpec))


def find_call(op: str | Callable[..., Any], names: Sequence[str] = ()) -> CallSpec:
    """The record of an op, given by name or as its function.

    Args:
        op: the op.
        names: the ops that it may be; by default all.

    Raises:
        ValueError: there is no such op. The message suggests a near name.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    known = names or all_op_names()
    if name not in known:
        raise unknown_name("op", name, known)
    return _records()[name]


def find_spec(op: str | Callable[..., Any]) -> OpSpec:
    """The record of an op of tensors, as `find_call` finds it."""
    record = find_call(op, op_names())
    assert isinstance(record, OpSpec)
    return record
