"""The reviewed classes of modules: the rule of each, or the reason for its refusal (reviewed.json).

The file lists classes by name, so that neither transformers nor any other package is imported. A
name under "models" stands for a class of transformers: "llama.LlamaRMSNorm" is
`transformers.models.llama.modeling_llama.LlamaRMSNorm`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("layer_norm", "rms_norm", "gelu", "log_softmax", "softmax", "dropout")


@dataclass(frozen=True)
class Rule:
    """The computation of a reviewed class's modules.

    Attributes:
        kind: the op that computes it, one of `KINDS`.
        becomes: the class of `diglot.nn` that such a module turns into; None for a class that is
            made from its own class.
        approximate: of GELU.
        weight: the factor of a norm: "weight", "1 + weight" or "none". A bias is added if the
            module has one.
        rounds: "before the weight": it rounds the normalized row to the type of the result, and
            then rounds the product. "once": it rounds only the product. diglot rounds once.
        result: the dtype of the result: that of the "input", of the "weight", or the one that both
            are "promoted" to.
        eps: the attribute that holds it.
    """

    kind: str
    becomes: str | None = None
    approximate: str = "none"
    weight: str = "weight"
    rounds: str = "once"
    result: str = "input"
    eps: str = "eps"


@dataclass(frozen=True)
class Refusal:
    """Why the modules of a reviewed class are not replaced."""

    kind: str
    reason: str


@functools.cache
def reviewed() -> dict[str, Rule | Refusal]:
    """The results of the review, by the full name of a class."""
    file = json.loads(Path(__file__).with_name("reviewed.json").read_text())
    said: dict[str, Rule | Refusal] = {}
    for which, made in (("replaced", Rule), ("refused", Refusal)):
        for entry in file[which]:
            names = list(_names(entry))
            said |= dict.fromkeys(names, made(**entry))
    return said


def _names(entry: dict[str, Any]) -> Iterator[str]:
    """Takes the names of classes from an entry."""
    yield from entry.pop("classes", ())
    for short in entry.pop("models", ()):
        folder, name = short.split(".")
        yield f"transformers.models.{folder}.modeling_{folder}.{name}"


def full_name(kind: type) -> str:
    """The name that a class has in the list."""
    return f"{kind.__module__}.{kind.__qualname__}"


def looks_like(kind: type) -> str | None:
    """The kind of module that a class's name suggests, or None."""
    name = kind.__name__.lower()
    return next((each for each in KINDS if each.replace("_", "") in name), None)
