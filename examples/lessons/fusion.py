"""What fusing saves: kernels launched, and bytes moved, by GELU's formula and by one kernel.

    python examples/lessons/fusion.py

Without a GPU the lesson counts kernels and bytes by the operators that run. With one it counts
kernels as they run, and shows times. The host's time is most of it for small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lesson import ON_GPU, Row, Table, add_times, show

# isort: split
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import diglot

ROOT = 0.7978845608028654  # √(2/π)


def formula(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form, as one would write it down."""
    return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x)))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "formula": formula,
    "torch": lambda x: F.gelu(x, approximate="tanh"),
    "diglot": lambda x: diglot.gelu(x, "tanh"),
}


class Traffic(TorchDispatchMode):
    """Counts the bytes that operators must read and write: their inputs and results, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator, and counts."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for tensor in tensors((args, kwargs, result)):
                self.bytes += tensor.numel() * tensor.element_size()
        return result


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among nested values."""
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def bytes_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """How many bytes the operators of one call move."""
    with Traffic() as traffic:
        function(x)
    return traffic.bytes


def kernels_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """How many kernels one call launches."""
    repeat = 3
    done = diglot.profile_call(partial(function, x), warmup=1, repeat=repeat, frames=False)
    return sum(of.kernels.total() for of in done.kernels_by_op().values()) / repeat


def main() -> Iterator[Table]:
    """A row for each way, for a small array and for a large one."""
    for size in (128, 8192 if ON_GPU else 1024):
        x = torch.randn(size, size, device="cuda" if ON_GPU else "cpu")
        functions = {**FUNCTIONS, **({"compiled": torch.compile(formula)} if ON_GPU else {})}
        calls = {name: partial(function, x) for name, function in functions.items()}
        rows = []
        for name, function in functions.items():
            # A compiled graph is one kernel here, into which no mode looks.
            moved = 2 * x.nbytes if name == "compiled" else bytes_of(function, x)
            row: Row = {"written as": name, "kernels": kernels_of(function, x)}
            rows.append({**row, "times the bytes": moved / (2 * x.nbytes)})
        add_times(rows, list(calls.values()))
        if ON_GPU:
            from diglot.tools import measure

            for row, timing in zip(rows, measure.host(calls).values(), strict=True):
                row["host µs"] = timing.median_us
        yield Table(f"GELU of {size} x {size} float32 numbers", rows)


if __name__ == "__main__":
    show(main)
