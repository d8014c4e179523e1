"""What torch.compile knows of the order of rows: a graph belongs to one way of choosing plans."""

from __future__ import annotations

from torch.compiler import config

TAG = "diglot: rows have one order"


class _Order:
    def __init__(self) -> None:
        self.is_held = False


# A plain attribute of a module's object: torch.compile guards what it reads of it.
order = _Order()


def tell_compiler(is_held: bool) -> None:
    """Makes torch.compile keep graphs of both kinds apart, in memory and in its caches on disk."""
    order.is_held = is_held
    tags = [tag for tag in config.cache_key_tag.split("; ") if tag not in ("", TAG)]
    config.cache_key_tag = "; ".join([*tags, TAG] if is_held else tags)
