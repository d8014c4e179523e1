"""The other process of `resources.kernels_of_calls`: JSON in, JSON out.

It calls the ops on empty CPU tensors, with launchers that record instead of launching. Every
backend is let in for that, which is why this is a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from diglot.backends.registry import BACKENDS, Backend
from diglot.tools.cuda_kernels import kernel_names
from diglot.tools.resources import Call, Kernels, TensorLike, compile_triton, cuda_kernels
from diglot.tools.specs import find_spec


class _RecordingLaunchers(SimpleNamespace):
    """A namespace of launchers that note the CUDA kernels that they would start."""

    def __init__(self) -> None:
        super().__init__(names=[])

    def __getattr__(self, launcher: str) -> Callable[..., str]:
        def record(*arguments: Any) -> str:
            self.names += kernel_names(launcher, *arguments)
            return "recorded"

        return record


_cuda = _RecordingLaunchers()


def _let_in_every_backend() -> None:
    BACKENDS["cuda"] = Backend("cuda", lambda op: _cuda, lambda device: None)  # type: ignore
    BACKENDS["triton"] = dataclasses.replace(BACKENDS["triton"], refusal=lambda device: None)


def _run(call: Call, backend: str, before_backward: Callable[[], None]) -> None:
    """Calls the op; what was recorded before `before_backward` is of the forward pass."""
    spec = find_spec(call.op)
    inputs = [i.tensor() if isinstance(i, TensorLike) else i for i in call.inputs]
    if not call.backward:
        spec.function(*inputs, backend=backend, **call.options)
        return
    leaves = [i for i in inputs if isinstance(i, torch.Tensor) and i.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    output = spec.function(*inputs, backend=backend, **call.options)
    before_backward()
    torch.autograd.grad(output, leaves, torch.empty_like(output))


def _cuda_resources(call: Call, architecture: str) -> Kernels:
    _cuda.names.clear()
    _run(call, "cuda", _cuda.names.clear)
    found = cuda_kernels(architecture, _cuda.names)
    return Kernels(tuple(found[name] for name in _cuda.names))


def _triton_resources(call: Call, architecture: str) -> Kernels:
    from diglot.triton_ops.launch import record_launches

    with record_launches() as launches:
        _run(call, "triton", launches.clear)
    return Kernels(tuple(compile_triton(launches, architecture)))


_RESOURCES = {"cuda": _cuda_resources, "triton": _triton_resources}


def _answer(call: Call, language: str, architecture: str) -> Kernels:
    try:
        return _RESOURCES[language](call, architecture)
    except Exception as error:  # a report says why, whatever it was
        lines = str(error).strip().splitlines() or [type(error).__name__]
        last = lines[-1] if type(error).__name__ == "CompilationError" else lines[0]
        return Kernels(reason=f"{type(error).__name__}: {last}")


def main() -> None:
    """Answers the request on standard input."""
    request = json.load(sys.stdin)
    _let_in_every_backend()
    answers = []
    for entry in request["calls"]:
        inputs = tuple(
            TensorLike(**{**i, "shape": tuple(i["shape"]), "stride": tuple(i["stride"])})
            if isinstance(i, dict)
            else i
            for i in entry["inputs"]
        )
        call = Call(entry["op"], inputs, entry["options"], entry["backward"])
        answers.append(
            {
                language: dataclasses.asdict(_answer(call, language, request["architecture"]))
                for language in request["languages"]
            }
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
