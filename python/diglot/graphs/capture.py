"""A function captured in CUDA graphs: the public call."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from diglot.backends.scratch import held_bytes
from diglot.graphs.arguments import Arguments, Key, only_device
from diglot.graphs.buckets import Buckets, Sizes, dims_of, make_buckets, out_dims_of
from diglot.graphs.captured import CapturedGraph
from diglot.graphs.device import find_device
from diglot.graphs.errors import GraphError
from diglot.graphs.family import Family, Route
from diglot.graphs.inputs import Slot, make_slot
from diglot.graphs.modes import is_run_for_capture
from diglot.graphs.pool import Pool, capturing
from diglot.graphs.progress import progress_bar
from diglot.graphs.report import GraphReport, Report, with_freed_bytes
from diglot.graphs.state import State


def capture(
    fn: Callable[..., Any],
    example: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dims: Any = None,
    buckets: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
    padding: Any = 0,
    out_dims: Any = None,
    reads: Any = None,
    pool: Pool | None = None,
    warmup: int = 3,
    max_padding: float = 2.0,
    clone: bool = False,
    lazy: bool = False,
    progress: bool = False,
) -> GraphedCallable:
    """Captures a function in CUDA graphs, and returns what replays them.

    The result has `fn`'s signature. A call copies its tensors into the memory that a graph reads,
    replays the graph, and returns views of the memory that it writes. The next call writes over
    them, and so does any replay of a graph of the same pool; `clone=True` returns copies.
    docs/graphs.md explains it.

    Each graph is captured after `warmup` calls on a side stream, which load kernels, tune and
    allocate. Random state, and buffers of modules in training mode, are then as before. What else
    the function writes, it writes in these calls too.

    Where an output requires grad, the gradient is captured too, and results can be differentiated
    once. The gradient must be asked for before another graph of the pool is replayed.

    Arguments that are no tensors are a part of the graph's key: other values are another capture.

    Args:
        fn: a function of tensors, in trees of lists, tuples and dictionaries. It must do the same
            work in every call, and wait for nothing. `torch.compile` may have compiled it, but not
            in a mode that makes CUDA graphs.
        example: its arguments, a tuple; or its only one.
        kwargs: further arguments, by name.
        dims: the dimensions of the arguments that differ in length: a tree like the example's. In
            it {dimension: name} stands for a tensor that has such, and None for others.
        buckets: the lengths that graphs are captured for, by name: all combinations are buckets. Or
            a list of buckets. A call takes the smallest that holds it. By default there is one
            bucket, as large as the example.
        padding: what lies beyond a call's elements: a number, or a tree of numbers like the
            example's; None where the function does not read it, as under a mask.
        out_dims: as `dims`, of the result. By default it is found out, by calls with other sizes.
        reads: other modules or tensors that the function reads, in lists or dictionaries. Most of
            them are found by themselves: in modules, objects whose methods are called, closures,
            default values, named globals, partial functions, and arguments that are no tensors.
        pool: memory to share with other graphs; by default one for all graphs of this call.
        warmup: calls before each capture, 1 or more.
        max_padding: the largest ratio of a bucket's size to a call's. Beyond it the call runs
            eagerly, with a warning.
        clone: whether results are copies.
        lazy: whether a bucket is captured when it is first needed, after the largest one, instead
            of now.
        progress: whether a bar shows the captures, on standard error; it needs rich.

    Raises:
        TypeError: `fn` is not callable, or an argument that is no tensor is not hashable.
        ValueError: no tensor, tensors on several devices, or dims and buckets that do not fit.
        GraphError: the function cannot be captured; a graph is being captured.
    """
    if not callable(fn):
        raise TypeError(f"capture: fn must be callable, not {type(fn).__name__}")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
        raise ValueError(f"capture: warmup must be a positive integer, not {warmup!r}")
    if not max_padding >= 1:
        raise ValueError(f"capture: max_padding must be 1 or more, not {max_padding!r}")
    args = example if type(example) is tuple else (example,)  # a named one is an argument
    graphed = GraphedCallable(
        fn,
        args,
        kwargs or {},
        dims=dims,
        buckets=buckets,
        padding=padding,
        out_dims=out_dims,
        reads=reads,
        pool=pool,
        warmup=warmup,
        max_padding=max_padding,
        clone=clone,
    )
    if not lazy:
        graphed.capture_all(progress=progress)
    return graphed


class GraphedCallable:
    """What `capture` returns: a function that is replayed.

    Attributes:
        pool: the memory of its graphs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        dims: Any,
        buckets: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None,
        padding: Any,
        out_dims: Any,
        reads: Any,
        pool: Pool | None,
        warmup: int,
        max_padding: float,
        clone: bool,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name = fn, getattr(fn, "__name__", type(fn).__name__)
        self._arguments = Arguments(fn, args, kwargs)
        self._example, self._key = self._arguments.split(args, kwargs)
        device = only_device("capture", self._example)
        self.pool = Pool(device) if pool is None else pool
        self._device = self.pool.device
        if self._device is not find_device(device):
            raise ValueError(
                f"capture: the pool is on {self._device.device}, the example on {device}"
            )
        if self._device.is_capturing():
            raise GraphError("capture: a graph is being captured, and captures do not nest")
        self._dims, self._names = dims_of(self._arguments.spread(dims, "dims") if dims else None)
        self._padding = (
            self._arguments.spread(padding, "padding", 0) if _is_tree(padding) else padding
        )
        self._out_dims = out_dims
        self._buckets = self._make_buckets(buckets)
        self._reads = reads
        self._warmup, self._max_padding, self._clone = warmup, max_padding, clone
        self._measured: dict[int, tuple[float, float]] = {}
        self._families: dict[Key, Family] = {}
        self._routes: dict[Hashable, Route] = {}  # by the kind of a call
        self._family(self._key, self._example)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the captured function; results are views that the next replay writes over.

        In the capture of another graph, and in the warm-up before it, the function itself runs, and
        becomes a part of that graph.
        """
        stream = self._device.free_stream()
        if stream is None or is_run_for_capture():
            return self._fn(*args, **kwargs)
        kind, places, tensors = self._arguments.read(args, kwargs)
        with self.pool.lock:
            route = self._routes.get(kind) or self._find_route(kind, args, kwargs)
            if route.bucket is None:
                self.pool.check()
                route.family.eager_calls += 1
            elif route.is_ready or route.family.prepare(route):
                return route.family.replay(route, tensors, places, stream, self._clone)
        if route.bucket is None:
            return self._fn(*args, **kwargs)
        with capturing(self.pool):  # which waits for other threads' captures
            route.family.prepare(route, tensors)
            return route.family.replay(route, tensors, places, stream, self._clone)

    def _find_route(
        self, kind: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Route:
        tensors, key = self._arguments.split(args, kwargs)
        family = self._families.get(key) or self._family(key, tensors)
        route = self._routes[kind] = family.route(tensors)
        return route

    # --- what it was asked for ---------------------------------------------------------------

    def _make_buckets(
        self, given: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None
    ) -> Buckets:
        sizes: dict[int, int] = {}
        for place, tensor in zip(self._arguments.places(self._key), self._example, strict=True):
            for dim, name in self._dims_at(place).items():
                if not -tensor.dim() <= dim < tensor.dim():
                    raise ValueError(
                        f"capture: dims names dimension {dim} of {self._arguments.names[place]}, "
                        f"which has {tensor.dim()}"
                    )
                size = tensor.shape[dim]
                if sizes.setdefault(name, size) != size:
                    raise ValueError(
                        f"capture: {self._names[name]} is {sizes[name]} in one argument of the "
                        f"example and {size} in {self._arguments.names[place]}"
                    )
        example = tuple(sizes[name] for name in range(len(self._names)))
        return make_buckets(self._names, example, given)

    def _dims_at(self, place: int) -> dict[int, int]:
        return self._dims[place] if self._dims else {}

    def _family(self, key: Key, tensors: Sequence[Tensor]) -> Family:
        places = self._arguments.places(key)
        slots: list[Slot] = []
        for place, tensor in zip(places, tensors, strict=True):
            dims = {dim % tensor.dim(): name for dim, name in self._dims_at(place).items()}
            padding = self._padding[place] if isinstance(self._padding, list) else self._padding
            wants = tensor.requires_grad and torch.is_grad_enabled()
            slots.append(make_slot(self._arguments.names[place], tensor, dims, padding, wants))
        family = self._families[key] = Family(
            self._name,
            self._arguments.caller(self._fn, key),
            slots,
            self._buckets,
            out_dims_of(self._out_dims, self._names),
            functools.partial(State, self._fn, self._reads, self._arguments.constants(key)),
            self.pool,
            self._warmup,
            self._max_padding,
        )
        return family

    def capture_all(self, *, progress: bool = False) -> None:
        """Captures every bucket that is not captured yet, for the example's other arguments."""
        family = self._families[self._key]
        with progress_bar(progress, self._name, len(self._buckets.smallest_first)) as tell:
            family.capture_all(self._example, tell)

    # --- what it has -------------------------------------------------------------------------

    @property
    def inputs(self) -> Any:
        """The memory that the largest bucket reads, in the form of the arguments.

        A call with these tensors copies nothing.
        """
        return self.inputs_for()

    def inputs_for(self, **sizes: int) -> Any:
        """The memory that a call of these sizes reads, such as `inputs_for(batch=3)`.

        Args:
            sizes: by the names in dims; a name that is left out is as in the largest bucket.

        Returns:
            The arguments: (args, kwargs) if there are keyword arguments, else args.

        Raises:
            ValueError: no bucket holds these sizes, or a name is unknown.
        """
        unknown = set(sizes) - set(self._names)
        if unknown:
            raise ValueError(f"inputs_for: dims has no {', '.join(sorted(unknown))}")
        largest = self._buckets.largest_first[0]
        wanted = tuple(sizes.get(n, size) for n, size in zip(self._names, largest, strict=True))
        bucket = self._buckets.fit(wanted)
        if bucket is None:
            raise ValueError(
                f"inputs_for: no bucket holds {self._buckets.describe(wanted)}; there are "
                f"{self._buckets}"
            )
        args, kwargs = self._arguments_in(self._key, bucket, wanted)
        return (args, kwargs) if kwargs else args

    def _arguments_in(
        self, key: Key, bucket: Sizes, sizes: Sizes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tree = self._arguments.caller(lambda *args, **kwargs: (args, kwargs), key)
        with self.pool.lock:
            return tree(self._families[key].inputs.valid(bucket, sizes))

    @property
    def graphs(self) -> dict[str, CapturedGraph]:
        """The graphs that were captured, by name, the first captured first."""
        with self.pool.lock:
            found = [graph for _, graph in self._captured()]
        return {graph.label: graph for graph in sorted(found, key=lambda graph: graph.number)}

    def _captured(self) -> Iterator[tuple[tuple[Key, Sizes], CapturedGraph]]:
        for key, family in self._families.items():
            for bucket, graph in family.captured.items():
                if graph.is_alive:
                    yield (key, bucket), graph

    def measure(self, calls: int = 20) -> Report:
        """Times replays of each graph, on what its arguments hold, and reports.

        The function runs `calls` times and more for each graph. It writes what it writes at each
        call.
        """
        device = self._device
        with capturing(self.pool), torch.no_grad():
            for (key, bucket), graph in list(self._captured()):
                self.pool.order(device.stream_handle(), self._families[key].inputs)
                args, kwargs = self._arguments_in(key, bucket, bucket)

                def replays(graph: CapturedGraph = graph) -> None:
                    for _ in range(calls):
                        graph.replay()

                device_us = 1e3 * device.elapsed_ms(replays) / calls
                self(*args, **kwargs)
                began = time.perf_counter()
                for _ in range(calls):
                    self(*args, **kwargs)
                host_us = 1e6 * (time.perf_counter() - began) / calls
                device.synchronize()
                self._measured[graph.number] = device_us, host_us
        return self.report()

    def report(self) -> Report:
        """What its graphs cost, so far. It waits for a capture of another thread."""
        with self.pool.lock:
            return self._report()

    def _report(self) -> Report:
        graphs = []
        for (key, bucket), graph in sorted(self._captured(), key=lambda each: each[1].number):
            family = self._families[key]
            eager_ms = family.eager_ms.get(bucket)
            replay_us, host_us = self._measured.get(graph.number, (None, None))
            graphs.append(
                GraphReport(
                    graph.label,
                    sum(slot.bytes_for(bucket) for slot in family.inputs.slots),
                    graph.added_bytes,
                    graph.needed_bytes,
                    0,
                    graph.capture_ms,
                    graph.replays,
                    None if eager_ms is None else 1e3 * eager_ms,
                    replay_us,
                    host_us,
                )
            )
        families = self._families.values()
        return Report(
            with_freed_bytes(graphs),
            self.pool.bytes,
            held_bytes(self._device.device)["graphs"],
            sum(family.inputs.buffer.numel() for family in families),
            sum(family.eager_calls for family in families),
            self.pool.rebuilds,
            [reason for family in families for reason in family.failed.values()],
        )

    def release(self) -> None:
        """Lets all graphs go; a later call captures again.

        Memory is freed when the pool has no graph left, and no result is used.
        """
        with self.pool.lock:
            for family in self._families.values():
                family.release()


def _is_tree(value: Any) -> bool:
    return isinstance(value, (tuple, list, dict))
