"""The other process of `resources.kernels_of_calls`, which it talks to by pickles.

It calls the ops on empty CPU tensors, planned for a device that is only named.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from diglot.backends.plans import Device, PlannedRun, plan_runs
from diglot.backends.registry import load_extension
from diglot.reference.specs import as_tuple, find_call
from diglot.tools.cuda_library import cuda_kernels
from diglot.tools.machine_code import ResourcesUnavailable, check_architecture, short_name
from diglot.tools.occupancy import LIMITS
from diglot.tools.resources import (
    DEFAULT_ARCHITECTURE,
    Call,
    Kernels,
    PlanOfRun,
    TensorLike,
    compile_stages,
)

# Of the device that is planned for.
GPU, MULTIPROCESSORS = "h200", 132


def _device(architecture: str) -> Device:
    # For an architecture without known limits the extension has no code either, and says so.
    number = check_architecture(architecture)
    limits = LIMITS.get(f"sm_{number}", LIMITS[DEFAULT_ARCHITECTURE])
    return Device(number, MULTIPROCESSORS, limits.shared_bytes, limits.has_clusters, GPU)


def plan_call(call: Call, language: str, architecture: str) -> list[PlannedRun]:
    """How the direction asked about would run; a forward pass before it does not count."""
    if language == "cuda":
        extension, reason = load_extension()
        if extension is None:
            raise ResourcesUnavailable(reason)
    spec = find_call(call.op)
    device = _device(architecture)
    inputs = [i.tensor() if isinstance(i, TensorLike) else i for i in call.inputs]
    leaves = [i for i in inputs if isinstance(i, torch.Tensor) and i.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_(call.backward)
    with plan_runs(device) as runs:
        outputs = as_tuple(spec.function(*inputs, backend=language, **call.options))
    if not call.backward:
        return runs
    grads = [torch.empty_like(output) for output in outputs]
    with plan_runs(device) as runs:
        torch.autograd.grad(outputs, leaves, grads)
    return runs


def _try(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """What a function returns; or nothing, and why: a report says why, whatever it was."""
    try:
        return function(*arguments), None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        last = lines[-1] if type(error).__name__ == "CompilationError" else lines[0]
        # What a user gave wrongly is told without Python's name for it.
        is_users = isinstance(error, (ValueError, TypeError, IndexError))
        return [], last if is_users else f"{type(error).__name__}: {last}"


def _told(runs: list[PlannedRun]) -> tuple[PlanOfRun, ...]:
    told = []
    for run in runs:
        need = run.plan.scratch
        scratch = None if need is None else (need.bytes, need.zeroed, need.lifetime)
        told.append(PlanOfRun(run.launcher, run.plan.variant, scratch, run.plan.tunables))
    return tuple(told)


def _cuda_answers(calls: list[Call], architecture: str) -> list[Kernels]:
    """The kernels of each call; a call that cannot be made does not keep others."""
    planned = [_try(plan_call, call, "cuda", architecture) for call in calls]
    # Looked up all at once: a look into the library takes a while.
    names = {
        short_name(launch.kernel) for runs, _ in planned for r in runs for launch in r.plan.launches
    }
    found, unread = _try(cuda_kernels, architecture, names)
    answers = []
    for runs, uncalled in planned:
        kernels = []
        for launch in [] if unread else [launch for run in runs for launch in run.plan.launches]:
            x, y, z = launch.block
            kernel = found[short_name(launch.kernel)]
            kernels.append(kernel.launched(x * y * z, launch.shared_bytes, launch.cluster_blocks))
        answers.append(Kernels(tuple(kernels), uncalled or unread, plans=_told(runs)))
    return answers


def _triton_answers(calls: list[Call], architecture: str, stages: Sequence[str]) -> list[Kernels]:
    """Triton's likewise; one that cannot be compiled does not keep others either."""
    answers = []
    for call in calls:
        runs, uncalled = _try(plan_call, call, "triton", architecture)
        compiled, uncompiled = _try(
            lambda planned: [
                compile_stages(launch.specialization, architecture)
                for run in planned
                for launch in run.plan.launches
            ],
            runs,
        )
        answers.append(
            Kernels(
                tuple(kernel.resources for kernel in compiled),
                uncalled or uncompiled,
                tuple({stage: kernel.stages[stage] for stage in stages} for kernel in compiled),
                _told(runs),
            )
        )
    return answers


def main() -> None:
    """Answers the request on standard input."""
    # Compilers print to standard output what they think of an architecture: to errors with it.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    calls, architecture, languages, stages = pickle.load(sys.stdin.buffer)
    answers = {}
    if "cuda" in languages:
        answers["cuda"] = _cuda_answers(calls, architecture)
    if "triton" in languages:
        answers["triton"] = _triton_answers(calls, architecture, stages)
    of_calls = [{language: of[i] for language, of in answers.items()} for i in range(len(calls))]
    with output:
        pickle.dump(of_calls, output)


if __name__ == "__main__":
    main()
