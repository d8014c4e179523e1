"""Compares a module's class with the class that shall replace it.

Both run, on the CPU, on bare modules that have the settings of the real one and random parameters.
The real module is only read: its parameters, hooks, training mode and device do not matter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diglot.models.classes import Made

ROWS = 4  # of a norm; the first has values so small that eps matters
ROW = 32  # elements of a row, where the module does not say
SHAPE = (2, 3, 2, 3, 8)  # for modules of elements, and of dimensions
DROPPED = 10_000  # elements for judging a rate
# The dtypes of input and parameters, and a tolerance for values near 1. A reviewed class may round
# several times in 16 bits, where diglot rounds once.
CASES = {
    (torch.float32, torch.float32): 1e-5,
    (torch.bfloat16, torch.bfloat16): 2**-6,
    (torch.bfloat16, torch.float32): 2**-6,
}


def disagreement(module: torch.nn.Module, target: type[torch.nn.Module], kind: str) -> str | None:
    """How the class of a module and its replacement differ; None if they agree.

    Args:
        module: as it is in a model.
        target: the class that is to replace its class.
        kind: one of `diglot.models.reviewed.KINDS`.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    # Modes, autocast and the model's random generator do not affect it.
    no_modes = torch._C.DisableTorchFunction()
    with no_modes, torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            if kind == "dropout":
                return _differing_dropout(module, target, generator)
            return _differing_values(module, target, kind, generator)
        except Exception as error:
            return f"the probe failed: {type(error).__name__}: {error}"


def _differing_values(
    module: torch.nn.Module, target: type[torch.nn.Module], kind: str, generator: torch.Generator
) -> str | None:
    for (dtype, other), tolerance in CASES.items():
        # PyTorch's norms do not take two dtypes on every device.
        if dtype != other and not issubclass(target, Made):
            continue
        original, ours = _pair(module, target, other, generator)
        input = _draw(_shape(module, kind), dtype, generator)
        if kind in ("layer_norm", "rms_norm"):
            input[0] *= _eps(module) ** 0.5
        expected, made = original.forward(input.clone()), ours.forward(input.clone())
        if made.dtype != expected.dtype:
            parameters = f" and parameters of {_name(other)}" if original._parameters else ""
            return (
                f"it returns {_name(expected.dtype)} for an input of {_name(dtype)}{parameters}, "
                f"and diglot {_name(made.dtype)}"
            )
        if not torch.allclose(made, expected, rtol=tolerance, atol=tolerance):
            worst = (made.float() - expected.float()).abs().max().item()
            return f"it computes something else: {worst:.2g} apart in {_name(dtype)}"
    return None


def _differing_dropout(
    module: Any, target: type[torch.nn.Module], generator: torch.Generator
) -> str | None:
    """Masks differ by design. Kept elements must be scaled alike, and as many be dropped."""
    input, p = torch.ones(DROPPED, device="cpu"), module.p
    kept_value = torch.tensor(0.0 if p == 1 else 1 / (1 - p), device="cpu")
    deviation = (p * (1 - p) / DROPPED) ** 0.5
    with torch.random.fork_rng(devices=[]):  # the CPU's generator is the only one
        torch.default_generator.manual_seed(0)
        for each in _pair(module, target, torch.float32, generator):
            each.training = False
            if not torch.equal(each.forward(input.clone()), input):
                return "it changes its input where it does not train"
            each.training = True
            result = each.forward(input.clone())
            kept = result[result != 0]
            dropped = 1 - kept.numel() / DROPPED
            if not torch.allclose(kept, kept_value) or abs(dropped - p) > 6 * deviation:
                return f"it does not drop a share of {p:g}, or it scales the rest otherwise"
    return None


def _pair(
    module: torch.nn.Module,
    target: type[torch.nn.Module],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> tuple[Any, Any]:
    """Bare modules of both classes, which share the settings of a module and random parameters."""
    original, ours = (kind.__new__(kind) for kind in (type(module), target))
    torch.nn.Module.__init__(original)

    def drawn(values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: _draw(value.shape, dtype, generator) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }

    settings = {name: v for name, v in vars(module).items() if name not in vars(original)}
    vars(original).update(drawn(settings))
    original._buffers.update(drawn(module._buffers))
    for name, value in drawn(module._parameters).items():
        original._parameters[name] = None if value is None else torch.nn.Parameter(value)
    vars(ours).update(vars(original), backend="torch")
    return original, ours


def _draw(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(dtype)


def _shape(module: Any, kind: str) -> tuple[int, ...]:
    if kind not in ("layer_norm", "rms_norm"):
        return SHAPE
    weight = getattr(module, "weight", None)
    row = getattr(module, "normalized_shape", (ROW,) if weight is None else weight.shape)
    return (ROWS, *row)


def _eps(module: Any) -> float:
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    return torch.finfo(torch.float32).eps if eps is None else float(eps)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
