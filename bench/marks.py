"""What tables say of rows beside their figures: a compiler's mode, a strawman, the host's time.

A row says it of itself, in "how": a few words, and after a colon more of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from diglot.bench.harness import OURS

STRAWMAN = (
    "strawman: PyTorch has no such op, and F.layer_norm of the whole array as a single row, for "
    "which it was not made, is no way that anyone would choose"
)
SEED_GIVEN = (
    "seed given: ours were given a seed, while the others drew theirs; a call without one draws it "
    "by a launch more, 2 in all"
)
EXPOSED = "with host time"
# Ops whose kernels have changed since their results, by the commit of these.
OLD_KERNELS = {
    "add_layer_norm": "c91be5552304",
    "add_rms_norm": "c91be5552304",
    "gaussian_pdf": "fd51c26b2faf",
    "layer_norm": "c91be5552304",
    "log_softmax": "fd51c26b2faf",
    "rms_norm": "c91be5552304",
    "softmax": "c91be5552304",
}
SHARE_EXPOSED = 0.2  # of a row's samples, beyond which the band shows it


def how_of(row: Mapping[str, Any]) -> str | None:
    """What is to be known of a row; of one of the time before rows said it, what is known now."""
    if "how" in row:
        return row["how"] if isinstance(row["how"], str) else None
    op, provider = row.get("op"), row.get("provider")
    if provider == "torch.compile":
        return "mode default"
    if (op, provider) == ("standardize", "torch"):
        return STRAWMAN
    drew = row.get("direction") != "forward" or row.get("timer") in ("graph", "host")
    return SEED_GIVEN if op == "dropout" and provider in OURS and not drew else None


def is_of_old_kernels(report: Mapping[str, Any]) -> bool:
    """Whether an op's kernels have changed since a report of it."""
    return report["commit"].startswith(OLD_KERNELS.get(report["op"], "-"))


def words(row: Mapping[str, Any]) -> str:
    """Likewise in a few words; "" if there is nothing to say."""
    counts = [row.get(name) for name in ("exposed", "samples")]
    exposed, samples = (count if isinstance(count, int) else 0 for count in counts)
    said = (how_of(row) or "").partition(":")[0]
    return ", ".join(filter(None, (said, EXPOSED if exposed > SHARE_EXPOSED * samples else "")))


def titled(name: str, said: str) -> str:
    """A name with a few words."""
    return f"{name} ({said})" if said else name


def common(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The words that all rows of a provider share, by provider: a table's titles have them."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["provider"], set()).add(words(row))
    return {name: next(iter(of)) if len(of) == 1 else "" for name, of in found.items()}


def mark(row: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """What a cell has behind its figure: the words that its title does not have."""
    said = words(row)
    return f", {said}" if said and said != titles.get(row["provider"]) else ""


def of_ours(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands behind a figure of ours together, of a case's rows by provider."""
    said = [how_of(rows[name]) or "" for name in OURS if name in rows]
    return "".join(f", {of}" for of in dict.fromkeys(of.partition(":")[0] for of in said) if of)


def paragraph(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """`notes` as lines of Markdown."""
    found = notes(rows)
    return [" ".join(found), ""] if found else []


def notes(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """What the words of rows mean, a sentence for each."""
    providers: dict[str, list[str]] = {}
    ops: dict[str, list[str]] = {}
    for row in rows:
        how = how_of(row)
        if how is not None:
            for found, name in ((providers, row.get("provider")), (ops, row.get("op"))):
                if str(name) not in found.setdefault(how, []):
                    found[how].append(str(name))
    lines = []
    for how, names in providers.items():
        said, _, more = how.partition(": ")
        who = ", ".join(names)
        if more:
            lines.append(f'"{said}", of {", ".join(ops[how])} by {who}: {more}.')
        else:
            lines.append(f"{who}: {said}.")
    if any(EXPOSED in words(row) for row in rows):
        lines.append(
            f'"{EXPOSED}": the device waited for the host in more than a fifth of the samples.'
        )
    return lines
