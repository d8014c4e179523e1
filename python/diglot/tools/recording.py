"""The other process of `resources.kernels_of_calls`: JSON in, JSON out.

It calls the ops on empty CPU tensors, with launchers that record instead of launching. Every
backend is let in for that, which is why this is a process of its own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from diglot.backends.registry import BACKENDS, load_extension
from diglot.tools.cuda_library import cuda_kernels
from diglot.tools.machine_code import ResourcesUnavailable, check_architecture, short_name
from diglot.tools.occupancy import LIMITS, Limits
from diglot.tools.resources import (
    DEFAULT_ARCHITECTURE,
    LANGUAGES,
    Call,
    Kernels,
    TensorLike,
    compile_stages,
)
from diglot.tools.specs import as_tuple, find_call

# Of the device that CUDA's launches are recorded for: an H200's. What else launchers ask of it is
# the same for all devices of an architecture.
MULTIPROCESSORS = 132


def _let_in_every_backend() -> None:
    for name in LANGUAGES:
        BACKENDS[name] = dataclasses.replace(BACKENDS[name], refusal=lambda device: None)


@dataclasses.dataclass(frozen=True)
class Launched:
    """A CUDA kernel's name, and what it is launched with."""

    name: str
    threads: int
    dynamic_bytes: int
    cluster_blocks: int


def _record_cuda(limits: Limits, function: Callable[[], object]) -> list[Launched]:
    """What CUDA launchers called in `function` would start on such a device."""
    extension, reason = load_extension()
    if extension is None:
        raise ResourcesUnavailable(reason)
    recorded = extension.record(function, MULTIPROCESSORS, limits.shared_bytes, limits.has_clusters)
    return [
        Launched(short_name(kernel), x * y * z, dynamic_bytes, cluster_blocks)
        for kernel, _, (x, y, z), dynamic_bytes, cluster_blocks in recorded
    ]


def _record_triton(limits: Limits, function: Callable[[], object]) -> list[Any]:
    """What Triton launchers called in `function` would compile."""
    from diglot.triton_ops.launch import record_launches

    with record_launches() as launches:
        function()
    return launches


_RECORD: dict[str, Callable[[Limits, Callable[[], object]], list[Any]]] = {
    "cuda": _record_cuda,
    "triton": _record_triton,
}


def _launches(call: Call, language: str, architecture: str) -> list[Any]:
    """What is launched in the direction asked about; a forward pass before it does not count."""
    spec = find_call(call.op)
    # For an architecture without known limits the extension has no code either, and says so.
    known = f"sm_{check_architecture(architecture)}"
    limits = LIMITS.get(known, LIMITS[DEFAULT_ARCHITECTURE])
    record = functools.partial(_RECORD[language], limits)
    inputs = [i.tensor() if isinstance(i, TensorLike) else i for i in call.inputs]
    leaves = [i for i in inputs if isinstance(i, torch.Tensor) and i.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_(call.backward)
    outputs: list[torch.Tensor] = []

    def forward() -> None:
        outputs.extend(as_tuple(spec.function(*inputs, backend=language, **call.options)))

    launches = record(forward)
    if not call.backward:
        return launches
    grads = [torch.empty_like(output) for output in outputs]
    return record(lambda: torch.autograd.grad(outputs, leaves, grads))


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


def _cuda_answers(calls: list[Call], architecture: str) -> list[Kernels]:
    """The kernels of each call; a call that cannot be made does not keep others."""
    recorded = [_try(_launches, call, "cuda", architecture) for call in calls]
    # Looked up all at once: a look into the library takes a while.
    names = {launched.name for launches, _ in recorded for launched in launches}
    found, unread = _try(cuda_kernels, architecture, names)
    return [
        Kernels(
            tuple(
                found[of.name].launched(of.threads, of.dynamic_bytes, of.cluster_blocks)
                for of in launches
                if not unread
            ),
            uncalled or unread,
        )
        for launches, uncalled in recorded
    ]


def _triton_answers(calls: list[Call], architecture: str, stages: Sequence[str]) -> list[Kernels]:
    """The same of Triton's; one that cannot be compiled does not keep others either."""
    answers = []
    for call in calls:
        launches, uncalled = _try(_launches, call, "triton", architecture)
        compiled, uncompiled = _try(
            lambda of: [compile_stages(each, architecture) for each in of], launches
        )
        answers.append(
            Kernels(
                tuple(kernel.resources for kernel in compiled),
                uncalled or uncompiled,
                tuple({stage: kernel.stages[stage] for stage in stages} for kernel in compiled),
            )
        )
    return answers


def _for_json(kernels: Kernels) -> dict[str, Any]:
    fields = dataclasses.asdict(kernels)
    fields["stages"] = [
        {name: base64.b64encode(of).decode() for name, of in kernel.items()}
        for kernel in kernels.stages
    ]
    return fields


def main() -> None:
    """Answers the request on standard input."""
    # Compilers print to standard output what they think of an architecture: to errors with it.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    _let_in_every_backend()
    calls = []
    for entry in request["calls"]:
        inputs = tuple(
            TensorLike(**{**i, "shape": tuple(i["shape"]), "stride": tuple(i["stride"])})
            if isinstance(i, dict)
            else i
            for i in entry["inputs"]
        )
        calls.append(Call(entry["op"], inputs, entry["options"], entry["backward"]))
    architecture, of_languages = request["architecture"], {}
    if "cuda" in request["languages"]:
        of_languages["cuda"] = _cuda_answers(calls, architecture)
    if "triton" in request["languages"]:
        of_languages["triton"] = _triton_answers(calls, architecture, request["stages"])
    answers = [
        {language: _for_json(of[i]) for language, of in of_languages.items()}
        for i in range(len(calls))
    ]
    with output:
        json.dump(answers, output)


if __name__ == "__main__":
    main()
