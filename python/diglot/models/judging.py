"""Whether a module can be replaced, and the reason if not."""

from __future__ import annotations

import torch
from torch.nn import Module

from diglot import nn
from diglot.models.classes import class_of
from diglot.models.probe import disagreement
from diglot.models.reviewed import Refusal, Rule, full_name, looks_like, reviewed


def kind_of(module: Module) -> str | None:
    """The kind of a module that could be replaced; None for modules of no interest."""
    for base in type(module).__mro__:
        said = reviewed().get(full_name(base))
        if said is not None:
            return said.kind
    return None if any(True for _ in module.children()) else looks_like(type(module))


def is_sharded(kind: type) -> bool:
    """Whether FSDP wraps modules of this class, or made the class."""
    # By name, so that torch.distributed need not be imported.
    names = {base.__name__ for base in kind.__mro__}
    return not names.isdisjoint(("FSDPModule", "FullyShardedDataParallel"))


def judge(module: Module, names: tuple[str, ...], sharded: list[str]) -> Rule | str:
    """The rule of a module that can be replaced; otherwise the reason why it is not.

    Args:
        module: one with a kind.
        names: all that it has in the model.
        sharded: the names of modules that FSDP shards.
    """
    kind = type(module)
    said = reviewed().get(full_name(kind))
    if isinstance(module, nn.OnBackend):
        return f"it is diglot's already (backend: {module.backend or 'by default'})"
    if isinstance(said, Refusal):
        return said.reason
    if any(not top or f"{name}.".startswith(f"{top}.") for top in sharded for name in names):
        return "it is sharded by FSDP: patch the model before"
    if said is None:
        return _why_unknown(module)
    if "forward" in vars(module):
        return "the forward of this very module was replaced, as accelerate's hooks do"
    if getattr(module, "dim", 0) is None:
        return "it has no dim, and PyTorch guesses one"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"its {name} is a {type(tensor).__name__}"
        if not tensor.is_floating_point():
            return f"its {name} has the dtype {tensor.dtype}"
    return disagreement(module, class_of(kind), said.kind) or said


def _why_unknown(module: Module) -> str:
    """Why a module is not replaced if its class is not on the list."""
    kind = type(module)
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it is parametrized"
    if ".quantized." in kind.__module__:
        return "it is quantized"
    for base in kind.__mro__[1:]:
        if full_name(base) in reviewed():
            return f"it is of a subclass of {base.__name__} that nobody reviewed"
    return "nobody reviewed its class"
