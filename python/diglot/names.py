"""Names that users give: an unknown one is an error that suggests a near one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or "" if none is near."""
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_name(what: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a `name` that is not among the known names of `what`."""
    names = list(known)
    end = suggestion(name, names)
    return ValueError(f"{what} must be one of {', '.join(names)}, not {name!r}{end}")
