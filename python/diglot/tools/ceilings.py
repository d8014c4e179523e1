"""What a machine reaches at most, as it was measured once: its ceilings file.

`diglot specs --measure` writes it; other tools load it. How it is measured: `ceiling_runs.py`. A
file that cannot be read or written, or is no such file, is a ValueError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from diglot.backends.tunables import short_name
from diglot.files import check_writable, for_json, writing

SCHEMA = "diglot.ceilings"
SCHEMA_VERSION = 1
VARIABLE = "DIGLOT_CEILINGS"


@dataclass(frozen=True)
class Ceiling:
    """One thing that was measured.

    Attributes:
        what: "copy", "matrix product", "host to device", "device to host" or "both ways".
        unit: of `rate`, "GB/s" (10^9 bytes/s; both ways at once: each way) or "TFLOP/s" (10^12
            operations/s).
        bytes: that were moved, read and written together; of a copy from or to the host, each way.
        shape: of a matrix product, M, N and K.
        verified: whether the result was right. A wrong one has no rate.
        rate: by the median time.
    """

    what: str
    how: str
    dtype: str
    unit: str
    bytes: int | None = None
    shape: Sequence[int] | None = None
    verified: bool = False
    rate: float | None = None
    time_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    samples: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one machine's GPU.

    Attributes:
        gpu: its name, as PyTorch reports it.
        date: when they were measured, as YYYY-MM-DD.
        device: what the driver says of the GPU (`device.DeviceFacts`).
    """

    gpu: str
    date: str
    versions: dict[str, str | None]
    device: dict[str, Any]
    rows: tuple[Ceiling, ...] = field(default=())

    def gb_per_s(self, what: str = "copy") -> float | None:
        """The speed of most bytes, in 10^9 bytes/s; None if it was not measured."""
        found = [row for row in self.rows if row.what == what and row.rate is not None]
        return max(found, key=lambda row: row.bytes or 0).rate if found else None

    def tflop_per_s(self, dtype: str) -> float | None:
        """The speed of a matrix product in 10^12 operations/s; None if it was not measured.

        Args:
            dtype: "bfloat16", "float16", "float32", "tf32" or "float8".
        """
        rates = [
            row.rate
            for row in self.rows
            if row.what == "matrix product" and row.dtype == dtype and row.rate is not None
        ]
        return max(rates, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The content of the saved file."""
        head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
        return for_json({**head, **asdict(self)})

    def save(self, path: str | Path, force: bool = False) -> None:
        """Writes a file that `load` reads."""
        check_writable(path, force)
        with writing(path):
            Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n")


def default_path(gpu: str) -> Path:
    """Where a GPU's ceilings are kept: $DIGLOT_CEILINGS, or ~/.cache/diglot/ceilings-<gpu>.json."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "diglot" / f"ceilings-{short_name(gpu)}.json"


def load(gpu: str) -> Ceilings | None:
    """The ceilings that were measured on this machine's GPU of that name; None if none were."""
    path = default_path(gpu)
    if not path.exists():
        return None
    found = read(path)
    if found.gpu != gpu:
        raise ValueError(f"{path} has the ceilings of {found.gpu}, not of {gpu}")
    return found


def read(path: str | Path) -> Ceilings:
    """Reads a ceilings file."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return parse(content, path)


def parse(content: Any, path: str | Path) -> Ceilings:
    """Makes ceilings of a file's content; `path` is for messages."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no ceilings file, as diglot specs --measure writes")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path} is of schema version {version!r}, not {SCHEMA_VERSION}")
    names = {of.name for of in fields(Ceiling)}
    try:
        rows = []
        for row in content["rows"]:
            rows.append(Ceiling(**{name: row[name] for name in names & row.keys()}))
            _check(rows[-1])
        return Ceilings(
            gpu=str(content["gpu"]),
            date=str(content["date"]),
            versions=dict(content["versions"]),
            device=dict(content["device"]),
            rows=tuple(rows),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is a damaged ceilings file ({error!r})") from error


def _check(row: Ceiling) -> None:
    for name in ("what", "how", "dtype", "unit"):
        if not isinstance(getattr(row, name), str):
            raise TypeError(f"{name} is no text")
    for name in ("rate", "time_us", "p20_us", "p80_us", "bytes"):
        value = getattr(row, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"{name} is no number")
