"""The files of `configs/tunables/`, read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

NEVER = 2**63 - 1  # "never": a threshold that nothing exceeds
KINDS = ("both", "cuda", "triton", "host")
LIMITS = ("range", "power_of_two", "alternatives", "factors")
KEYS = ("about", "by", "fields", "same_everywhere", "value", *LIMITS)


class TunableError(ValueError):
    """An unknown tunable, or a number out of its range."""


@dataclass(frozen=True)
class Spec:
    """The entry of default.json for one number.

    Attributes:
        tunable: the full name of the tunable that it is an entry of.
        about: an explanation of the tunable.
        value: the default.
        least, most: its range.
        power_of_two: whether the number must be one.
        alternatives: other numbers worth a try.
        same_everywhere: whether results depend on it, so that no GPU's file may change it.
    """

    tunable: str
    about: str
    value: int
    least: int
    most: int
    power_of_two: bool
    alternatives: tuple[int, ...]
    same_everywhere: bool

    def check(self, value: Any, where: str) -> int:
        """The value as a number, checked."""
        number = NEVER if value == "never" else value
        if type(number) is not int:
            raise TunableError(f"{where} must be an integer or 'never', not {value!r}")
        if not self.least <= number <= self.most:
            most = "never" if self.most == NEVER else self.most
            raise TunableError(f"{where} must be from {self.least} to {most}, not {value}")
        if self.power_of_two and number.bit_count() != 1:
            raise TunableError(f"{where} must be a power of two, not {value}")
        return number


def read_default(file: Traversable) -> dict[str, Spec]:
    """Every number of default.json, by its full name.

    Raises:
        TunableError: something is wrong; the message names the file and the key.
    """
    found: dict[str, Spec] = {}
    for name, entry in _entries(file):
        where = f"{file.name}: {name}"
        if not isinstance(entry, dict) or not {"about", "value"} <= entry.keys():
            raise TunableError(f"{where} must have 'about' and 'value'")
        for key in entry.keys() - {*KEYS}:
            raise TunableError(f"{where} has an unknown key {key!r}")
        fields = entry.get("fields", {})
        for full, value in _numbers(name, entry["value"], len(entry.get("by", ())), fields, where):
            limits = fields[full.rpartition(".")[2]] if fields else entry
            found[full] = _spec(name, entry, limits, value, f"{file.name}: {full}")
    return found


def read_gpu(file: Traversable, specs: Mapping[str, Spec]) -> dict[str, int]:
    """The numbers that a GPU's file changes, by full name.

    Raises:
        TunableError: something is wrong; the message names the file and the key.
    """
    found: dict[str, int] = {}
    for name, entry in _entries(file):
        for full, value in _leaves(name, entry):
            where = f"{file.name}: {full}"
            if full not in specs:
                raise TunableError(f"{where} is no number of default.json")
            if specs[full].same_everywhere:
                raise TunableError(f"{where} is the same for every GPU: results depend on it")
            found[full] = specs[full].check(value, where)
    return found


def _entries(file: Traversable) -> Iterator[tuple[str, Any]]:
    """The tunables of a file, by full name."""
    families = json.loads(file.read_text())
    families.pop("about", None)
    for family, kinds in families.items():
        if not isinstance(kinds, dict):
            raise TunableError(f"{file.name}: {family} must have {', '.join(KINDS)}")
        for kind, tunables in kinds.items():
            if kind not in KINDS or not isinstance(tunables, dict):
                raise TunableError(
                    f"{file.name}: {family}.{kind} must be one of {', '.join(KINDS)}"
                )
            for name, entry in tunables.items():
                yield f"{family}.{kind}.{name}", entry


def _leaves(name: str, entry: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(entry, dict):
        yield name, entry
        return
    for key, inner in entry.items():
        yield from _leaves(f"{name}.{key}", inner)


def _numbers(
    name: str, value: Any, levels: int, fields: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Any]]:
    """The numbers of a table of `levels` levels, whose entries have these fields, if any."""
    if levels > 0:
        if not isinstance(value, dict) or not value:
            raise TunableError(f"{where}: {name} must be a table")
        for key, inner in value.items():
            if key != "more" and not key.isdigit():
                raise TunableError(f"{where}: {name} has the key {key!r}, which is no number")
            yield from _numbers(f"{name}.{key}", inner, levels - 1, fields, where)
    elif fields:
        if not isinstance(value, dict) or value.keys() != fields.keys():
            raise TunableError(f"{where}: {name} must have {', '.join(fields)}")
        for field, inner in value.items():
            yield f"{name}.{field}", inner
    else:
        yield name, value


def _spec(
    name: str, entry: Mapping[str, Any], limits: Mapping[str, Any], value: Any, where: str
) -> Spec:
    least, most = (
        NEVER if bound == "never" else bound for bound in limits.get("range", (0, NEVER))
    )
    spec = Spec(
        name,
        entry["about"],
        0,
        least,
        most,
        limits.get("power_of_two", False),
        (),
        entry.get("same_everywhere", False),
    )
    number = spec.check(value, where)
    others = [
        spec.check(other, f"{where}: alternative") for other in limits.get("alternatives", ())
    ]
    for factor in limits.get("factors", ()):
        other = int(number * factor)
        if least <= other <= most:
            others.append(other)
    alternatives = tuple([other for other in dict.fromkeys(others) if other != number])
    return replace(spec, value=number, alternatives=alternatives)
