"""`diglot.patch`: modules of a model run diglot's ops."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch.nn import Module

from diglot.backends.selection import check_name
from diglot.models.classes import class_of
from diglot.models.judging import is_sharded, judge, kind_of
from diglot.models.outcome import Change, LeftAlone, Patch, Replaced, restore
from diglot.models.reviewed import KINDS


def patch(
    model: Module, backend: str | None = None, only: str | Iterable[str] | None = None
) -> Patch:
    """Makes the modules of a model run diglot's ops.

    It replaces `torch.nn`'s LayerNorm, RMSNorm, GELU, Softmax, LogSoftmax and Dropout, and the
    norms and GELUs of transformers. A module is replaced only if its very class is on a reviewed
    list, and if a probe agrees. The probe compares both classes on random numbers, in float32 and
    bfloat16. The module stays the same object, of a class that derives from its own or from
    PyTorch's. Its parameters, names, hooks, device, dtype and training mode stay.

        patched = diglot.patch(model)
        print(patched)  # modules replaced, modules left alone, and why
        patched.undo()

        with diglot.patch(model, backend="triton"):
            model(x)

    Args:
        model: a module of any kind. It may be compiled before or after.
        backend: as in `diglot.gelu`; held by every replaced module.
        only: kinds of modules ("layer_norm", "rms_norm", "gelu", "softmax", "log_softmax",
            "dropout"), or patterns of their names ("encoder.*", as in `fnmatch`). With both, a
            module must have one of the kinds and match one of the patterns.

    Returns:
        The outcome, a `Patch`. If nothing was replaced, a warning says so.

    Raises:
        TypeError: `model` is no module, or a scripted one.
        ValueError: an unknown `backend`, or an entry of `only` that is no kind and matches no name.
    """
    if not isinstance(model, Module):
        raise TypeError(f"patch: model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("patch: model is scripted; patch the module that it was made from")
    if backend is not None:
        check_name(backend)
    named = _named(model)
    kinds, patterns = _chosen(only, named)
    sharded = [name for name, each in model.named_modules() if is_sharded(type(each))]
    replaced, left_alone, changes = [], [], []
    for module, names in named:
        kind = kind_of(module)
        if kind is None or kind not in kinds:
            continue
        if not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            continue
        before, verdict = type(module), judge(module, names, sharded)
        if isinstance(verdict, str):
            left_alone.append(LeftAlone(names, before.__name__, verdict))
            continue
        is_alike = verdict.rounds == "once"
        note = "" if is_alike else f"rounds once; {before.__name__} rounds {verdict.rounds} too"
        replaced.append(Replaced(names, before.__name__, kind, note))
        changes.append(Change(module, before, class_of(before)))
    _apply(changes, backend)
    made = Patch(replaced, left_alone, changes)
    if not replaced:
        warnings.warn(f"diglot.patch replaced nothing: {made}", stacklevel=2)
    return made


def _apply(changes: list[Change], backend: str | None) -> None:
    """Replaces all modules, or none if one fails."""
    try:
        for each in changes:
            each.module.__class__ = each.after
            if backend is not None:
                vars(each.module)["backend"] = backend
    except BaseException:
        restore(changes)
        raise


def _named(model: Module) -> list[tuple[Module, tuple[str, ...]]]:
    """Every module once, with all its names."""
    names: dict[Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [(module, tuple(each)) for module, each in names.items()]


def _chosen(
    only: str | Iterable[str] | None, named: list[tuple[Module, tuple[str, ...]]]
) -> tuple[list[str], list[str]]:
    """The kinds and the patterns that `only` stands for."""
    if only is None:
        return list(KINDS), ["*"]
    asked = [only] if isinstance(only, str) else list(only)
    patterns = [each for each in asked if each not in KINDS]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for _, names in named for name in names):
            raise ValueError(
                f"patch: only has {pattern!r}, which matches no module's name, and is none of the "
                f"kinds {', '.join(map(repr, KINDS))}"
            )
    kinds = [kind for kind in KINDS if kind in asked]
    return kinds or list(KINDS if patterns else ()), patterns or ["*"]
