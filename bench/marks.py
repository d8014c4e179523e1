"""Remarks that tables add to figures: a compiler's mode, a strawman, exposed host time.

A row carries its remark in "how": a few words, and after a colon the explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from diglot.bench.harness import OURS

STRAWMAN = (
    "strawman: PyTorch has no such op. F.layer_norm of the whole array as one row stands in its "
    "place. Nobody would choose that"
)
SEED_GIVEN = (
    "seed given: our calls received a seed, and the others drew theirs. A call without a seed "
    "draws it with one more launch, so it has 2"
)
EXPOSED = "with host time"
# Ops whose kernels have changed since their results, by the commit of these.
OLD_KERNELS = {
    "add": "0f54477d3e43",
    "add_layer_norm": "c91be5552304",
    "add_rms_norm": "c91be5552304",
    "addmm": "b984499a29a0",
    "baddbmm": "b984499a29a0",
    "bmm": "b984499a29a0",
    "dropout": "c91be5552304",
    "gaussian_pdf": "fd51c26b2faf",
    "gelu": "c91be5552304",
    "grouped_mm": "b984499a29a0",
    "layer_norm": "c91be5552304",
    "linear": "aace35a619ef",
    "log_softmax": "fd51c26b2faf",
    "mlp": "aace35a619ef",
    "moe": "b984499a29a0",
    "rms_norm": "c91be5552304",
    "scaled_mm": "b984499a29a0",
    "softmax": "c91be5552304",
}
SHARE_EXPOSED = 0.2  # of a row's samples, beyond which the band shows it


def how_of(row: Mapping[str, Any]) -> str | None:
    """The remark of a row; for a row of an older format, the remark that is known today."""
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
    """The same in a few words; "" if there is nothing to say."""
    counts = [row.get(name) for name in ("exposed", "samples")]
    exposed, samples = (count if isinstance(count, int) else 0 for count in counts)
    said = (how_of(row) or "").partition(":")[0]
    return ", ".join(filter(None, (said, EXPOSED if exposed > SHARE_EXPOSED * samples else "")))


def titled(name: str, said: str) -> str:
    """A name with a few words."""
    return f"{name} ({said})" if said else name


def common(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By provider, the words that all its rows share: a table's titles show them."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["provider"], set()).add(words(row))
    return {name: next(iter(of)) if len(of) == 1 else "" for name, of in found.items()}


def mark(row: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The words behind a cell's figure: those that its title does not show."""
    said = words(row)
    return f", {said}" if said and said != titles.get(row["provider"]) else ""


def of_ours(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The words behind a figure that both our backends share, of a case's rows by provider."""
    said = [how_of(rows[name]) or "" for name in OURS if name in rows]
    return "".join(f", {of}" for of in dict.fromkeys(of.partition(":")[0] for of in said) if of)


def paragraph(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """`notes` as lines of Markdown."""
    found = notes(rows)
    return [" ".join(found), ""] if found else []


def notes(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """What the words of rows mean, one note for each."""
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
            lines.append(f'"{said}" ({", ".join(ops[how])} by {who}): {more}.')
        else:
            lines.append(f"{who}: {said}.")
    if any(EXPOSED in words(row) for row in rows):
        lines.append(
            f'"{EXPOSED}": the device waited for the host in more than a fifth of the samples.'
        )
    return lines
