"""Host side of the norms of rows, forward: what programs have, from `norm_forward` of
configs/tunables/. Twin of csrc/include/diglot/launch/norm_forward.h.
"""

from __future__ import annotations

from typing import NamedTuple

# Relative, because mypy finds this folder under its name in the tree.
from .plan import Device, Operand


class Split(NamedTuple):
    """What programs that share rows, or columns, have.

    Attributes:
        bytes: of the inputs, that one holds.
        warps: of one.
        programs: on a multiprocessor.
    """

    bytes: int
    warps: int
    programs: int


class Held(NamedTuple):
    """What a program has that holds rows.

    Attributes:
        warps: of one.
        registers: of a thread; 0: as many as the compiler likes.
        early: whether it loads weight and bias before the reduction.
    """

    warps: int
    registers: int
    early: int


class NormRows(NamedTuple):
    """How a norm, whose weight and statistics take registers, has its rows.

    Attributes:
        device: what runs it.
        size: bytes of an element.
        inputs: arrays that are read: one, or two that are added.
        statistics: of a row: mean and rstd, or rstd alone.
    """

    device: Device
    size: int
    inputs: int
    statistics: int

    def alone(self) -> int:
        """Elements of a row that one program holds at most."""
        return self.device.tuned(
            "norm_forward.triton.alone", self.inputs, self.size, self.statistics
        )

    def shared(self) -> Split:
        """What programs have that share a row."""
        return Split(**self.device.tuned("norm_forward.triton.shared", self.inputs, self.size))

    def held(self, elements: int) -> Held:
        """What a program has that holds so many elements."""
        keys = (self.size, self.inputs, self.statistics, elements)
        return Held(**self.device.tuned("norm_forward.triton.held", *keys))


def norm_rows(out: Operand, residual: Operand | None, has_mean: bool) -> NormRows:
    """Which norm's rows those of the forward pass are."""
    inputs = 1 if residual is None else 2
    return NormRows(out.device, out.element_size(), inputs, 1 + has_mean)
