"""A communication hook for DistributedDataParallel: gradients are averaged by our all-reduce.

DistributedDataParallel compares a hook's annotations with types. So this module has no
`from __future__ import annotations`, which would leave their names in the place of these.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch.futures import Future

from diglot.distributed.collectives import all_reduce

Hook = Callable[[Any, torch.distributed.GradBucket], Future[torch.Tensor]]


def ddp_hook(
    group: Any = None, *, backend: str | None = None, timeout: float | None = None
) -> Hook:
    """A hook that averages gradients over all ranks, with the same bits on each rank.

    `model.register_comm_hook(None, diglot.distributed.ddp_hook())` gives it to a model of
    `torch.nn.parallel.DistributedDataParallel`. The reductions run on a stream of their own, beside
    the rest of the backward pass. They compute in float32, and round once.

    Args:
        group: the model's process group, which has a `Workspace`; by default the world.
        backend, timeout: as in `all_reduce`.

    Returns:
        The hook. It raises what `all_reduce` raises.
    """
    streams: dict[torch.device, torch.cuda.Stream] = {}

    def average(state: Any, bucket: torch.distributed.GradBucket) -> Future[torch.Tensor]:
        gradients = bucket.buffer()
        device = gradients.device
        if device.type == "cpu":
            future: Future[torch.Tensor] = Future()
            future.set_result(all_reduce(gradients, "avg", group, backend=backend, timeout=timeout))
            return future
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        stream = streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        future = Future(devices=[device])
        with torch.cuda.stream(stream):  # which the future's readers then wait for
            future.set_result(all_reduce(gradients, "avg", group, backend=backend, timeout=timeout))
        return future

    return average
