"""Which calls may skip the dispatcher."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _dispatch_keys
from torch._C import _get_tracing_state as tracing_state
from torch._C import _has_torch_function as has_torch_function
from torch._C import _len_torch_dispatch_stack as dispatch_mode_count
from torch._C import _len_torch_function_stack as function_mode_count
from torch._C._autograd import _profiler_enabled as is_profiling
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

# Dispatch keys of a tensor whose memory holds its values: no subclass, no wrapper of a transform,
# no negative bit, no zeros without memory.
_PLAIN_KEYS = frozenset(
    {"CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"}
)
# Verdicts by the bits of a key set: a process meets a handful of them.
_plain_keysets: dict[int, bool] = {}
MOST_KINDS = 32  # of calls with one number of tensors; others are judged in every call

Kind = TypeVar("Kind")


def _judge_keys(keyset: Any) -> bool:
    names = str(keyset).removeprefix("DispatchKeySet(").removesuffix(")").split(", ")
    plain = _plain_keysets[keyset.raw_repr()] = _PLAIN_KEYS.issuperset(names)
    return plain


def is_direct(*tensors: Tensor) -> bool:
    """Whether a call on these tensors may skip the dispatcher, because nobody else watches it
    there.

    If so, they are dense tensors of PyTorch's own class.
    """
    if (
        is_compiling()
        or dispatch_mode_count()
        or function_mode_count()
        or transforms_are_active()
        or is_profiling()
        or forward_ad._current_level >= 0
        or tracing_state() is not None
    ):
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not Parameter:
            return False
        keyset = _dispatch_keys(tensor)
        plain = _plain_keysets.get(keyset.raw_repr())
        if plain is None:
            plain = _judge_keys(keyset)
        if not plain:
            return False
    return True


def _guard_of(*tensors: Tensor) -> Callable[..., bool]:
    """Dynamo's check, in one call, whether other tensors are of the same kind."""
    any_sizes = [[None] * tensor.dim() for tensor in tensors]
    guards: Any = torch._C._dynamo.guards.TensorGuards
    guard = guards(*tensors, dynamic_dims_sizes=any_sizes, dynamic_dims_strides=any_sizes)
    check: Callable[..., bool] = guard.check
    return check


def _has_guards() -> bool:
    """Whether this PyTorch has that check, which is not public, and it still works the same."""
    try:
        x, y, z = (torch.empty(n, dtype=torch.float32, device="cpu") for n in (2, 3, 4))
        is_alike = _guard_of(x, y)
        differing = y.double(), y[None], torch.empty(3, device="cpu", requires_grad=True)
        return is_alike(y, z) and not any([is_alike(x, other) for other in differing])
    except Exception:  # then nothing is remembered, and calls take a little longer
        return False


_guards_work = functools.cache(_has_guards)


class Kinds(Generic[Kind]):
    """Facts about tensors, kept for later calls with tensors of the same kind.

    Tensors of one kind agree in class, dtype, device, rank, dispatch keys and requires_grad. Calls
    of one kind also agree in grad mode and in the thread's dispatch keys. These keys tell modes,
    tracing, autocast and inference mode. Sizes, strides and values do not matter. One call of
    PyTorch compares all tensors, in half the time of `is_direct`.
    """

    def __init__(self) -> None:
        # By grad mode, then by the number of tensors. Other threads may replace an entry any time.
        self._known: tuple[dict[int, tuple[tuple[Callable[..., bool], Kind], ...]], ...] = ({}, {})

    def find(self, *tensors: Tensor) -> Kind | None:
        """The known kind of a direct call; None if it is unknown, or if the call is not direct."""
        # Watchers that set no dispatch key.
        if (
            is_compiling()
            or has_torch_function(tensors)  # a subclass, or a mode
            or transforms_are_active()
            or is_profiling()
            or forward_ad._current_level >= 0
        ):
            return None
        try:  # Dynamo's check ends the process where a tensor has no strides
            for tensor in tensors:
                tensor.stride()
        except (AttributeError, RuntimeError, TypeError):
            return None
        for is_alike, kind in self._known[is_grad_enabled()].get(len(tensors), ()):
            if is_alike(*tensors):
                return kind
        return None

    def add(self, kind: Kind, *tensors: Tensor) -> None:
        """Remembers the kind of a direct call."""
        count = len(tensors)
        # Dynamo's check fails where a tensor is given twice.
        if not _guards_work() or len(set(map(id, tensors))) < count:
            return
        known = self._known[is_grad_enabled()]
        others = known.get(count, ())
        if len(others) < MOST_KINDS:
            known[count] = ((_guard_of(*tensors), kind), *others)
