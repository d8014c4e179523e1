"""What fusing saves: kernels launched, and bytes moved, by GELU's formula and by one kernel.

    python examples/lessons/fusion.py

Without a GPU kernels and bytes are counted, by the operators that run; with one, kernels are
counted as they run, and times are shown; the host's too, which is most of it for small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

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


def main() -> None:
    """Prints a line for each way, for a small array and for a large one."""
    on_gpu = torch.cuda.is_available()
    for size in (128, 8192 if on_gpu else 1024):
        x = torch.randn(size, size, device="cuda" if on_gpu else "cpu")
        functions = dict(FUNCTIONS)
        if on_gpu:
            functions["compiled"] = torch.compile(formula)
        calls = {name: partial(function, x) for name, function in functions.items()}
        times, host = {}, {}
        if on_gpu:
            from diglot.tools import measure

            times, host = measure.interleaved(calls), measure.host(calls)
        minimum = 2 * x.numel() * x.element_size()
        print(f"GELU of {size} × {size} numbers, which are {minimum // 2:,} bytes")
        for name, function in functions.items():
            # A compiled graph is one kernel here, into which no mode looks.
            moved = minimum if name == "compiled" else bytes_of(function, x)
            line = f"  {name:9}{kernels_of(function, x):3g} kernels, {moved / minimum:4.1f} × bytes"
            if on_gpu:
                line += f", GPU {times[name].median_us:8.1f} µs"
                line += f", host {host[name].median_us:6.1f} µs"
            print(line)
    if not on_gpu:
        print("There is no GPU: operators stand for kernels, and times are left out.")


if __name__ == "__main__":
    main()
