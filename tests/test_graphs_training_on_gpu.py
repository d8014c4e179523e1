"""Training steps in CUDA graphs, on a GPU."""

from __future__ import annotations

import pytest
import torch
from eager_training import train_eagerly
from torch import nn

import diglot
from diglot.graphs import training_step

pytestmark = pytest.mark.gpu
STEPS = 10


def _train(graphed, model, optimizer, data, **options):
    loss = nn.CrossEntropyLoss()
    if not graphed:
        return train_eagerly(model, loss, optimizer, data, **options)
    torch.manual_seed(5)
    step = training_step(model, loss, optimizer, data[0], max_norm=0.5, **options)
    return [step(*batch) for batch in data]


@pytest.mark.parametrize(
    "case", ["plain", "fused", "accumulation", "autocast", "scaler", "tensor rate", "sgd"]
)
def test_ten_steps_are_eager_s(case):
    """Bit by bit, with dropout, BatchNorm and clipping."""
    results = []
    for graphed in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8)
        ).cuda()
        rate = torch.tensor(0.01, device="cuda") if case == "tensor rate" else 0.01
        is_fused = case in ("fused", "scaler")
        if case == "sgd":
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        else:
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=rate, capturable=True, fused=is_fused or None
            )
        scaler = None
        if case == "scaler":
            scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
        generator = torch.Generator("cuda").manual_seed(3)
        data = [
            (
                torch.randn(16, 32, device="cuda", generator=generator),
                torch.randint(8, (16,), device="cuda", generator=generator),
            )
            for _ in range(STEPS)
        ]
        if case == "scaler":
            data[4] = data[4][0] * float("inf"), data[4][1]
        losses = _train(
            graphed, model, optimizer, data, scaler=scaler,
            accumulation=2 if case == "accumulation" else 1,
            autocast={"autocast": torch.bfloat16, "scaler": torch.float16}.get(case),
        )  # fmt: skip
        scale = scaler.get_scale() if scaler is not None else None
        results.append((losses, dict(model.state_dict()), scale))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


def test_ten_steps_by_hand():
    """PyTorch's own calls, as its documentation has them: static tensors, warm-up, ten replays."""
    results = []
    for graphed in (False, True):
        torch.manual_seed(0)
        first, second = nn.Linear(32, 64).cuda(), nn.Linear(64, 8).cuda()
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.01, capturable=True)
        generator = torch.Generator("cuda").manual_seed(1)
        data = torch.randn(STEPS, 16, 32, device="cuda", generator=generator)
        static = data[0].clone()

        def step(first=first, second=second, optimizer=optimizer, static=static):
            optimizer.zero_grad(set_to_none=True)
            hidden = diglot.dropout(diglot.gelu(first(static)), 0.1)
            loss = diglot.log_softmax(second(hidden), -1).square().mean()
            loss.backward()
            diglot.clip_grad_norm_([*first.parameters(), *second.parameters()], 0.1)
            optimizer.step()
            return loss

        torch.manual_seed(7)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        replay = step
        if graphed:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replay = graph.replay
        for batch in data:
            static.copy_(batch)
            replay()
        results.append([parameter.detach().clone() for parameter in parameters])
    torch.testing.assert_close(*results, rtol=0, atol=0)
