"""The graphs of a function for one set of arguments that are no tensors: one for each bucket."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diglot.graphs.arguments import Places
from diglot.graphs.buckets import Buckets, Sizes, padding_of
from diglot.graphs.captured import CapturedGraph
from diglot.graphs.errors import GraphError, GraphWarning
from diglot.graphs.forms import Form, changed_dims, form_of
from diglot.graphs.inputs import Load, Slot, StaticInputs, check_types
from diglot.graphs.modes import (
    as_captured,
    check_autocast,
    check_modes,
    current_modes,
    run_for_capture,
    undone,
)
from diglot.graphs.pool import Pool, capturing
from diglot.graphs.state import State, StateCheck, leaves_of

Tell = Callable[[str], None]


@dataclass
class Route:
    """How calls of one kind are run.

    Attributes:
        family: whose graphs they take.
        sizes: of the named dimensions.
        bucket: that they are padded to; None if they run eagerly.
        load: how arguments get into the bucket's views.
        graph: that of the last call.
        is_recorded: whether autograd records the calls.
        results: views of the graph's outputs, as calls return them; empty before the first call.
    """

    family: Family
    sizes: Sizes
    bucket: Sizes | None
    load: Load | None = None
    graph: CapturedGraph | None = None
    is_recorded: bool = False
    results: list[Any] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Whether it has a graph that can be replayed."""
        return self.graph is not None and self.graph.is_alive


class Family:
    """Graphs that read their arguments from one buffer.

    Args:
        name: the function's, in messages.
        function: of a list of tensors.
        slots: those tensors.
        buckets: the sizes that graphs are for.
        output_dims: for each leaf of the result, its padded dimensions, with the numbers of their
            names; None to find them out.
        find_state: finds what else the function reads.
        pool: where the graphs' memory is.
        warmup: calls before a capture.
        max_padding: the largest ratio of a bucket's size to a call's.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[list[Tensor]], Any],
        slots: Sequence[Slot],
        buckets: Buckets,
        output_dims: list[dict[int, int]] | None,
        find_state: Callable[[], State],
        pool: Pool,
        warmup: int,
        max_padding: float,
    ) -> None:
        self.name, self.buckets, self.pool = name, buckets, pool
        self.captured: dict[Sizes, CapturedGraph] = {}
        self.failed: dict[Sizes, str] = {}  # why: an error would keep all that its frames hold
        self.eager_ms: dict[Sizes, float] = {}
        self.eager_calls = 0
        self._function, self._slots = function, list(slots)
        self._warmup, self._max_padding = warmup, max_padding
        self._output_dims = output_dims
        self._wants_gradient = [slot.requires_grad for slot in slots]
        self._device_type = pool.device.device.type
        self.modes = current_modes(self._device_type)
        self._find_state = find_state
        self._look()
        self.inputs = StaticInputs(slots, buckets, pool.device.device)

    def _look(self) -> None:
        """Finds what the function reads. From now on it must stay."""
        self.state = self._find_state()
        self._parameters = self.state.parameters if self.modes[0] else []
        self.check = StateCheck(self.state)

    # --- a call ------------------------------------------------------------------------------

    def route(self, tensors: Sequence[Tensor]) -> Route:
        """How calls with tensors of these shapes are run.

        Raises:
            TypeError, ValueError, GraphError: a tensor is not as the captured one was.
        """
        check_types(self.name, self._slots, tensors)
        sizes = self._sizes_of([tensor.shape for tensor in tensors])
        bucket: Sizes | None = self.buckets.fit(sizes)
        if bucket is None:
            raise ValueError(
                f"{self.name}: no bucket holds {self.buckets.describe(sizes)}; there are "
                f"{self.buckets}: add a larger one, or split the call"
            )
        padding = padding_of(bucket, sizes)
        if padding > self._max_padding:
            warnings.warn(
                f"{self.name} runs eagerly for {self.buckets.describe(sizes)}: the bucket that "
                f"holds it, {self.buckets.describe(bucket)}, is {padding:.3g} times as large, and "
                f"max_padding is {self._max_padding:g}",
                GraphWarning,
                stacklevel=4,
            )
            bucket = None
        return Route(self, sizes, bucket)

    def prepare(self, route: Route, tensors: Sequence[Tensor] | None = None) -> bool:
        """Gives a route its bucket's graph. The pool's lock is held.

        Args:
            tensors: a call's. If there is no graph, one is captured, and both locks are held. By
                default none is captured.

        Returns:
            Whether the route has a graph.

        Raises:
            GraphError: the graph cannot be captured, or would not record what this call would.
        """
        assert route.bucket is not None
        self.pool.check()
        graph = self._graph_of(route.bucket)
        if graph is None:
            if tensors is None:
                return False
            graph = self._capture_for(route.bucket, tensors)
        check_modes(self.modes, graph.has_gradient, self._device_type)
        route.load = self.inputs.prepare(route.bucket, route.sizes)
        route.is_recorded = graph.has_gradient and torch.is_grad_enabled()
        route.results = graph.results.setdefault(route.sizes, [])
        route.graph = graph
        return True

    def replay(
        self, route: Route, tensors: Sequence[Tensor], places: Places, stream: int, clone: bool
    ) -> Any:
        """The results of a call whose route is ready. The pool's lock is held.

        Args:
            tensors: the call's.
            places: where these are.
            stream: the current one's handle.
            clone: whether results are copies.

        Raises:
            GraphError: the graph must not be replayed.
        """
        graph, load, results = route.graph, route.load, route.results
        assert graph is not None and load is not None
        self.check.check()
        check_autocast(self.modes[1], self._device_type)
        self.pool.order(stream, self.inputs)
        if route.is_recorded:
            outputs = graph.differentiable_outputs(
                tensors, lambda: self.inputs.load(tensors, load, places, stream)
            )
            results = self._valid_results(outputs, route.sizes)
        else:
            self.inputs.load(tensors, load, places, stream)
            graph.replay()
            if not results:
                with torch.inference_mode(False), torch.no_grad():
                    results += self._valid_results(graph.outputs, route.sizes)
        if clone:
            results = [each.clone() if isinstance(each, Tensor) else each for each in results]
        return graph.tree(results)

    def _sizes_of(self, shapes: Sequence[Sequence[int]]) -> Sizes:
        found: dict[int, tuple[int, str]] = {}
        for slot, shape in zip(self._slots, shapes, strict=True):
            try:
                sizes = slot.sizes_in(shape)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from None
            for name, size in sizes.items():
                known, where = found.setdefault(name, (size, slot.name))
                if known != size:
                    raise ValueError(
                        f"{self.name}: {self.buckets.names[name]} is {known} in {where} and {size} "
                        f"in {slot.name}"
                    )
        return tuple(found[name][0] for name in range(len(self.buckets.names)))

    def _valid_results(self, outputs: Sequence[Any], sizes: Sizes) -> list[Any]:
        results = []
        for output, dims in zip(outputs, self._output_dims or [{}] * len(outputs), strict=True):
            for dim, name in dims.items():
                output = output.narrow(dim, 0, sizes[name])
            results.append(output)
        return results

    # --- captures ----------------------------------------------------------------------------

    def capture_all(self, tensors: Sequence[Tensor], tell: Tell) -> None:
        """Captures the buckets that have no graph, the largest first.

        One for which memory lacks is left out.
        """
        for bucket in self.buckets.largest_first:
            tell(self.buckets.describe(bucket))
            with capturing(self.pool):
                if self._graph_of(bucket) is None:
                    self._capture_if_room(bucket, tensors)

    def release(self) -> None:
        """Lets all graphs go. The next capture is a first one: that of the largest bucket."""
        for graph in self.captured.values():
            graph.drop()
        self.captured.clear()

    def _graph_of(self, bucket: Sizes) -> CapturedGraph | None:
        """A bucket's graph, if it has one that was not dropped."""
        graph = self.captured.get(bucket)
        return graph if graph is not None and graph.is_alive else None

    def _capture_for(self, bucket: Sizes, tensors: Sequence[Tensor]) -> CapturedGraph:
        """Captures a bucket when a call needs it; the largest before all others."""
        largest = self.buckets.largest_first[0]
        if not self.captured and bucket != largest:
            self._capture_if_room(largest, tensors)
        return self._capture(bucket, tensors)

    def _capture_if_room(self, bucket: Sizes, tensors: Sequence[Tensor]) -> None:
        """Captures a bucket, or warns that memory lacks for it."""
        try:
            self._capture(bucket, tensors)
        except GraphError as error:
            if bucket not in self.failed:
                raise
            warnings.warn(str(error), GraphWarning, stacklevel=5)

    def _capture(self, bucket: Sizes, tensors: Sequence[Tensor]) -> CapturedGraph:
        if bucket in self.failed:
            raise GraphError(self.failed[bucket])
        self.check.check()
        check_modes(self.modes, self.modes[0], self._device_type)
        # Another stream's replay may still read them.
        self.pool.order(self.pool.device.stream_handle(), self.inputs)
        label = f"{self.name} ({self.buckets.describe(bucket)})"
        graph = None
        try:
            with as_captured(self.modes):
                self._warm_up(bucket, tensors)
                if not self.captured:
                    self._look()  # again, with what modules make at their first call
                graph = self._capture_views(bucket, label)
                if self.pool.is_over_limit() and len(self.pool.graphs) > 1:
                    self.pool.rebuild()
                    graph = self._capture_views(bucket, label)
        except torch.OutOfMemoryError as error:
            self.failed[bucket] = (
                f"{label}: out of memory in its capture; smaller buckets stay usable. Free memory "
                f"and capture anew, or leave this bucket out. ({error})"
            )
        if graph is None:  # by now the error's frames have let go of what it had allocated
            self.pool.device.trim()
        elif self.pool.is_over_limit():
            self.failed[bucket] = (
                f"{label} alone reserves {self.pool.bytes:,} bytes, and its pool's limit is "
                f"{self.pool.limit:,}: raise the limit, or leave this bucket out"
            )
            self.pool.rebuild()
        if graph is None or bucket in self.failed:
            raise GraphError(self.failed[bucket])
        self.captured[bucket] = graph
        return graph

    def _capture_views(self, bucket: Sizes, label: str) -> CapturedGraph:
        return CapturedGraph(
            self.pool,
            label,
            self._function,
            self.inputs.views(bucket),
            self._wants_gradient,
            self._parameters,
            self.state.tensors,
        )

    def _warm_up(self, bucket: Sizes, tensors: Sequence[Tensor]) -> None:
        """Runs the function as it will be captured, so that all it needs once is done."""
        sizes = tuple(map(min, self._sizes_of([tensor.shape for tensor in tensors]), bucket))
        written = [
            buffer
            for _, module in self.state.modules
            if module.training
            for buffer in module.buffers(recurse=False)
        ]
        device = self.pool.device
        kept = self.inputs.kept()  # what the caller may have written there for this call
        with kept, undone(device, written), run_for_capture(), device.side_stream():
            self._load_example(tensors, bucket, sizes)
            views = self.inputs.views(bucket)
            shapes: list[Any] = []
            for _ in range(self._warmup):
                version = self.inputs.buffer._version
                self.eager_ms[bucket] = device.elapsed_ms(
                    lambda: shapes.append(self._run_once(views))
                )
                if self.inputs.buffer._version != version:
                    raise GraphError(
                        f"{self.name} writes into an argument, which would be the graph's copy of "
                        "it: return the result instead"
                    )
            if any(each != shapes[0] for each in shapes):
                raise GraphError(
                    f"{self.name} returned other shapes or numbers for the same arguments, "
                    f"{shapes}: a graph has one"
                )
            if self._output_dims is None and self.buckets.names:
                self._output_dims = self._find_output_dims(bucket, shapes[0], tensors)

    def _load_example(self, tensors: Sequence[Tensor], bucket: Sizes, sizes: Sizes) -> None:
        valid = [
            tensor.detach()[tuple(slice(size) for size in slot.shape_for(sizes))]
            for slot, tensor in zip(self._slots, tensors, strict=True)
        ]
        self.inputs.load(valid, self.inputs.prepare(bucket, sizes))

    def _run_once(self, views: Sequence[Tensor]) -> list[Form]:
        """Runs the function and its gradient; the forms of its outputs."""
        leaves = [
            view.detach().requires_grad_(wants)
            for view, wants in zip(views, self._wants_gradient, strict=True)
        ]
        outputs = pytree.tree_leaves(self._function(leaves))
        recorded = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
        if recorded:
            wanted = [*(leaf for leaf in leaves if leaf.requires_grad), *self._parameters]
            known = set(map(id, wanted))
            for leaf in leaves_of(recorded):
                if id(leaf) not in known:
                    raise GraphError(
                        f"{self.name} has a gradient to a tensor of shape {tuple(leaf.shape)} that "
                        "was not found, and no replay would give it: give it in reads"
                    )
            ones = [torch.ones_like(output) for output in recorded]
            torch.autograd.grad(recorded, wanted, ones, allow_unused=True)
        return list(map(form_of, outputs))

    def _find_output_dims(
        self, bucket: Sizes, shapes: Sequence[Form], tensors: Sequence[Tensor]
    ) -> list[dict[int, int]]:
        """Which dimensions of outputs are as long as the named ones: what changes with them."""
        found: list[dict[int, int]] = [{} for _ in shapes]
        for name in range(len(self.buckets.names)):
            other = self._other_sizes(bucket, name)
            if other is None:
                continue
            self._load_example(
                tensors,
                other,
                tuple(map(min, self._sizes_of([tensor.shape for tensor in tensors]), other)),
            )
            changed = self._run_once(self.inputs.views(other))
            at, at_other = self.buckets.describe(bucket), self.buckets.describe(other)
            try:
                dims = list(changed_dims(shapes, changed, (bucket[name], other[name])))
            except ValueError as error:
                raise GraphError(f"{self.name}: for {at} and {at_other} {error}") from None
            for output, dim in dims:
                found[output][dim] = name
        return found

    def _other_sizes(self, bucket: Sizes, name: int) -> Sizes | None:
        """Smaller sizes than a bucket's, in one name alone."""
        smaller = {each[name] for each in self.buckets.smallest_first if each[name] < bucket[name]}
        size = max(smaller, default=bucket[name] - 1)
        return None if size < 1 else (*bucket[:name], size, *bucket[name + 1 :])
