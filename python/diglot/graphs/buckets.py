"""Which sizes graphs are captured for, and which of them a call takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

Sizes = tuple[int, ...]  # of the named dimensions, in the order of their names


class Buckets:
    """The sizes for which there are graphs.

    Args:
        names: of the dimensions whose sizes differ from call to call.
        sizes: of each bucket.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[Sizes]) -> None:
        self.names = tuple(names)
        self.smallest_first = sorted(dict.fromkeys(sizes), key=lambda each: (math.prod(each), each))

    @property
    def largest_first(self) -> list[Sizes]:
        """All buckets, in the order in which they are captured."""
        return self.smallest_first[::-1]

    def fit(self, sizes: Sizes) -> Sizes | None:
        """The smallest bucket that holds these sizes; None if none does."""
        for bucket in self.smallest_first:
            if all(size <= room for size, room in zip(sizes, bucket, strict=True)):
                return bucket
        return None

    def describe(self, sizes: Sizes) -> str:
        """Sizes with their names, such as "batch=8, length=128"."""
        named = zip(self.names, sizes, strict=True)
        return ", ".join(f"{name}={size}" for name, size in named) or "one shape"

    def __str__(self) -> str:
        return "; ".join(map(self.describe, self.smallest_first))


def padding_of(bucket: Sizes, sizes: Sizes) -> float:
    """How much larger a bucket is than the sizes that it holds; 1 if it fits exactly."""
    valid = math.prod(sizes)
    return math.prod(bucket) / valid if valid else math.inf


def make_buckets(
    names: Sequence[str],
    example: Sizes,
    given: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None,
) -> Buckets:
    """The buckets that a caller asks for; by default one, of the example's sizes.

    Args:
        names: of the dimensions that `dims` names.
        example: their sizes in the example.
        given: the sizes of each name, whose combinations are the buckets; or a list of buckets.

    Raises:
        ValueError: a name is missing, or is no dimension's, or a size is no positive integer.
    """
    if given is None:
        return Buckets(names, [example])
    if not names:
        raise ValueError("capture: buckets need dims, which names the dimensions that they pad")
    if isinstance(given, Mapping):
        _check_names(names, given)
        chosen = list(itertools.product(*(given[name] for name in names)))
    else:
        for bucket in given:
            _check_names(names, bucket)
        chosen = [tuple(bucket[name] for name in names) for bucket in given]
    if not chosen:
        raise ValueError("capture: buckets must have at least one bucket")
    for size in itertools.chain.from_iterable(chosen):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"capture: a bucket's size must be a positive integer, not {size!r}")
    return Buckets(names, chosen)


def _check_names(names: Sequence[str], given: Mapping[str, object]) -> None:
    if set(given) != set(names):
        raise ValueError(
            f"capture: buckets must have sizes of {', '.join(names)}, the names in dims, "
            f"not of {', '.join(given) or 'nothing'}"
        )


def dims_of(leaves: list[Any] | None) -> tuple[list[dict[int, int]], tuple[str, ...]]:
    """For each argument the number of each padded dimension's name; and the names."""
    names: dict[str, int] = {}
    found = []
    for leaf in leaves or []:
        if not isinstance(leaf, dict | None):
            raise ValueError(
                f"capture: dims has {{dimension: name}} or None for each tensor, not {leaf!r}"
            )
        named = leaf or {}
        found.append({dim: names.setdefault(name, len(names)) for dim, name in named.items()})
    return found, tuple(names)


def out_dims_of(given: Any, names: Sequence[str]) -> list[dict[int, int]] | None:
    """For each leaf of the result likewise; None if nobody said it."""
    if given is None:
        return None
    leaves = pytree.tree_leaves(
        given, is_leaf=lambda value: isinstance(value, dict) and all(map(_is_int, value))
    )
    found = []
    for leaf in leaves:
        unknown = set((leaf or {}).values()) - set(names)
        if unknown:
            raise ValueError(f"capture: out_dims names {', '.join(sorted(unknown))}, dims does not")
        found.append({dim: names.index(name) for dim, name in (leaf or {}).items()})
    return found


def _is_int(value: object) -> bool:
    return isinstance(value, int)
