"""A whole training step captured in CUDA graphs: forward, loss, backward, clipping, optimizer."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from diglot.backends.scratch import held_bytes
from diglot.graphs.arguments import Arguments, only_device
from diglot.graphs.buckets import Buckets
from diglot.graphs.captured import CapturedGraph
from diglot.graphs.device import find_device
from diglot.graphs.errors import GraphError
from diglot.graphs.inputs import StaticInputs, check_types, make_slot
from diglot.graphs.modes import (
    autocast_dtype,
    check_autocast,
    is_run_for_capture,
    run_for_capture,
    undone,
)
from diglot.graphs.optimizers import (
    HyperparameterCheck,
    check_state,
    numbers_in,
    prepare,
    steps_undone,
)
from diglot.graphs.pool import Pool, capturing
from diglot.graphs.report import GraphReport, Report, with_freed_bytes
from diglot.graphs.state import State, StateCheck
from diglot.graphs.work import Work

SIZES = ()  # nothing is padded: there is one bucket


def training_step(
    model: Callable[..., Any],
    loss: Callable[..., Tensor],
    optimizer: Optimizer,
    example: tuple[Any, Any],
    *,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    accumulation: int = 1,
    scaler: torch.amp.GradScaler | None = None,
    autocast: torch.dtype | None = None,
    backend: str | None = None,
    reads: Any = None,
    pool: Pool | None = None,
    warmup: int = 3,
    clone: bool = True,
) -> TrainingStep:
    """Captures a training step, and returns what replays it: `step(inputs, targets)` is the loss.

    A step is what this loop does, where `accumulation` is 1, and so are its results, bit by bit:

        optimizer.zero_grad()
        value = loss(model(inputs), targets)
        value.backward()
        diglot.clip_grad_norm_(parameters, max_norm, norm_type)
        optimizer.step()

    With a larger `accumulation` every call is a part of a batch. The loss is divided by it before
    the backward pass, and the optimizer takes its step after the last part.

    Warm-up and capture leave parameters, buffers, the optimizer, the scaler, gradients and random
    state as they were. Replays leave no gradients in `parameter.grad`.

    Args:
        model: its results are what `loss` takes first. In training mode, if it has modes.
        loss: of the model's result and the targets, a tensor of shape [].
        optimizer: where it has `capturable`, that is set. Its numbers are a part of the graph; a
            learning rate that is a tensor on the GPU can be changed in place.
        example: inputs and targets of a call, a tensor each, or a tuple of tensors.
        max_norm, norm_type: for `diglot.clip_grad_norm_`; without `max_norm` nothing is clipped.
        accumulation: calls for each step of the optimizer, 1 or more.
        scaler: scales the loss. The optimizer must be a fused one, since others ask the GPU whether
            gradients are finite.
        autocast: the dtype of the forward pass and the loss; None for the autocast around the call.
            The latter must be in each call as in this one: the backward pass runs in it.
        backend: of the clipping.
        reads: what else model and loss read, as in `capture`.
        pool: as in `capture`.
        warmup: steps before the capture, 1 or more.
        clone: whether losses are copies. Otherwise the pool's next replay writes over them.

    Raises:
        TypeError: an argument is of another type than it must be.
        ValueError: `accumulation` or `warmup` is no positive integer; tensors on several devices.
        GraphError: the step cannot be captured, or a replay would not do what the optimizer does.
    """
    for name, number in (("accumulation", accumulation), ("warmup", warmup)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"training_step: {name} must be a positive integer, not {number!r}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"training_step: optimizer must be a torch.optim.Optimizer, not "
            f"{type(optimizer).__name__}"
        )
    if not isinstance(example, tuple) or len(example) != 2:
        raise TypeError("training_step: example must be a tuple (inputs, targets)")
    work = Work(
        model, loss, optimizer, max_norm, norm_type, accumulation, scaler, autocast, backend
    )
    return TrainingStep(work, example, reads, pool, warmup, clone)


class TrainingStep:
    """What `training_step` returns: a step that is replayed.

    Attributes:
        pool: the memory of its graphs.
        part: which part of a batch the next call is; 0 begins a new batch.
    """

    def __init__(
        self,
        work: Work,
        example: tuple[Any, Any],
        reads: Any,
        pool: Pool | None,
        warmup: int,
        clone: bool,
    ) -> None:
        self._work, self._clone = work, clone
        self._arguments = Arguments(None, example, {})
        tensors, self._key = self._arguments.split(example, {})
        device = only_device("training_step", (*tensors, *work.parameters))
        self._device = find_device(device)
        self.pool = Pool(self._device.device) if pool is None else pool
        if self.pool.device is not self._device:
            raise ValueError(
                f"training_step: the pool is on {self.pool.device.device}, the example on {device}"
            )
        if self._device.is_capturing():
            raise GraphError("training_step: a graph is being captured, and captures do not nest")
        slots = [
            make_slot(self._arguments.names[place], tensor, {}, None, False)
            for place, tensor in zip(self._arguments.places(self._key), tensors, strict=True)
        ]
        self._inputs = StaticInputs(slots, Buckets((), [SIZES]), self._device.device)
        self._load = self._inputs.prepare(SIZES, SIZES)
        groups = [group["params"] for group in work.optimizer.param_groups]
        find_state = functools.partial(State, work.model, work.loss, {"optimizer": groups}, reads)
        self._state = find_state()
        self._around = autocast_dtype(device.type)  # the backward pass is in no other autocast
        self._eager_ms: float | None = None
        self._measured: tuple[float, float] | None = None
        self.part = 0
        self._kinds: set[Hashable] = set()  # of calls whose arguments are as the example's
        self._gradients: list[Tensor | None] = []
        prepare(work.optimizer, self._device.device)
        if work.scaler is not None:  # its scale is a tensor from the first one on
            work.scaler.scale(torch.zeros((), device=self._device.device))
        with capturing(self.pool):
            self._inputs.load(tensors, self._load)
            with self._undone():
                self._warm_up(warmup)
            self._state = find_state()  # with what modules make at their first call
            with self._gradients_kept():
                self._capture()
        self._check = StateCheck(self._state, with_gradients=True)
        self._numbers = HyperparameterCheck(work.optimizer)

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """The loss of a batch, or of a part of one; parameters are changed by the last part.

        Raises:
            TypeError, ValueError: a tensor is not as the example's.
            GraphError: a tensor, a mode or a number has changed since the capture; the message
                names it. Or the call is within the capture of another graph.
        """
        stream = self._device.free_stream()
        if stream is None or is_run_for_capture():
            raise GraphError("training_step: a captured step cannot be a part of another graph")
        kind, places, tensors = self._arguments.read((inputs, targets), {})
        if kind not in self._kinds:
            if self._arguments.split((inputs, targets), {})[1] != self._key:
                raise TypeError(
                    "training_step: arguments that are no tensors must be the example's"
                )
            check_types("training_step", self._inputs.slots, tensors)
            for slot, tensor in zip(self._inputs.slots, tensors, strict=True):
                slot.sizes_in(tensor.shape)
            self._kinds.add(kind)
        with self.pool.lock:
            self.pool.check()
            self._check.check()
            check_autocast(self._around, self._device.device.type)
            self._numbers.check()
            self.pool.order(stream, self._inputs)
            self._inputs.load(tensors, self._load, places, stream)
            is_last = self.part == self._work.accumulation - 1
            return self._replay(self._graphs[-1 if is_last else min(self.part, 1)])

    def _replay(self, graph: CapturedGraph) -> Tensor:
        if not graph.is_alive:
            raise GraphError("training_step: its pool was built anew or released: capture anew")
        graph.replay()
        if self.part == self._work.accumulation - 1:
            increment_version(self._work.parameters)  # fused optimizers leave versions as they are
        self.part = (self.part + 1) % self._work.accumulation
        value = graph.output_tensors[0]
        return value.clone() if self._clone else value

    # --- capture -----------------------------------------------------------------------------

    @property
    def _parts(self) -> list[int]:
        """The parts of a batch that differ: the first, one in the middle, the last."""
        last = self._work.accumulation - 1
        return sorted({0, min(1, last), last})

    def _run(self, part: int) -> Callable[[list[Tensor]], Tensor]:
        return self._arguments.caller(functools.partial(self._work.run, part=part), self._key)

    def _buffers(self) -> list[Tensor]:
        known = set(map(id, self._work.parameters))
        return [tensor for tensor in self._state.tensors if id(tensor) not in known]

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Context manager: what steps in it change is as before."""
        tensors = [*self._work.parameters, *self._buffers()]
        scaler = self._work.scaler
        if scaler is not None:
            tensors += [t for t in (scaler._scale, scaler._growth_tracker) if t is not None]
        tensors += [gradient for gradient in self._gradients if gradient is not None]
        part = self.part
        try:
            with undone(self._device, tensors), steps_undone(self._work.optimizer):
                yield
        finally:
            self.part = part

    @contextlib.contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        """Context manager: gradients are as before; those of graphs live as long as these."""
        before = [parameter.grad for parameter in self._work.parameters]
        try:
            yield
        finally:
            self._gradients = [parameter.grad for parameter in self._work.parameters]
            for parameter, gradient in zip(self._work.parameters, before, strict=True):
                parameter.grad = gradient

    def _eager_step(self) -> None:
        views = self._inputs.views(SIZES)
        for part in range(self._work.accumulation):
            self._run(part)(views)

    def _warm_up(self, warmup: int) -> None:
        optimizer, device = self._work.optimizer, self._device
        places = [(place, place.value) for place in self._state.places]
        with run_for_capture(), device.side_stream():
            for _ in range(warmup):
                before = numbers_in(optimizer)
                self._eager_ms = device.elapsed_ms(self._eager_step)
                check_state(optimizer, device.device, before)
        for place, tensor in places:
            if place.value is not tensor:
                raise GraphError(
                    f"training_step: a step replaces {place.name} by another tensor, which no "
                    "replay would do: change it in place (copy_)"
                )

    def _capture(self) -> None:
        self._graphs = [
            CapturedGraph(
                self.pool,
                "training step" if len(self._parts) == 1 else f"part {part} of a training step",
                self._run(part),
                self._inputs.views(SIZES),
                [False] * len(self._inputs.slots),
                [],
                self._state.tensors,
            )
            for part in self._parts
        ]

    # --- what it has -------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Any, Any]:
        """The memory of inputs and targets. Who writes there and calls with it spares copies."""
        tree = self._arguments.caller(lambda *args: args, self._key)
        with self.pool.lock:
            return tree(self._inputs.valid(SIZES, SIZES))

    @property
    def graphs(self) -> dict[str, CapturedGraph]:
        """The graphs that were captured, by name."""
        return {graph.label: graph for graph in self._graphs if graph.is_alive}

    def measure(self, steps: int = 20) -> Report:
        """Times steps, on the batch that was given last, and reports. Nothing of them stays."""
        device, batch = self._device, self.inputs

        def replays() -> None:
            for _ in range(steps * self._work.accumulation):
                self(*batch)

        with self.pool.lock, self._undone():
            self.part = 0
            device_us = 1e3 * device.elapsed_ms(replays) / steps
            began = time.perf_counter()
            replays()
            host_us = 1e6 * (time.perf_counter() - began) / steps
            device.synchronize()
        self._measured = device_us, host_us
        return self.report()

    def report(self) -> Report:
        """What its graphs cost, so far. Times are those of a whole step.

        It waits for a capture of another thread.
        """
        with self.pool.lock:
            return self._report()

    def _report(self) -> Report:
        replay_us, host_us = self._measured or (None, None)
        graphs = []
        for graph in self._graphs:
            is_last = graph is self._graphs[-1]
            graphs.append(
                GraphReport(
                    graph.label,
                    self._inputs.buffer.numel(),
                    graph.added_bytes,
                    graph.needed_bytes,
                    0,
                    graph.capture_ms,
                    graph.replays,
                    1e3 * self._eager_ms if is_last and self._eager_ms is not None else None,
                    replay_us if is_last else None,
                    host_us if is_last else None,
                )
            )
        return Report(
            with_freed_bytes(graphs),
            self.pool.bytes,
            held_bytes(self._device.device)["graphs"],
            self._inputs.buffer.numel(),
            0,
            self.pool.rebuilds,
        )

    def release(self) -> None:
        """Lets its graphs go; a later call is an error."""
        with self.pool.lock:
            for graph in self._graphs:
                graph.drop()
            self._gradients = []
