"""Which calls may skip the dispatcher."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _dispatch_keys
from torch._C import _get_tracing_state as tracing_state
from torch._C import _len_torch_dispatch_stack as dispatch_mode_count
from torch._C import _len_torch_function_stack as function_mode_count
from torch._C._autograd import _profiler_enabled as is_profiling
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

# Dispatch keys of a tensor whose memory is simply what it seems: no subclass, no wrapper of a
# transform, no negative bit, no zeros without memory.
_PLAIN_KEYS = frozenset(
    {"CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"}
)
# Verdicts by the bits of a key set: a process meets a handful of them.
_plain_keysets: dict[int, bool] = {}


def _judge_keys(keyset: Any) -> bool:
    names = str(keyset).removeprefix("DispatchKeySet(").removesuffix(")").split(", ")
    plain = _plain_keysets[keyset.raw_repr()] = _PLAIN_KEYS.issuperset(names)
    return plain


def is_direct(*tensors: Tensor) -> bool:
    """Whether a call on these tensors may skip the dispatcher: nobody else would see it there.

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
