"""The classes that modules get when they are replaced.

A module is replaced by a change of its `__class__`, as PyTorch does for parametrizations and for
FSDP2. It stays the same object: parameters, hooks, names and training mode are untouched, and so is
everything that refers to it. A shared module is replaced everywhere, and the model itself may be
one. Graphs of `torch.compile` guard a module's class, so they are compiled again. A new child in
its place would lose hooks and references. Another `forward` on the instance would not show in
`print`, and a copy of the module could call the original.

A class of `torch.nn` turns into its namesake in `diglot.nn`. Any other class turns into a subclass
that is made here, so that `isinstance` still finds the original.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from diglot import nn
from diglot.models.reviewed import Rule, full_name, reviewed
from diglot.ops import gelu, layer_norm, rms_norm


class Made(nn.OnBackend):
    """The common part of the classes that are made here."""

    original: ClassVar[type[torch.nn.Module]]
    rule: ClassVar[Rule]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle would look for the class by its name, and it may not be made yet.
        reduced: Any = super().__reduce_ex__(protocol)
        return (_empty, (self.original,), *reduced[2:])


class _GELU(Made):
    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.rule.approximate, backend=self.backend)


class _Norm(Made):
    def forward(self, hidden_states: Tensor) -> Tensor:
        rule = self.rule
        # A module's search for a missing attribute takes long.
        weight = None if rule.weight == "none" else getattr(self, "weight", None)
        bias = getattr(self, "bias", None) if rule.kind == "layer_norm" else None
        return norm(hidden_states, weight, bias, getattr(self, rule.eps), rule, self.backend)


def norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rule: Rule,
    backend: str | None,
) -> Tensor:
    """The norm of the last dimension, of the dtype that a reviewed class returns.

    Autocast changes nothing: these classes convert their tensors themselves.
    """
    device = input.device.type
    if not input.is_meta and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return norm(input, weight, bias, eps, rule, backend)
    dtype = input.dtype
    if weight is not None and weight.dtype != dtype:
        if rule.result == "weight":
            dtype = weight.dtype
        elif rule.result == "promoted":
            dtype = torch.promote_types(dtype, weight.dtype)
        input = input.to(torch.promote_types(input.dtype, dtype))
        weight, bias = _wide(input, weight), None if bias is None else _wide(input, bias)
    if rule.weight == "1 + weight" and weight is not None:
        weight = 1 + _wide(input, weight)
    row = input.shape[-1:]
    if rule.kind == "layer_norm":
        return layer_norm(input, row, weight, bias, eps, backend=backend).to(dtype)
    return rms_norm(input, row, weight, eps, backend=backend).to(dtype)


def _wide(input: Tensor, parameter: Tensor) -> Tensor:
    """A parameter in the op's dtype of computation, which the op accepts beside every input."""
    return parameter.to(torch.promote_types(input.dtype, torch.float32))


torch.fx.wrap("gelu")  # as in diglot.nn
torch.fx.wrap("norm")


_made: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}  # from originals


def class_of(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The new class for modules of a reviewed class.

    Raises:
        TypeError: the class is not on the list, or is refused there.
    """
    rule = reviewed().get(full_name(original))
    if not isinstance(rule, Rule):
        raise TypeError(f"diglot.patch has no class for {full_name(original)}")
    if rule.becomes is not None:
        ours: type[torch.nn.Module] = getattr(nn, rule.becomes)
        return ours
    if original not in _made:
        members = {
            "__module__": "diglot.models",
            "__doc__": f"{original.__name__}, computed by `diglot.{rule.kind}`.",
            "original": original,
            "rule": rule,
        }
        base = _GELU if rule.kind == "gelu" else _Norm
        made = type(original.__name__, (base, original), members)
        return _made.setdefault(original, made)  # another thread may have made one
    return _made[original]


def _empty(original: type[torch.nn.Module]) -> torch.nn.Module:
    """A module without its state, for pickle and copy."""
    made = class_of(original)
    return made.__new__(made)
