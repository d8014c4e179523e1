"""What `compare` found: records that print as a table, and go to a JSON file or a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diglot.files import check_writable, for_json, writing
from diglot.tools.accuracy import Agreement, Error, Profile
from diglot.tools.regimes import Regime
from diglot.tools.resources import KernelResources, TensorLike

SCHEMA = "diglot.comparison"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Speed:
    """How fast a backend was.

    Attributes:
        median_us: median device time of a call, in microseconds.
        gb_per_s: bandwidth by the median: each input once, each output once, in 10^9 bytes/s.
        of_ceiling: the bandwidth over the copy ceiling's; None for the ceiling itself.
        host_us: the host's time of a call, in microseconds; None for the ceiling.
        regime: what bounds the call; None for the ceiling, and where the GPU's peak bandwidth is
            not known.
    """

    median_us: float
    p20_us: float
    p80_us: float
    gb_per_s: float
    of_ceiling: float | None = None
    host_us: float | None = None
    regime: Regime | None = None


@dataclass(frozen=True)
class Row:
    """One backend's part in a comparison.

    Attributes:
        reason: why it did not run; None if it did.
        interpreted: whether an interpreter ran it (or would have).
        variants: the kernel variants that ran, in order; empty where no kernel was needed.
        error: the worst error against the oracle; None if it did not run.
        errors: the error of each result, where there are several.
        profile: error in ulps by the value of the first input.
        kernels: the compiled kernels that run on a GPU of the comparison's architecture.
        kernels_reason: why `kernels` is empty.
    """

    backend: str
    reason: str | None
    interpreted: bool
    variants: tuple[str, ...] = ()
    error: Error | None = None
    errors: tuple[Error, ...] = ()
    profile: Profile | None = None
    speed: Speed | None = None
    kernels: tuple[KernelResources, ...] = ()
    kernels_reason: str | None = None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Printed, it is a table.

    Attributes:
        inputs: dtype, shape and strides of each input, or a number.
        architecture: what the rows' kernels are compiled for.
        bytes: what the direction must move: each input once, each output once.
        agreement: one `Agreement` per pair of backends that ran, the two kernels first.
        ceiling: speed of a device copy of as many bytes in the same run; None if nothing was timed.
        untimed: why nothing was timed; None if it was, or was not asked for.
        versions: of diglot, torch, Triton, Python, CUDA and the driver.
    """

    op: str
    direction: str
    options: dict[str, Any]
    inputs: tuple[TensorLike | float, ...]
    device: str
    architecture: str
    bytes: int
    rows: tuple[Row, ...]
    agreement: tuple[Agreement, ...]
    ceiling: Speed | None
    untimed: str | None
    versions: dict[str, str | None]

    def row(self, backend: str) -> Row:
        """The row of a backend.

        Raises:
            KeyError: it was not compared.
        """
        for row in self.rows:
            if row.backend == backend:
                return row
        raise KeyError(backend)

    def __str__(self) -> str:
        from diglot.tools.comparison_text import plain

        return plain(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has; numbers that it lacks are strings ("inf", "nan")."""
        return for_json({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(self)})

    def save(self, path: str | Path, force: bool = False) -> None:
        """Writes `to_dict()` as JSON.

        Raises:
            ValueError: the file exists and `force` is not set, or it cannot be written.
        """
        check_writable(path, force)
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        with writing(path):
            Path(path).write_text(text + "\n", encoding="utf-8")

    def plot(self, path: str | Path, force: bool = False) -> None:
        """Draws error against x for each backend, as a picture.

        Raises:
            ValueError: the file exists and `force` is not set, or it cannot be written.
            ImportError: matplotlib is not installed.
        """
        from diglot.tools.plots import plot

        check_writable(path, force)
        with writing(path):
            plot(self, Path(path))
