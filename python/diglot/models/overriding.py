"""`diglot.override`: PyTorch's functions run diglot's ops, in an unchanged model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from diglot.backends.selection import check_name
from diglot.ops import dropout, gelu, layer_norm, log_softmax, rms_norm, softmax


class LeftAloneCall(NamedTuple):
    """Calls of a function that PyTorch ran.

    Attributes:
        function: its name.
        reason: why diglot's op does not accept them.
    """

    function: str
    reason: str


def _functional(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """softmax or log_softmax with the arguments of `torch.nn.functional`."""

    def call(
        input: Any,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None,
    ) -> Tensor:
        if dim is None:
            raise TypeError("no dim is given")
        return op(input, dim, dtype, backend=backend)

    return call


# PyTorch has checked the arguments by name. If an op does not accept them, its error is the reason.
_OPS: dict[Any, Callable[..., Tensor]] = {
    F.gelu: gelu,
    F.softmax: _functional(softmax),
    torch.softmax: softmax,
    Tensor.softmax: softmax,
    F.log_softmax: _functional(log_softmax),
    torch.log_softmax: log_softmax,
    Tensor.log_softmax: log_softmax,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.dropout: dropout,
}


class override(TorchFunctionMode):
    """Context manager: PyTorch's functions run diglot's ops on this thread.

    They are `gelu`, `softmax`, `log_softmax`, `layer_norm`, `rms_norm` and `dropout` of
    `torch.nn.functional`, and `softmax` and `log_softmax` of `torch` and of tensors. So a module
    that calls them needs no patch. PyTorch still runs calls that an op does not accept, such as one
    with `out=`, and calls from C++ (`scaled_dot_product_attention`).

        with diglot.override(backend="cuda") as overridden:
            model(x)
        print(overridden)  # calls left alone, and why

    The innermost one of several decides. Other threads are not concerned. Under `torch.compile`
    the graph has diglot's ops, and calls are not counted.

    Args:
        backend: as in `diglot.gelu`. One that cannot run a call raises
            `diglot.BackendUnavailable`.

    Attributes:
        sent: how many calls ran diglot's ops, by the name of the function.
        left_alone: how many did not, by function and reason.

    Raises:
        ValueError: an unknown `backend`.
    """

    def __init__(self, backend: str | None = None) -> None:
        if backend is not None:
            check_name(backend)
        super().__init__()
        self.backend = backend
        self.sent: dict[str, int] = {}
        self.left_alone: dict[LeftAloneCall, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        op = _OPS.get(func)
        if op is None:
            return func(*args, **kwargs)
        name = func.__name__
        try:
            if any([kind is not Tensor for kind in types]):
                raise TypeError("a tensor of a class that has a __torch_function__ of its own")
            result = op(*args, **kwargs, backend=self.backend)
        except (TypeError, ValueError, IndexError) as error:
            if not is_compiling():
                call = LeftAloneCall(name, str(error))
                self.left_alone[call] = self.left_alone.get(call, 0) + 1
        else:
            if not is_compiling():
                self.sent[name] = self.sent.get(name, 0) + 1
            return result
        return func(*args, **kwargs)

    def __str__(self) -> str:
        lines = [f"{count:5}  {name} -> diglot.{name}" for name, count in self.sent.items()]
        for call, count in self.left_alone.items():
            lines.append(f"{count:5}  {call.function} left alone: {call.reason}")
        return "\n".join(lines) or "no function was called that diglot has an op for"
