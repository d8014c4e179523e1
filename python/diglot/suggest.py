"""Errors about names that do not exist, with the nearest name that does."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """A question after an error about a name, such as "; did you mean 'gelu'?"; "" if none is near.

    Args:
        name: the name that does not exist.
        known: the names that do.
    """
    import difflib  # only where there is an error to tell: it costs the import of diglot time

    found = difflib.get_close_matches(str(name).lower(), list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def unknown(what: str, name: object, known: Iterable[str]) -> ValueError:
    """The error about an argument that must be one of some names.

    Args:
        what: the argument.
        name: its value.
        known: the names that it may be.
    """
    known = list(known)
    hint = nearest(name, known)
    return ValueError(f"{what} must be one of {', '.join(known)}, not {name!r}{hint}")
