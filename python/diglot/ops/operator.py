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

from collections.abc import Callable, Sequence
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


def _has_symbols(arguments: Sequence[Any]) -> bool:
    """Whether the layout of a tensor among these has a symbol in place of a number."""
    return any(
        type(number) is not int
        for argument in arguments
        if isinstance(argument, Tensor)
        for number in (*argument.shape, *argument.stride())
    )


def _requires_grad(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.requires_grad


def _without(shape: torch.Size, dim: int) -> list[int]:
    return [size for d, size in enumerate(shape) if d != dim]


class Operator:
    """One functional operator, `diglot::<name>`.

    Args:
        schema: its schema, such as "gelu(Tensor input, str approximate, str backend) -> Tensor".
            Tensors come first and the backend, already chosen, last.
        forward: computes it: allocates the output and runs a launcher. Traced under torch.compile.
        fake: the output's metadata, for fake and meta tensors.
        setup_context: saves what `backward` needs, as in torch.autograd.Function.
        backward: the gradients of the tensor arguments, from the context and the gradient of each
            differentiable output; the arguments after them have none. Of an operator of several
            outputs a gradient is None where there is none, but never all.
        jvp: the differentiable outputs' tangents, a tuple of them if there are several, from the
            context and the tangents of the tensor arguments.
        vmap: the batching rule, as in torch.library.register_vmap; by default a call for each
            sample.
        tensors: how many arguments are tensors.
        differentiable: how many outputs, the first ones, are differentiable. The others are what
            the backward pass needs of them.
        opaque: whether compilers are not to see into its kernels: their launch depends on the
            stream, or on whether it is captured, which a compiled graph does not know.
        inlined: whether compilers see what the backend "torch" does, so that they can fuse it.
    """

    def __init__(
        self,
        schema: str,
        *,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        setup_context: Callable[..., None],
        backward: Callable[..., tuple[Any, ...]],
        jvp: Callable[..., Any],
        vmap: Callable[..., Any] | None = None,
        tensors: int,
        differentiable: int = 1,
        opaque: bool = False,
        inlined: bool = True,
    ) -> None:
        name = schema[: schema.index("(")]
        qualified = f"diglot::{name}"
        arguments = schema.count(",", 0, schema.index(")")) + 1
        no_gradients = (None,) * (arguments - tensors)
        self.forward = forward
        self._tensors = tensors
        self._fake = fake
        vmap = vmap or self.one_by_one

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup_context(ctx, inputs, output)
            if isinstance(output, tuple):
                ctx.mark_non_differentiable(*output[differentiable:])
                ctx.set_materialize_grads(False)

        def all_gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            grads = grads[:differentiable]
            if all(grad is None for grad in grads):
                return (None,) * arguments
            return (*backward(ctx, *grads), *no_gradients)

        tags = [torch.Tag.pt2_compliant_tag]
        if opaque:  # what it keeps between calls must not lie in the memory of a compiler's graph
            tags.append(torch.Tag.cudagraph_unsafe)
        torch.library.define(qualified, schema[schema.index("(") :], tags=tags)
        torch.library.impl(qualified, ("cpu", "cuda"), forward)
        torch.library.register_fake(qualified, fake)
        torch.library.register_autograd(qualified, all_gradients, setup_context=save)
        torch.library.register_vmap(qualified, vmap)
        self.dispatched = getattr(torch.ops.diglot, name).default

        # Under functionalization, that is in a graph that is being compiled, the operator is what
        # its forward does: an allocation and a launch, which the compiler can see into. It remains
        # one operator where no compiler sees into its kernels (an interpreter), and where sizes are
        # symbols: its launch is planned when it runs, as in eager mode.
        def decompose(
            mode: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if args[-1] == "torch":
                is_whole = not inlined
            else:
                is_whole = opaque or _has_symbols(args[:tensors])
            if is_whole or is_interpreted(args[-1], args[0].device):
                return mode.__torch_dispatch__(operator, types, args, kwargs)
            with mode:
                return forward(*args, **kwargs)

        torch.library.register_torch_dispatch(qualified, FunctionalTensorMode, decompose)

        def direct_forward(ctx: Any, *args: Any) -> Any:
            output = forward(*args)
            save(ctx, args, output)
            return output

        others = schema.count("Tensor", schema.index("->")) - differentiable

        def all_tangents(ctx: Any, *tangents: Any) -> Any:
            made = jvp(ctx, *tangents[:tensors])
            if differentiable == 1 and others:
                made = (made,)
            return (*made, *(None,) * others) if others else made

        # Below the transforms the dispatcher still has work: a tangent may have a negative bit, or
        # be zeros without memory, which no launcher knows.
        def dispatched_forward(*args: Any) -> Any:
            return self.dispatched(*args)

        # The context is filled in forward: PyTorch binds arguments by signature otherwise, which
        # costs as much as the launch.
        direct: Any = type(
            name,
            (torch.autograd.Function,),
            {"forward": staticmethod(direct_forward), "backward": staticmethod(all_gradients)},
        )
        # Calls it directly, recorded for differentiation.
        self.recorded: Callable[..., Any] = direct.apply
        self._transformable: Any = type(
            name,
            (torch.autograd.Function,),
            {
                "forward": staticmethod(dispatched_forward),
                "setup_context": staticmethod(save),
                "backward": staticmethod(all_gradients),
                "jvp": staticmethod(all_tangents),
                "vmap": staticmethod(vmap),
            },
        )

    def one_by_one(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """The batching rule of an operator whose kernels know no batches."""
        samples = [
            [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]
            for i in range(info.batch_size)
        ]
        if samples:
            results = [self(any(map(_requires_grad, sample)), *sample) for sample in samples]
        else:  # one that is not computed says of what shape none are
            results = [
                self._fake(
                    *(
                        a if d is None else a.new_empty(_without(a.shape, d))
                        for a, d in zip(args, in_dims, strict=True)
                    )
                )
            ]
        is_single = isinstance(results[0], Tensor)
        stacked = [
            torch.stack(of)[: info.batch_size]
            for of in zip(*([r] if is_single else r for r in results), strict=True)
        ]
        return (stacked[0], 0) if is_single else (tuple(stacked), (0,) * len(stacked))

    def __call__(self, differentiable: bool, *args: Any) -> Any:
        """Calls the operator.

        Args:
            differentiable: whether a tensor argument requires grad.
            args: as in the schema.
        """
        if is_direct(*[arg for arg in args[: self._tensors] if arg is not None]):
            return self.direct(differentiable, *args)
        return self.indirect(*args)

    def direct(self, differentiable: bool, *args: Any) -> Any:
        """Calls it where `is_direct` has said that the dispatcher may be skipped."""
        if differentiable and torch.is_grad_enabled():
            return self.recorded(*args)
        return self.forward(*args)

    def indirect(self, *args: Any) -> Any:
        """Calls it through the transforms that are active, or the dispatcher."""
        if not is_compiling() and (transforms_are_active() or forward_ad._current_level >= 0):
            # The dispatcher has come here by itself where it is in a batching rule of the operator.
            if not is_excluded(DispatchKey.FuncTorchBatched):
                return self._transformable.apply(*args)
        return self.dispatched(*args)
