"""The record of an op for the tools, which stands beside the op's oracle.

`diglot.reference.<op>.SPEC` is the record of `diglot.<op>`; no tool names an op. A function with
other arguments than tensors has a `CallSpec` there, because no tool could judge its result.
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
        tensors: the arguments of `function`, each broadcasting to the result's shape.
        shown: by name, the tensors whose values a report shows at the worst error.
        dtype: the dtype of the rounded result.
        allowance: the error allowed beyond the ulps, broadcasting to the result's shape, such as
            the rounding of a sum's partial sums. None: nothing.
        float64_ulp: the error allowed in float64, in ulps, where the oracle, which is no wider,
            errs by several too. None: as for other ops.
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
        default: its default.
        allowed: the values that it can have; None: numbers.
        another: for numbers, a value beside the default.
    """

    default: Any
    allowed: tuple[Any, ...] | None = None
    another: Any = 2


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """How an op is called: the facts needed to ask for its kernels.

    Attributes:
        name: the name of its function, which is `diglot.<name>`.
        inputs: names of the inputs, in order.
        options: the keyword options, by name.
        constants: keyword arguments that the tools always give, by name.
        floating_only: whether the inputs must be floating-point.
        directions: the passes that it has.
        call: calls the op's function with the inputs and keyword arguments, if these are not simply
            its arguments.
        shapes: the shapes of all inputs from that of the first, if they differ.
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
    """One op of tensors for the tools: how it is called, and its right results.

    The launchers of its two directions are `<name>_forward` and `<name>_backward`.

    Attributes:
        outputs: names of the outputs, in order.
        forward: from the inputs and options, the right output: an `Expected`, or a tuple of them
            for several outputs.
        backward: from the outputs' gradients, the inputs and options, the right gradients, by the
            names of the inputs.
        backward_bytes: from the same, the bytes that the backward pass must move. It reads each
            input once and writes each output once.
    """

    forward: Callable[..., Any]
    backward: Callable[..., dict[str, Expected]]
    backward_bytes: Callable[..., int]
    outputs: tuple[str, ...] = ("output",)

    def expected(self, *inputs: Any, **options: Any) -> dict[str, Expected]:
        """The right value of each output, by its name."""
        return dict(zip(self.outputs, as_tuple(self.forward(*inputs, **options)), strict=True))


def as_tuple(results: Any) -> tuple[Any, ...]:
    """A tuple of one result, or of several."""
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
