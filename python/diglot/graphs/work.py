"""What a training step does: forward, loss, backward, clipping, the optimizer's step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from diglot.graphs.errors import GraphError
from diglot.graphs.optimizers import parameters_of
from diglot.ops import clip_grad_norm_


class Work:
    """What a training step does."""

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Callable[..., Tensor],
        optimizer: Optimizer,
        max_norm: float | None,
        norm_type: float,
        accumulation: int,
        scaler: torch.amp.GradScaler | None,
        autocast: torch.dtype | None,
        backend: str | None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.parameters = parameters_of(optimizer)
        self.accumulation, self._max_norm = accumulation, max_norm
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._norm_type, self._backend, self._autocast = norm_type, backend, autocast
        if self.scaler is not None and not getattr(optimizer, "_step_supports_amp_scaling", False):
            raise GraphError(
                f"training_step: with this {type(optimizer).__name__} the scaler asks the GPU "
                "whether gradients are finite, and a graph cannot wait: make it with fused=True"
            )

    def run(self, inputs: Any, targets: Any, part: int) -> Tensor:
        """One part of a batch; after the last one the optimizer's step."""
        device = self.parameters[0].device
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._autocast is not None:
            context = torch.autocast(device.type, dtype=self._autocast, cache_enabled=True)
        if part == 0:
            for parameter in self.parameters:
                parameter.grad = None
        with torch.enable_grad():
            with context:
                result = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
                of = targets if isinstance(targets, tuple) else (targets,)
                value = self.loss(result, *of)
            if value.dim() != 0:
                raise ValueError(
                    f"training_step: loss must return a tensor of shape [], not {list(value.shape)}"
                )
            shared = value if self.accumulation == 1 else value / self.accumulation
            (shared if self.scaler is None else self.scaler.scale(shared)).backward()
        if part == self.accumulation - 1:
            self._update()
        return value.detach()

    def _update(self) -> None:
        if self._max_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.parameters, self._max_norm, self._norm_type, backend=self._backend)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
