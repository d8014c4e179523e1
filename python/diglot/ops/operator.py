"""From one definition of an op to the two ways of calling it.

`Operator` registers `diglot::<name>` with torch.library, with its fake kernel, its derivative, its
batching rule and its decomposition, and calls it:

- directly, skipping the dispatcher, whose cost is that of a small kernel, when nothing but plain
  tensors is involved and nobody is watching (`is_direct`);
- through the functional transforms of torch.func and forward-mode differentiation;
- through `torch.ops` otherwise, so that tensor subclasses, modes, tracing, compiling and profiling
  see one operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, _dispatch_keys
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _dispatch_tls_is_dispatch_key_excluded as is_excluded
from torch._C import _get_tracing_state as tracing_state
from torch._C import _len_torch_dispatch_stack as dispatch_mode_count
from torch._C import _len_torch_function_stack as function_mode_count
from torch._C._autograd import _profiler_enabled as is_profiling
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from diglot.backends.registry import is_interpreted

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


def is_direct(*tensors: torch.Tensor) -> bool:
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


class Operator:
    """One functional operator, `diglot::<name>`.

    Args:
        schema: its schema, such as "gelu(Tensor input, str approximate, str backend) -> Tensor".
            Tensors come first and the backend, already chosen, last.
        forward: computes it: allocates the output and runs a launcher. Traced under torch.compile.
        fake: the output's metadata, for fake and meta tensors.
        setup_context: saves what `backward` needs, as in torch.autograd.Function.
        backward: the gradients of the tensor arguments, from the context and the output's gradient;
            the arguments after them have none.
        jvp: the output's tangent, from the context and the tangents of the tensor arguments.
        vmap: the batching rule, as in torch.library.register_vmap.
        tensors: how many arguments are tensors.
        opaque: whether compilers are not to see into it: its launch depends on the stream, or on
            whether it is captured, which a compiled graph does not know.
    """

    def __init__(
        self,
        schema: str,
        *,
        forward: Callable[..., torch.Tensor],
        fake: Callable[..., torch.Tensor],
        setup_context: Callable[..., None],
        backward: Callable[..., tuple[Any, ...]],
        jvp: Callable[..., torch.Tensor],
        vmap: Callable[..., Any],
        tensors: int,
        opaque: bool = False,
    ) -> None:
        name = schema[: schema.index("(")]
        qualified = f"diglot::{name}"
        arguments = schema.count(",", 0, schema.index(")")) + 1
        no_gradients = (None,) * (arguments - tensors)
        self.forward = forward
        self._tensors = tensors

        def all_gradients(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
            return (*backward(ctx, grad_output), *no_gradients)

        torch.library.define(
            qualified, schema[schema.index("(") :], tags=[torch.Tag.pt2_compliant_tag]
        )
        torch.library.impl(qualified, ("cpu", "cuda"), forward)
        torch.library.register_fake(qualified, fake)
        torch.library.register_autograd(qualified, all_gradients, setup_context=setup_context)
        torch.library.register_vmap(qualified, vmap)
        self.dispatched = getattr(torch.ops.diglot, name).default

        # Under functionalization, that is in a graph that is being compiled, the operator is what
        # its forward does: an allocation and a launch, which the compiler can see into. No compiler
        # sees into an interpreter: there it remains one operator.
        def decompose(
            mode: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if opaque or is_interpreted(args[-1], args[0].device):
                return mode.__torch_dispatch__(operator, types, args, kwargs)
            with mode:
                return forward(*args, **kwargs)

        torch.library.register_torch_dispatch(qualified, FunctionalTensorMode, decompose)

        def direct_forward(ctx: Any, *args: Any) -> torch.Tensor:
            output = forward(*args)
            setup_context(ctx, args, output)
            return output

        def all_tangents(ctx: Any, *tangents: Any) -> torch.Tensor:
            return jvp(ctx, *tangents[:tensors])

        # Below the transforms the dispatcher still has work: a tangent may have a negative bit, or
        # be zeros without memory, which no launcher knows.
        def dispatched_forward(*args: Any) -> torch.Tensor:
            return self.dispatched(*args)

        # The context is filled in forward: PyTorch binds arguments by signature otherwise, which
        # costs as much as the launch.
        direct: Any = type(
            name,
            (torch.autograd.Function,),
            {"forward": staticmethod(direct_forward), "backward": staticmethod(all_gradients)},
        )
        # Calls it directly, recorded for differentiation.
        self.recorded: Callable[..., torch.Tensor] = direct.apply
        self._transformable: Any = type(
            name,
            (torch.autograd.Function,),
            {
                "forward": staticmethod(dispatched_forward),
                "setup_context": staticmethod(setup_context),
                "backward": staticmethod(all_gradients),
                "jvp": staticmethod(all_tangents),
                "vmap": staticmethod(vmap),
            },
        )

    def __call__(self, differentiable: bool, *args: Any) -> torch.Tensor:
        """Calls the operator.

        Args:
            differentiable: whether a tensor argument requires grad.
            args: as in the schema.
        """
        if is_direct(*[arg for arg in args[: self._tensors] if arg is not None]):
            return self.direct(differentiable, *args)
        return self.indirect(*args)

    def direct(self, differentiable: bool, *args: Any) -> torch.Tensor:
        """Calls it where `is_direct` has said that the dispatcher may be skipped."""
        if differentiable and torch.is_grad_enabled():
            return self.recorded(*args)
        return self.forward(*args)

    def indirect(self, *args: Any) -> torch.Tensor:
        """Calls it through the transforms that are active, or the dispatcher."""
        if not is_compiling() and (transforms_are_active() or forward_ad._current_level >= 0):
            # The dispatcher has come here by itself where it is in a batching rule of the operator.
            if not is_excluded(DispatchKey.FuncTorchBatched):
                return self._transformable.apply(*args)
        return self.dispatched(*args)
