"""What an op takes, as Markdown: its signature and its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import diglot

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n", re.MULTILINE)
ENTRY = re.compile(r"^    (\S[^:]*): ", re.MULTILINE)


def signature(name: str, function: Any) -> str:
    """A call with its defaults, without types."""
    found = inspect.signature(function)
    plain = [of.replace(annotation=of.empty) for of in found.parameters.values()]
    return f"diglot.{name}{found.replace(parameters=plain, return_annotation=found.empty)}"


def sections(docstring: str) -> dict[str, str]:
    """A docstring's text by section; "" is what stands before the first."""
    first, *rest = SECTION.split(docstring)
    return {"": first.strip(), **dict(zip(rest[::2], rest[1::2], strict=True))}


def entries(section: str) -> Iterator[tuple[str, str]]:
    """The names of a section, each with its text."""
    _, *rest = ENTRY.split(section)
    yield from zip(rest[::2], map(_one_line, rest[1::2]), strict=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def reference(op: str) -> str:
    """An op's signature, its module's, and the docstring."""
    public = op if hasattr(diglot, op) else f"{op}_"
    function = getattr(diglot, public)
    found = sections(inspect.getdoc(function) or "")
    signatures = [signature(public, function)]
    for name, module in vars(diglot.nn).items():
        if isinstance(module, type) and name.lower() == op.replace("_", ""):
            signatures.append(signature(f"nn.{name}", module))
    lines = [*(f"- `{text}`" for text in signatures), "", found[""], ""]
    lines += ["| argument | |", "|---|---|"]
    lines += [f"| `{argument}` | {text} |" for argument, text in entries(found["Args"])]
    if "Returns" in found:
        lines += ["", f"**Returns.** {_one_line(found['Returns'])}"]
    raised = [f"- `{error}`: {text}" for error, text in entries(found["Raises"])]
    # A docstring may say that another op's holds.
    lines += ["", *(["**Raises.**", "", *raised] if raised else [_raises(found["Raises"])])]
    return "\n".join([*lines, ""])


def _raises(text: str) -> str:
    return f"**Raises.** {_one_line(text)}"
