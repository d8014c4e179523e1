"""Host side of the norms of rows, forward: what programs have, from `norm_forward` of
configs/tunables/, and copies of weight and bias. Twin of csrc/include/diglot/launch/norm_forward.h.
"""

from __future__ import annotations

from typing import NamedTuple

from diglot.triton_ops.lib.norm.shifted import shifted_copies

# Relative, because mypy finds this folder under its name in the tree.
from .plan import Device, Launch, Operand, Part
from .row_splits import Split, divide, power_of_2


class Held(NamedTuple):
    """What a program has that holds rows.

    Attributes:
        warps: of one.
        registers: of a thread; 0: as many as the compiler likes.
    """

    warps: int
    registers: int


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

    def shared(self, copies: int) -> Split:
        """What programs have that share a row, which load copies of so many parameters with it."""
        keys = (self.inputs, self.size, copies)
        tuned = self.device.tuned("norm_forward.triton.shared", *keys)
        return Split(**tuned)

    def second_block(self, n: int) -> int:
        """Of a row that one program holds, as in `blocks_of`."""
        keys = (self.size, self.statistics, power_of_2(n))
        return int(self.device.tuned("norm_forward.triton.second_block", *keys))

    def held(self, elements: int) -> Held:
        """What a program has that holds so many elements."""
        keys = (self.size, self.inputs, self.statistics, elements)
        return Held(**self.device.tuned("norm_forward.triton.held", *keys))


def count_splits_of_norm(n: int, norm: NormRows, copies: int) -> tuple[int, int, Split | None]:
    """`count_splits` of rows of a norm, with copies of so many parameters."""
    if n <= norm.alone():
        return 1, 0, None
    split = norm.shared(copies)
    return divide(norm.device, n, split.bytes // (norm.inputs * norm.size), split)


def norm_rows(out: Operand, residual: Operand | None, has_mean: bool) -> NormRows:
    """Which norm's rows those of the forward pass are."""
    inputs = 1 if residual is None else 2
    return NormRows(out.device, out.element_size(), inputs, 1 + has_mean)


def copy_shifted(
    device: Device,
    parameters: tuple[Operand | None, ...],
    n: int,
    vector: int,
    before: Part | None,
) -> tuple[tuple[Part | None, ...], Part, Launch]:
    """Copies of a weight, and a bias, for peeled rows: where they lie in scratch behind a part, the
    last of them, and the launch that makes them.
    """
    length = (n + 2 * vector - 2) // vector * vector
    copies: list[Part | None] = []
    last = before
    for array in parameters:
        part = None if array is None else Part(array.dtype, vector * length).after(last)
        copies.append(part)
        last = part or last
    assert last is not None
    block = device.tuned("norm_forward.triton.copied_elements")
    absent = (None,) * (2 - len(parameters))  # there may be no bias
    launch = Launch(
        shifted_copies,
        (vector * -(-length // block),),
        (*parameters, *absent, *copies, *absent),
        (n,),
        (vector, block),
        device.tuned("norm_forward.triton.copying_warps"),
    )
    return tuple(copies), last, launch
