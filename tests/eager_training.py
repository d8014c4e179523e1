"""The loop that a captured training step stands for."""

from __future__ import annotations

import torch

import diglot


def train_eagerly(
    model,
    loss,
    optimizer,
    data,
    *,
    accumulation=1,
    scaler=None,
    autocast=None,
    backend=None,
):
    """Trains on batches of inputs and targets, which say the device; each batch's loss."""
    torch.manual_seed(5)
    losses = []
    for i, (inputs, targets) in enumerate(data):
        with torch.autocast(
            inputs.device.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None
        ):
            value = loss(model(inputs), targets)
        losses.append(value.detach())
        shared = value if accumulation == 1 else value / accumulation
        (shared if scaler is None else scaler.scale(shared)).backward()
        if i % accumulation < accumulation - 1:
            continue
        if scaler is not None:
            scaler.unscale_(optimizer)
        diglot.clip_grad_norm_(model.parameters(), 0.5, backend=backend)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return losses
