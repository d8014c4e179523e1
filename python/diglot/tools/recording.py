"""The other process of `resources.kernels_of_calls`: JSON in, JSON out.

It calls the ops on empty CPU tensors, with launchers that record instead of launching. Every
backend is let in for that, which is why this is a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from diglot.backends.registry import BACKENDS, load_extension
from diglot.tools.resources import (
    LANGUAGES,
    Call,
    Kernels,
    ResourcesUnavailable,
    TensorLike,
    compile_triton,
    cuda_kernels,
    short_name,
)
from diglot.tools.specs import as_tuple, find_spec


def _let_in_every_backend() -> None:
    for name in LANGUAGES:
        BACKENDS[name] = dataclasses.replace(BACKENDS[name], refusal=lambda device: None)


def _record_cuda(function: Callable[[], object]) -> list[str]:
    """Names of the kernels that CUDA launchers called in `function` would start."""
    extension, reason = load_extension()
    if extension is None:
        raise ResourcesUnavailable(reason)
    return [short_name(kernel) for kernel, _, _ in extension.record(function)]


def _record_triton(function: Callable[[], object]) -> list[Any]:
    """What Triton launchers called in `function` would compile."""
    from diglot.triton_ops.launch import record_launches

    with record_launches() as launches:
        function()
    return launches


_RECORD: dict[str, Callable[[Callable[[], object]], list[Any]]] = {
    "cuda": _record_cuda,
    "triton": _record_triton,
}


def _launches(call: Call, language: str) -> list[Any]:
    """What is launched in the direction asked about; a forward pass before it does not count."""
    spec, record = find_spec(call.op), _RECORD[language]
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
        return [], f"{type(error).__name__}: {last}"


def _answers(calls: list[Call], language: str, architecture: str) -> list[Kernels]:
    """The kernels of each call; a call that cannot be made, or compiled, does not keep others."""
    recorded = [_try(_launches, call, language) for call in calls]
    if language == "cuda":  # looked up all at once: a look into the library takes a while
        names = {name for launches, _ in recorded for name in launches}
        found, reason = _try(cuda_kernels, architecture, names)
        kernels = [([] if reason else [found[n] for n in of], reason) for of, _ in recorded]
    else:
        kernels = [_try(compile_triton, launches, architecture) for launches, _ in recorded]
    return [
        Kernels(tuple(of), why_not_called or why_not_read)
        for (_, why_not_called), (of, why_not_read) in zip(recorded, kernels, strict=True)
    ]


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
    of_languages = {
        language: _answers(calls, language, request["architecture"])
        for language in request["languages"]
    }
    answers = [
        {language: dataclasses.asdict(of[i]) for language, of in of_languages.items()}
        for i in range(len(calls))
    ]
    with output:
        json.dump(answers, output)


if __name__ == "__main__":
    main()
