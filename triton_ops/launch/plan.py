"""Plans of launches, as values. A launcher is a *planner*, which plans a call's launches, and one
way to run a plan (launch.py).

A planner sees the device and, as an `Operand`, how the elements of each tensor lie. It sees no
memory, and no number that plans do not depend on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from triton.compiler import ASTSource

from diglot.backends import plans
from diglot.backends.choosing import choose_here
from diglot.backends.plans import Plan
from diglot.backends.tunables import tunables

if TYPE_CHECKING:
    from .descriptors import Descriptor

ACCESS_BYTES = 16
PDL_ARCHITECTURE = 90  # from which on GPUs have programmatic dependent launch
# Kernels' constants that only decide when data are loaded, or when a kernel starts.
UNORDERED = ("EARLY", "STAGES", "PDL")
SCRATCH_BYTES = 256  # a part of scratch starts at a multiple of this
ALL_PHASES = tl.constexpr(0)
# The interpreter runs programs one after another, so more would only take longer.
INTERPRETED_PROGRAMS = 3

# Names of Triton's types for the elements that pointers point to.
TYPE_NAMES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}

NOTHING = Plan("nothing to do", (), None)

# A scalar argument of a kernel. A constexpr, or None, has its value at compile time.
Scalar = Any


class Device(plans.Device):
    """The device of a plan. `multiprocessors` counts those that run cooperative launches; with 0 no
    program may wait for another.
    """

    __slots__ = ()

    @property
    def is_interpreted(self) -> bool:
        """Whether this is Triton's interpreter, which runs each phase of a kernel as a launch."""
        return self == INTERPRETER

    def tuned(self, name: str, *keys: int) -> Any:
        """A measured number, or a record of several; `keys` find a table's entry."""
        return tunables(self.name).read(name, *keys)

    def tuned_table(self, name: str) -> dict[int, Any]:
        """All entries of a table of measured numbers, by their keys."""
        return {key: self.tuned(name, key) for key in tunables(self.name).keys(name)}

    def choose(self, layout: str, shape: tuple[int, ...], *operands: Any) -> None:
        """Takes the numbers that measured best for calls like this one, if there are any.

        Args:
            layout: a name for how the operands lie.
            shape: the sizes on which the time depends, rows first.
            operands: operands whose dtypes matter; None for an absent one.
        """
        dtypes = ["none" if o is None else str(o.dtype).removeprefix("torch.") for o in operands]
        choose_here(self.name, dtypes, layout, shape)

    def room(self, per_multiprocessor: int) -> int:
        """How many programs run at once, with `per_multiprocessor` on each multiprocessor."""
        return self.multiprocessors * per_multiprocessor

    def programs(self, most: int, per_multiprocessor: int, together: int = 1) -> int:
        """How many programs a cooperative launch has: at most `most`, a multiple of `together`."""
        room = INTERPRETED_PROGRAMS if self.is_interpreted else self.room(per_multiprocessor)
        return max(1, min(most, room) // together) * together


INTERPRETER = Device(0, sys.maxsize, 0, False)
TRACED = Device(0, 0, 0, False)  # compiled graphs have no cooperative launches


@dataclass(frozen=True, slots=True)
class Operand:
    """How the elements of a tensor lie; its methods are those of a tensor.

    Attributes:
        position: its number among the launcher's tensors.
        dtype: of its elements.
        shape: its sizes.
        strides: in elements.
        address: modulo 16 bytes; None if unknown, as in a graph that is being compiled.
        device: what runs the launch.
    """

    position: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int | None
    device: Device

    @property
    def is_aligned(self) -> bool:
        """Whether it is known to start at a multiple of 16 bytes."""
        return self.address == 0

    def begins_at(self, elements: int) -> bool:
        """Whether it is known to start at a multiple of `elements` elements, or of 16 bytes."""
        return self.address is not None and self.address % (elements * self.element_size()) == 0

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.numel() == 0
            expected *= size
        return True


class Unseen:
    """An argument that no plan depends on. A launch gets its value."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the scratch memory: `count` elements of `dtype` from byte `offset` on."""

    dtype: torch.dtype
    count: int
    offset: int = 0

    @property
    def end(self) -> int:
        """The byte after the part."""
        return self.offset + self.count * self.dtype.itemsize

    def after(self, before: Part | None) -> Part:
        """The same part, behind another."""
        end = 0 if before is None else before.end
        return Part(self.dtype, self.count, -(-end // SCRATCH_BYTES) * SCRATCH_BYTES)


@dataclass(frozen=True)
class Specialization:
    """A kernel with its types and constants: the input of a compilation.

    Attributes:
        kernel: the @triton.jit function. Its parameters are pointers, then scalars, then
            constants.
        dtypes: element type of each pointer; a descriptor's type, as Triton names it; None for a
            pointer that is absent.
        scalars: the type of each scalar, such as "i64"; or its value, where it is a constant.
        constants: values of the constants.
        num_warps: warps per program.
        cooperative: whether programs wait for each other, so that all must run at once.
        max_registers: of a thread; None: as many as the compiler likes.
        num_stages: stages of loops that do not set it; None: Triton's default.
        num_ctas: programs of a cluster.
        uses_pdl: whether it starts before the launch before it ends (programmatic dependent
            launch). Its kernel waits for that launch before it reads what that one writes.
    """

    kernel: Any
    dtypes: tuple[torch.dtype | str | None, ...]
    scalars: tuple[str | tl.constexpr | None, ...]
    constants: tuple[Any, ...]
    num_warps: int
    cooperative: bool = False
    max_registers: int | None = None
    num_stages: int | None = None
    num_ctas: int = 1
    uses_pdl: bool = False

    def source(self) -> ASTSource:
        """The source for Triton's compiler. Integers have 64 bits, and nothing is specialised on
        values.
        """
        names = self.kernel.arg_names
        types = [_type_of_pointer(dtype) for dtype in self.dtypes]
        types += [s if isinstance(s, str) else "constexpr" for s in self.scalars]
        values = [None] * len(self.dtypes) + [value_of(s) for s in self.scalars]
        values += self.constants
        types += ["constexpr"] * len(self.constants)
        constants = {
            name: value
            for name, type, value in zip(names, types, values, strict=True)
            if type == "constexpr"
        }
        return ASTSource(self.kernel, dict(zip(names, types, strict=True)), constants)

    def options(self) -> dict[str, Any]:
        """Triton's options for a launch that differ from its defaults."""
        options: dict[str, Any] = {"num_warps": self.num_warps}
        if self.max_registers is not None:
            options["maxnreg"] = self.max_registers
        if self.num_stages is not None:
            options["num_stages"] = self.num_stages
        if self.num_ctas != 1:
            options["num_ctas"] = self.num_ctas
        if self.cooperative:
            options["launch_cooperative_grid"] = True
        if self.uses_pdl:
            options["launch_pdl"] = True
        return options

    def compile(self, target: Any) -> Any:
        """Compiles for a target, on a GPU's machine or ahead of time."""
        # As in nvcc's options: both languages write fma where they want it.
        options = {**self.options(), "enable_fp_fusion": False}
        return triton.compile(self.source(), target=target, options=options)


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: the @triton.jit function. Its parameters are pointers, scalars, numbers, constants.
        grid: how many programs, along one axis to three.
        pointers: operands, parts of scratch, `Descriptor`s, and None for absent ones.
        scalars: 64-bit integers and 32-bit floats. None, or a constexpr, is compiled in.
        constants: compile-time arguments.
        num_warps: warps of a program.
        numbers: makes the kernel's numbers, 64-bit integers, from the launcher's unseen arguments;
            None: the kernel has no numbers.
        phases: of a cooperative launch, with a barrier between two phases. Its programs run at once
            and may wait for each other. A last constant is added: ALL_PHASES, or the one phase to
            run, from 1 on. In Triton's interpreter programs cannot wait, so each phase is a launch
            of its own.
        per_multiprocessor: of a cooperative launch, how many programs to run on each
            multiprocessor; None: the grid is exact.
        max_registers, num_stages, num_ctas: as in `Specialization`.
        descriptors: how many tensor descriptors each program makes; one more if it is
            warp-specialised, as Triton asks for.
        room: where in scratch they lie; the launcher fills it in.
        uses_pdl: as in `Specialization`.
    """

    kernel: Any
    grid: tuple[int, ...]
    pointers: tuple[Operand | Part | Descriptor | None, ...]
    scalars: tuple[Scalar, ...]
    constants: tuple[Any, ...]
    num_warps: int
    numbers: Callable[..., tuple[int, ...]] | None = None
    phases: int = 0
    per_multiprocessor: int | None = None
    max_registers: int | None = None
    num_stages: int | None = None
    num_ctas: int = 1
    descriptors: int = 0
    room: Part | None = None
    uses_pdl: bool = False

    @property
    def order(self) -> plans.Order:
        """Everything that sets the order of sums (`diglot.backends.plans.Plan.order`)."""
        names, constants = self.kernel.arg_names, self.all_constants()
        scalars = zip(names[len(self.pointers) :], map(value_of, self.scalars), strict=False)
        compiled = zip(names[len(names) - len(constants) :], constants, strict=True)
        threads = f"{self.num_warps} warps"
        numbers = tuple([pair for pair in (*scalars, *compiled) if pair[0] not in UNORDERED])
        return plans.Order(self.kernel.__name__, self.grid, threads, self.num_ctas, numbers)

    @property
    def cooperative(self) -> bool:
        """Whether its programs wait for each other."""
        return self.phases > 0

    @property
    def axes(self) -> tuple[int, int, int]:
        """The grid, along three axes."""
        x, y, z = (*self.grid, 1, 1)[:3]
        return x, y, z

    @property
    def count(self) -> int:
        """How many programs there are."""
        return math.prod(self.grid)

    def all_constants(self) -> tuple[Any, ...]:
        """The constants, with ALL_PHASES for a cooperative launch."""
        return (*self.constants, ALL_PHASES.value) if self.cooperative else self.constants

    @property
    def specialization(self) -> Specialization:
        """The compilation that the launch needs."""
        constants = self.all_constants()
        passed = len(self.pointers) + len(self.scalars) + len(constants)
        numbers = len(self.kernel.arg_names) - passed
        return Specialization(
            self.kernel,
            tuple(map(_dtype_of, self.pointers)),
            (*map(_type_of, self.scalars), *("i64",) * numbers),
            constants,
            self.num_warps,
            self.cooperative,
            self.max_registers,
            self.num_stages,
            self.num_ctas,
            self.uses_pdl,
        )


def _type_of_pointer(dtype: torch.dtype | str | None) -> str:
    if isinstance(dtype, torch.dtype):
        return f"*{TYPE_NAMES[dtype]}"
    return dtype or "constexpr"


def _dtype_of(pointer: Operand | Part | Descriptor | None) -> torch.dtype | str | None:
    if pointer is None:
        return None
    return pointer.dtype if isinstance(pointer, Operand | Part) else pointer.type_name


def _type_of(scalar: Scalar) -> str | tl.constexpr | None:
    if scalar is None or isinstance(scalar, tl.constexpr):
        return scalar
    return "fp32" if isinstance(scalar, float) else "i64"


def value_of(scalar: Any) -> Any:
    """A scalar's plain Python value."""
    return scalar.value if isinstance(scalar, tl.constexpr) else scalar
