"""From one definition of an op to the two ways of calling it.

`Operator` registers `diglot::<name>` with torch.library, with its fake kernel, its derivative, its
batching rule and its decomposition, and calls it in one of three ways:

- It calls directly if all tensors are plain and nobody watches (`is_direct`). The dispatcher would
  cost as much as a small kernel.
- It calls through torch.func's transforms or forward-mode differentiation where one is active.
- Otherwise it calls through `torch.ops`. Tensor subclasses, modes, compilers and profilers then see
  one operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _dispatch_tls_is_dispatch_key_excluded as is_excluded
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from diglot.backends.choosing import INVARIANT, mode
from diglot.backends.registry import is_interpreted
from diglot.define.batching import one_by_one
from diglot.define.direct import Kinds, is_direct

# An output of this name is not differentiable: the forward pass makes it for the backward pass.
STATISTICS = "statistics"
_ANY_TENSOR = torch._C.OptionalType.ofTensor()


class Signature(NamedTuple):
    """The facts of an operator's schema.

    Attributes:
        name: without "diglot::".
        arguments: names.
        outputs: names; "" for an unnamed one.
        tensors: how many arguments, the first ones, are tensors.
    """

    name: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: int

    @staticmethod
    def parse(schema: str) -> Signature:
        parsed = torch._C.parse_schema(schema)
        return Signature(
            parsed.name,
            tuple(argument.name for argument in parsed.arguments),
            tuple(output.name for output in parsed.returns),
            sum(a.type.isSubtypeOf(_ANY_TENSOR) for a in parsed.arguments),
        )


def no_check(*tensors: Tensor) -> None:
    """Takes all tensors."""


class Kind(NamedTuple):
    """How an operator takes tensors of one kind.

    Attributes:
        call: takes the operator's arguments and returns its outputs; a recorded call returns only
            the differentiable ones.
        is_direct: whether it skips the dispatcher.
        is_recorded: whether it is direct, and recorded for differentiation.
        device: of the first tensor.
        facts: what the operator's `check` returned.
    """

    call: Callable[..., Any]
    is_direct: bool
    is_recorded: bool
    device: torch.device
    facts: Any


class Operator:
    """One functional operator, `diglot::<name>`.

    Args:
        schema: such as "gelu(Tensor input, str approximate, str backend) -> Tensor". Tensors come
            first and the backend, already chosen, last. All outputs are differentiable except one
            named "statistics".
        forward: allocates the outputs and runs a launcher. Traced under torch.compile.
        fake: the outputs' metadata, for fake and meta tensors.
        save: from a context, the inputs and the output, the tensors that `backward` and `jvp` find
            in `ctx.saved_tensors`. Other things are attributes of the context.
        backward: the gradients of the tensor arguments, from the context and the gradient of each
            differentiable output. With several outputs, a missing gradient is None, but never all
            are.
        jvp: the differentiable outputs' tangents, a tuple of them if there are several, from the
            context and the tangents of the tensor arguments.
        vmap: the batching rule, of `diglot.define.batching`; by default a call for each sample.
        opaque: whether its kernels are hidden from compilers. Their launch depends on the stream,
            or on whether it is captured, which a compiled graph does not know.
        inlined: whether compilers see the operators of the backend "torch", so that they can fuse
            them.
        whole: whether a compiled graph calls the operator of other backends as a whole, which then
            plans when it runs. Its plans depend on addresses, which a graph does not know.
        check: raises an error unless the op takes such tensors, and returns facts about their kind
            for the facade. It is called once for each kind, so it must ignore sizes, strides and
            values.

    Attributes:
        signature: the parsed schema.
        known: from all tensors of a direct call, how the operator takes them; None if their kind is
            new, or if the call is not direct.
        recorded: calls it directly, recorded for differentiation, and returns the differentiable
            outputs.
    """

    def __init__(
        self,
        schema: str,
        *,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        save: Callable[[Any, tuple[Any, ...], Any], Sequence[Tensor | None]],
        backward: Callable[..., tuple[Any, ...]],
        jvp: Callable[..., Any],
        vmap: Callable[..., Any] = one_by_one,
        opaque: bool = False,
        inlined: bool = True,
        whole: bool = False,
        check: Callable[..., Any] = no_check,
    ) -> None:
        self.signature = signature = Signature.parse(schema)
        self.forward, self.fake = forward, fake
        self._check, self._kinds = check, Kinds[Kind]()
        self.known: Callable[..., Kind | None] = self._kinds.find
        self._inlined, self._opaque, self._whole = inlined, opaque, whole
        tensors, outputs = signature.tensors, len(signature.outputs)
        differentiable = outputs - signature.outputs.count(STATISTICS)
        rule = functools.partial(vmap, self)
        no_gradients = (None,) * (len(signature.arguments) - tensors)

        def all_gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return (*backward(ctx, *grads), *no_gradients)

        def gradients_of_several(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            grads = grads[:differentiable]
            if all(grad is None for grad in grads):
                return (None,) * len(signature.arguments)
            return all_gradients(ctx, *grads)

        def all_tangents(ctx: Any, *tangents: Any) -> Any:
            made = jvp(ctx, *tangents[:tensors])
            if is_single:
                return made
            made = made if differentiable > 1 else (made,)
            return (*made, *(None,) * (outputs - differentiable))

        is_single = outputs == 1
        gradients = all_gradients if is_single else gradients_of_several

        def set_up(ctx: Any, inputs: tuple[Any, ...], output: Any, ahead: bool = False) -> None:
            kept = save(ctx, inputs, output)
            ctx.save_for_backward(*kept)
            if ahead:
                ctx.save_for_forward(*kept)
            if not is_single:
                ctx.mark_non_differentiable(*output[differentiable:])
                ctx.set_materialize_grads(False)

        self._register(schema, set_up, gradients, rule)

        # The context is filled in forward. Otherwise PyTorch binds arguments by signature, which
        # costs as much as the launch. Outputs that are not differentiable are only saved, not
        # returned.
        def forward_of_one(ctx: Any, *args: Any) -> Any:
            output = forward(*args)
            kept = save(ctx, args, output)
            if kept:
                ctx.save_for_backward(*kept)
            return output if is_single else output[0]

        def forward_of_several(ctx: Any, *args: Any) -> Any:
            outputs = forward(*args)
            ctx.save_for_backward(*save(ctx, args, outputs))
            ctx.set_materialize_grads(False)
            return outputs[:differentiable]

        # Below the transforms the dispatcher still has work: a tangent may have a negative bit, or
        # be zeros without memory, which no launcher knows.
        def dispatched_forward(*args: Any) -> Any:
            return self.dispatched(*args)

        is_one = differentiable == 1
        direct = self._function(
            forward=forward_of_one if is_one else forward_of_several,
            backward=all_gradients if is_one else gradients_of_several,
        )
        # Skips Function.apply's Python code for transforms, which are not active here.
        self.recorded: Callable[..., Any] = super(torch.autograd.Function, direct).apply  # type: ignore[misc]
        self._transformable = self._function(
            forward=dispatched_forward,
            setup_context=functools.partial(set_up, ahead=True),
            backward=gradients,
            jvp=all_tangents,
            vmap=rule,
        )

    def _function(self, **methods: Callable[..., Any]) -> Any:
        made = {name: staticmethod(method) for name, method in methods.items()}
        return type(self.signature.name, (torch.autograd.Function,), made)

    def _register(
        self,
        schema: str,
        set_up: Callable[..., None],
        gradients: Callable[..., Any],
        rule: Callable[..., Any],
    ) -> None:
        name = self.signature.name
        qualified = f"diglot::{name}"
        tags = [torch.Tag.pt2_compliant_tag]
        if self._opaque:  # memory kept between calls must not belong to a compiled graph
            tags.append(torch.Tag.cudagraph_unsafe)
        torch.library.define(qualified, schema.removeprefix(name), tags=tags)
        torch.library.impl(qualified, ("cpu", "cuda"), self.forward)
        torch.library.register_fake(qualified, self.fake)
        torch.library.register_autograd(qualified, gradients, setup_context=set_up)
        torch.library.register_vmap(qualified, rule)
        self.dispatched = getattr(torch.ops.diglot, name).default

        # Under functionalization, in a graph that is being compiled.
        def decompose(
            tracing: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if self._stays_whole(args):
                return tracing.__torch_dispatch__(operator, types, args, kwargs)
            with tracing:
                return self.forward(*args, **kwargs)

        torch.library.register_torch_dispatch(qualified, FunctionalTensorMode, decompose)

    def _stays_whole(self, args: tuple[Any, ...]) -> bool:
        """Whether a compiled graph calls the operator, not the parts of its forward.

        It does where no compiler sees into the kernels (an interpreter). It also does where the
        launch is planned when it runs, as in eager mode. There sizes are symbols, or rows are held
        to one order and may have to be copied.
        """
        if args[-1] == "torch":
            return not self._inlined
        return (
            self._opaque
            or self._whole
            or mode() == INVARIANT
            or is_interpreted(args[-1], args[0].device)
            or any(
                type(number) is not int
                for tensor in args[: self.signature.tensors]
                if tensor is not None
                for number in (*tensor.shape, *tensor.stride())
            )
        )

    def learn(self, *tensors: Tensor) -> Kind:
        """Checks tensors, and decides how the operator takes them. `known` returns this from now
        on.
        """
        return self.learn_checked(self._check(*tensors), *tensors)

    def learn_checked(self, facts: Any, *tensors: Tensor) -> Kind:
        """The same for checked tensors, with the facts that the check returned."""
        kind = self._judge(facts, *tensors)
        if kind.is_direct:
            self._kinds.add(kind, *tensors)
        return kind

    def _judge(self, facts: Any, *tensors: Tensor) -> Kind:
        if not is_direct(*tensors):
            return Kind(self.indirect, False, False, tensors[0].device, facts)
        is_recorded = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
        call = self.recorded if is_recorded else self.forward
        return Kind(call, True, is_recorded, tensors[0].device, facts)

    def __call__(self, *args: Any) -> Any:
        """Calls the operator in one of the three ways, and returns the outputs of the schema."""
        tensors = [arg for arg in args[: self.signature.tensors] if arg is not None]
        # These tensors are unchecked, so nothing about them is remembered.
        kind = self.known(*tensors) or self._judge(None, *tensors)
        if kind.is_recorded and STATISTICS in self.signature.outputs:
            return self.dispatched(*args)
        return kind.call(*args)

    def indirect(self, *args: Any) -> Any:
        """Calls it through active transforms, or the dispatcher."""
        if not is_compiling() and (transforms_are_active() or forward_ad._current_level >= 0):
            # In a batching rule of the operator the dispatcher itself comes here.
            if not is_excluded(DispatchKey.FuncTorchBatched):
                return self._transformable.apply(*args)
        return self.dispatched(*args)
