"""Names that users give: an unknown one is an error that suggests a near one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error that `name` is none of the known names of `what`."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{what} must be one of {', '.join(names)}, not {name!r}{suggestion}")
