"""Host side of the norms of rows, forward: how programs hold rows, by the tunables `norm_forward`
in configs/tunables/. Twin of csrc/include/diglot/launch/norm_forward.h.
"""

from __future__ import annotations

from typing import NamedTuple

# Relative, because mypy finds this folder under its name in the tree.
from .plan import Device, Operand

REGISTERS = 65536  # on a multiprocessor


class Split(NamedTuple):
    """How programs share rows, or columns.

    Attributes:
        bytes: of the inputs, in one program.
        warps: of one.
        programs: on a multiprocessor.
        early: whether one loads its next rows before it maps one.
    """

    bytes: int
    warps: int
    programs: int
    early: int = 1


class Held(NamedTuple):
    """How one program holds rows.

    Attributes:
        warps: of one.
        registers: of a thread; 0: as many as the compiler likes.
        early: whether it loads weight and bias before the reduction.
    """

    warps: int
    registers: int
    early: int


class NormRows(NamedTuple):
    """The rows of a norm, whose weight and statistics take registers.

    Attributes:
        device: what runs it.
        size: bytes of an element.
        inputs: arrays to read: one, or two that are added.
        statistics: numbers of a row: 2, mean and rstd, or 1, rstd.
    """

    device: Device
    size: int
    inputs: int
    statistics: int

    def alone(self, is_peeled: bool) -> int:
        """The most elements of a row that one program holds."""
        field = "norm_forward.triton.alone_peeled" if is_peeled else "norm_forward.triton.alone"
        return self.device.tuned(field, self.inputs, self.size, self.statistics)

    def arrays_held(self) -> float:
        """For how many arrays a program that has one row takes registers: it keeps the sum of two.
        A layer norm takes more of them, for the second pass over its elements.
        """
        return min(self.inputs, 1.6) if self.statistics == 2 else 1

    def warps_at_once(self) -> int:
        """Warps, at least, of programs that share rows, where all rows run at once."""
        return int(self.device.tuned("norm_forward.triton.warps_at_once", self.statistics))

    def shared(self, is_peeled: bool) -> Split:
        """How programs share a row."""
        tuned, keys = self.device.tuned, (self.inputs, self.size)
        if is_peeled:
            return Split(**tuned("norm_forward.triton.shared_peeled", *keys, self.statistics))
        return Split(**tuned("norm_forward.triton.shared", *keys))

    def held(self, elements: int) -> Held:
        """How one program holds `elements` elements."""
        keys = (self.size, self.inputs, self.statistics, elements)
        return Held(**self.device.tuned("norm_forward.triton.held", *keys))


def norm_rows(out: Operand, residual: Operand | None, has_mean: bool) -> NormRows:
    """The rows of a norm's forward pass."""
    inputs = 1 if residual is None else 2
    return NormRows(out.device, out.element_size(), inputs, 1 + has_mean)
