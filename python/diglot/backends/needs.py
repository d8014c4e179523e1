"""The requirements of an op's kernels on a call: architecture, dtypes, shapes, an interpreter.

An op declares them once, beside its definition, and only if it needs more than every backend has:

    require("attention", "cuda", Needs(architecture=90, dtypes=HALVES, call=check_head_dim))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

OLDEST_ARCHITECTURE = 80


@dataclass(frozen=True)
class Call:
    """The facts of a call on which it depends whether kernels can run it.

    Attributes:
        device: where its tensors are.
        architecture: ten times the device's compute capability, such as 90; None without a GPU.
        dtypes, shapes, strides: of each tensor argument; None where only the device is known.
    """

    device: torch.device
    architecture: int | None
    dtypes: tuple[torch.dtype, ...] | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    strides: tuple[tuple[int, ...], ...] | None = None

    @staticmethod
    def from_tensors(
        device: torch.device, architecture: int | None, tensors: tuple[torch.Tensor | None, ...]
    ) -> Call:
        """A call with these tensors. Without any, only the device is known."""
        present = [tensor for tensor in tensors if tensor is not None]
        if not present:
            return Call(device, architecture)
        return Call(
            device,
            architecture,
            tuple([tensor.dtype for tensor in present]),
            tuple([tuple(tensor.shape) for tensor in present]),
            tuple([tensor.stride() for tensor in present]),
        )


@dataclass(frozen=True)
class Needs:
    """The needs of an op's kernels in one language.

    Attributes:
        architecture: the least, such as 90.
        only: whether no later one will do, because later ones lack the "a" features ("sm_90a").
        dtypes: of tensor arguments; None: the facade's checks suffice.
        interpretable: whether the language's interpreter knows their instructions.
        call: says why they cannot run a call with known tensors; None if they can.
    """

    architecture: int = OLDEST_ARCHITECTURE
    only: bool = False
    dtypes: tuple[torch.dtype, ...] | None = None
    interpretable: bool = True
    call: Callable[[Call], str | None] | None = None

    def refusal(self, call: Call, interpreter: str | None) -> str | None:
        """Why the kernels cannot run a call; None if they can.

        Args:
            call: the call.
            interpreter: whose interpreter would run them, such as "diglot's"; None: a GPU.
        """
        if interpreter is not None:
            if not self.interpretable:
                return f"{interpreter} interpreter does not know its kernels' instructions"
        elif call.architecture is not None:
            if self.only and call.architecture != self.architecture:
                return f"it needs sm_{self.architecture}a, and this GPU is sm_{call.architecture}"
            if call.architecture < self.architecture:
                return f"it needs sm_{self.architecture}, and this GPU is sm_{call.architecture}"
        if call.dtypes is None:
            return None
        if self.dtypes is not None:
            for dtype in call.dtypes:
                if dtype not in self.dtypes:
                    return f"it has no kernel for {str(dtype).removeprefix('torch.')}"
        return None if self.call is None else self.call(call)


_needs: dict[tuple[str, str], Needs] = {}
# By op, the order in which "auto" tries the backends, where it is not the usual one.
_orders: dict[str, tuple[str, ...]] = {}
# Ops with some needs that depend on more than the device.
per_call: set[str] = set()


def require(op: str, backend: str, needs: Needs) -> None:
    """Declares the needs of an op's kernels of a backend."""
    _needs[op, backend] = needs
    if needs.dtypes is not None or needs.call is not None:
        per_call.add(op)


def prefer(op: str, backends: tuple[str, ...]) -> None:
    """Declares the order in which "auto" tries the backends for an op."""
    _orders[op] = backends


def order_of(op: str) -> tuple[str, ...] | None:
    """That order; None: the usual one."""
    return _orders.get(op)


def ops() -> set[str]:
    """Names of the ops whose kernels need something special."""
    return {op for op, _ in _needs}


def needs_of(op: str, backend: str) -> Needs | None:
    """The needs of an op's kernels of a backend; None: nothing special."""
    return _needs.get((op, backend))
