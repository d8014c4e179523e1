"""One captured graph: of a function of tensors, and of its gradient where it has one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from diglot.graphs.buckets import Sizes
from diglot.graphs.device import Capture, Graph
from diglot.graphs.errors import GraphError
from diglot.graphs.modes import run_for_capture
from diglot.graphs.nodes import NotedRun, noted_runs
from diglot.graphs.pool import Pool
from diglot.graphs.state import State

_numbers = itertools.count()
# What PyTorch and CUDA say of something that no graph can hold.
UNCAPTURABLE = ("captur", "_local_scalar_dense", "synchroniz", "pin_memory", "pinned")


class CapturedGraph:
    """A graph, the memory that it reads and writes, and what it cost.

    Who makes one is `capturing` into the pool.

    Args:
        pool: where its memory is.
        label: its bucket, in words.
        function: of a list of tensors.
        inputs: the memory of those tensors.
        wants_gradient: for each input, whether the graph has a gradient of it.
        parameters: tensors beside the inputs whose gradients it has too.
        state: all tensors that it reads beside the inputs.

    Attributes:
        outputs: the leaves of what the function returned; tensors are the graph's memory.
        capture_ms: how long it took to capture, of the host's time.
        added_bytes: by how much the pool has grown.
        needed_bytes: the most that it had allocated at once.
        replays: how many there were.
        is_alive: whether it can be replayed.
        results: by a call's sizes, views of the outputs' valid elements, once they were needed.
        runs: for each of `graphs`, the launches of diglot's ops.

    Raises:
        GraphError: the function does what no graph can hold.
        torch.OutOfMemoryError: memory does not suffice.
    """

    def __init__(
        self,
        pool: Pool,
        label: str,
        function: Callable[[list[Tensor]], Any],
        inputs: Sequence[Tensor],
        wants_gradient: Sequence[bool],
        parameters: Sequence[Tensor],
        state: Sequence[Tensor],
    ) -> None:
        self.number = next(_numbers)
        self.pool, self.label = pool, label
        self.replays = 0
        self.is_alive = True
        self.results: dict[Sizes, list[Any]] = {}
        self.inputs, self.wants_gradient = list(inputs), list(wants_gradient)
        self._parameters = list(parameters)
        self._graphs: list[Graph] = []
        self.runs: list[list[NotedRun]] = []
        self._backward: Graph | None = None
        self.gradients: list[Tensor | None] = []  # of inputs that want one, then of parameters
        self.gradients_of_outputs: list[Tensor] = []
        began, before = time.perf_counter(), pool.bytes
        self.needed_bytes = 0
        tracked = [tensor for tensor in state if not tensor.is_inference()]
        versions = [tensor._version for tensor in tracked]
        with run_for_capture():
            leaves = [
                view.detach().requires_grad_(wants)
                for view, wants in zip(inputs, wants_gradient, strict=True)
            ]
            result = self._capture(lambda: pytree.tree_map(_resolved, function(leaves)))
            self.outputs, self._spec = pytree.tree_flatten(result)
            self._is_single = self._spec.is_leaf()
            self._capture_backward([leaf for leaf in leaves if leaf.requires_grad])
        self.capture_ms = 1e3 * (time.perf_counter() - began)
        self._check_results()
        self.added_bytes = pool.bytes - before
        # Who replays the pool's graphs writes over their outputs: nothing is gained by keeping that
        # memory from the captures that follow.
        owner = tuple(self._graphs)
        external = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, *state)}
        self.outputs = [self._released(output, owner, external) for output in self.outputs]
        self.gradients = [self._released(each, owner, external) for each in self.gradients]
        self.output_tensors = [each for each in self.outputs if isinstance(each, Tensor)]
        self._written = [
            *(t for t, version in zip(tracked, versions, strict=True) if t._version != version),
            *(t for t in self.output_tensors if t.untyped_storage().data_ptr() not in external),
        ]
        pool.add(self)

    def _capture(self, function: Callable[[], Any]) -> Any:
        try:
            with noted_runs(self.pool.device.captured_nodes) as runs:
                made: Capture = self.pool.device.capture(function, self.pool.handle)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in UNCAPTURABLE):
                raise
            raise GraphError(
                f"{self.label} cannot be captured: {error}\n"
                "A captured function must not wait for the GPU (item(), cpu(), print of a tensor, "
                "nonzero or another shape that depends on values), allocate pinned memory, or copy "
                "from memory that is not pinned. The error above shows where it does"
            ) from error
        self._graphs.append(made.graph)
        self.runs.append(runs)
        self.needed_bytes = max(self.needed_bytes, made.needed_bytes)
        return made.result

    def _check_results(self) -> None:
        """Raises GraphError for a result in which nobody sees the tensors."""
        for leaf in self.outputs:
            is_lazy = isinstance(leaf, (Iterator, Awaitable))
            if not isinstance(leaf, Tensor) and (is_lazy or State(leaf).places):
                raise GraphError(
                    f"{self.label} returns a {type(leaf).__name__}, in which the graph would not "
                    "see tensors: return tensors in lists, tuples or dictionaries, or register "
                    "the class (torch.export.register_dataclass)"
                )

    def _capture_backward(self, inputs: list[Tensor]) -> None:
        """Captures the gradient, if an output has one; from then on outputs record nothing."""
        self._differentiable = [
            i
            for i, each in enumerate(self.outputs)
            if isinstance(each, Tensor) and each.requires_grad
        ]
        if self._differentiable:
            recorded = [self.outputs[i] for i in self._differentiable]
            self.gradients_of_outputs = [torch.zeros_like(output) for output in recorded]
            self.gradients = list(
                self._capture(
                    lambda: [
                        _resolved(each)
                        for each in torch.autograd.grad(
                            recorded,
                            [*inputs, *self._parameters],
                            self.gradients_of_outputs,
                            allow_unused=True,
                        )
                    ]
                )
            )
            self._backward = self._graphs[-1]
        self.outputs = [
            each.detach() if isinstance(each, Tensor) else each for each in self.outputs
        ]

    def _released(self, value: Any, owner: Any, external: set[int]) -> Any:
        """A tensor of the pool's memory, without a claim to it."""
        if not isinstance(value, Tensor):
            return value
        with torch.inference_mode(False):
            if value.untyped_storage().data_ptr() in external:
                return value
            return self.pool.device.unowned(value, owner)

    @property
    def has_gradient(self) -> bool:
        """Whether its outputs can be differentiated."""
        return self._backward is not None

    @property
    def graphs(self) -> list[Graph]:
        """The device's graphs: that of the function, and that of its gradient."""
        return self._graphs

    def drop(self) -> None:
        """Lets the graph go; its memory is freed when no result is used any more."""
        self.is_alive = False
        self._graphs = []
        self._backward = None
        self.outputs, self.output_tensors, self.gradients = [], [], []
        self._written = []
        self.gradients_of_outputs = []
        for results in self.results.values():  # which keep the memory
            results.clear()

    def tree(self, leaves: list[Any]) -> Any:
        """Leaves as the function returned them."""
        return leaves[0] if self._is_single else pytree.tree_unflatten(leaves, self._spec)

    def replay(self) -> object:
        """Replays the function; what the inputs hold is what it gets. The pool's lock is held.

        Returns:
            A token, which `replay_backward` takes.
        """
        self._graphs[0].replay()
        self.replays += 1
        increment_version(self._written)  # so that autograd sees that they were written over
        self.pool.last_forward = token = object()
        return token

    def replay_backward(self, token: object, gradients: Sequence[Tensor | None]) -> list[Any]:
        """Replays the gradient of the last replay.

        Args:
            token: what `replay` returned.
            gradients: of the outputs; None for zeros.

        Returns:
            Copies of the gradients of the inputs that want one, and of the parameters.

        Raises:
            GraphError: values that are needed were written over: by this function before, or by
                another graph of the pool.
        """
        with self.pool.lock:
            if self._backward is None or token is not self.pool.last_forward:
                raise GraphError(
                    f"{self.label}: the values that the backward pass needs are gone: it has run "
                    "before, or another graph of the pool was replayed after the forward pass. Run "
                    "it once, and first; or give each callable a pool of its own"
                )
            self.pool.order(self.pool.device.stream_handle())
            for target, source in zip(self.gradients_of_outputs, gradients, strict=True):
                if source is None:
                    target.zero_()
                else:
                    target.copy_(source)
            self._backward.replay()
            self.pool.last_forward = None
            # Copies: autograd may keep them as the gradients of leaves.
            return [each if each is None else each.clone() for each in self.gradients]

    def differentiable_outputs(
        self, inputs: Sequence[Tensor], load: Callable[[], None]
    ) -> list[Any]:
        """Replays the function so that autograd records it.

        Args:
            inputs: the call's tensors.
            load: copies them.
        """
        found = _Replay.apply(self, load, len(inputs), *inputs, *self._parameters)
        outputs = list(self.outputs)
        tensors = [i for i, each in enumerate(outputs) if isinstance(each, Tensor)]
        for i, tensor in zip(tensors, found, strict=True):
            outputs[i] = tensor
        return outputs


def _resolved(value: Any) -> Any:
    """A tensor whose memory has its values, even where PyTorch would conjugate or negate later."""
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value


class _Replay(torch.autograd.Function):
    """A replay that autograd records as one operation."""

    @staticmethod
    def forward(
        ctx: Any, graph: CapturedGraph, load: Callable[[], None], count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        load()
        ctx.graph, ctx.token = graph, graph.replay()
        ctx.shapes = [each.shape for each in tensors[:count]]
        # The gradient is computed from what these hold then: autograd must see if they change.
        ctx.save_for_backward(*graph.inputs, *tensors[count:])
        ctx.set_materialize_grads(False)
        outputs = [each.detach() for each in graph.output_tensors]
        recorded = {id(graph.outputs[i]) for i in graph._differentiable}
        is_recorded = [id(each) in recorded for each in graph.output_tensors]
        ctx.places = [i for i, each in enumerate(is_recorded) if each]
        ctx.mark_non_differentiable(
            *[out for out, each in zip(outputs, is_recorded, strict=True) if not each]
        )
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        wanted = [gradients[i] for i in ctx.places]
        found = ctx.graph.replay_backward(ctx.token, wanted)
        _ = ctx.saved_tensors  # an error if one has changed
        of_inputs: list[Tensor | None] = []
        for shape, wants in zip(ctx.shapes, ctx.graph.wants_gradient, strict=True):
            gradient = found.pop(0) if wants else None
            if gradient is not None:
                for dim, size in enumerate(shape):
                    gradient = gradient.narrow(dim, 0, size)
            of_inputs.append(gradient)
        return (None, None, None, *of_inputs, *found)
