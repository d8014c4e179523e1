"""Theoretical occupancy: how many blocks of a kernel a multiprocessor holds at once, and why.

The limits are those of the CUDA C++ Programming Guide, section "Compute Capabilities", table
"Technical Specifications per Compute Capability". NVIDIA's own headers have them too
(`cuda/__device/arch_traits.h` of the CUDA Core Compute Libraries). The rules are those of
`cuda_occupancy.h`, which comes with the CUDA toolkit. Each of four parts of a multiprocessor gives
registers to warps in units of 256, from its own quarter. Shared memory is given to blocks in units
of 128 bytes, with 1 KiB of the system's own for each block.
"""

from __future__ import annotations

from dataclasses import dataclass

from diglot.names import unknown_name
from diglot.tools.machine_code import RESERVED_SHARED_BYTES, check_architecture

LANES = 32
MAX_THREADS = 1024  # of a block
MAX_REGISTERS = 255  # of a thread
REGISTERS = 1 << 16  # of a multiprocessor, and at most of a block
REGISTER_UNIT = 256  # of a warp
PARTS = 4  # of a multiprocessor
SHARED_UNIT = 128


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at once.

    Attributes:
        shared_bytes: of all blocks; of one, 1 KiB less.
    """

    blocks: int
    warps: int
    shared_bytes: int
    has_clusters: bool


# By architecture, from compute capability 8.0 on, the least that diglot runs on.
LIMITS = {
    f"sm_{number}": Limits(blocks, warps, kib << 10, number >= 90)
    for number, blocks, warps, kib in (
        (80, 32, 64, 164),
        (86, 16, 48, 100),
        (87, 16, 48, 164),
        (89, 24, 48, 100),
        (90, 32, 64, 228),
        (100, 32, 64, 228),
        (103, 32, 64, 228),
        (110, 24, 48, 228),
        (120, 24, 48, 100),
        (121, 24, 48, 100),
    )
}


@dataclass(frozen=True)
class Occupancy:
    """How full a multiprocessor is with blocks of one kernel.

    Attributes:
        blocks: that it holds at once; 0: the kernel cannot be launched so.
        warps: of these blocks.
        share: of the warps that it could hold.
        limited_by: what keeps a further block out: of "warps", "registers", "shared memory" and
            "blocks", all those that do.
    """

    blocks: int
    warps: int
    share: float
    limited_by: tuple[str, ...]


def find_limits(architecture: str) -> Limits:
    """The limits of an architecture, such as "sm_90" or "sm_90a".

    Raises:
        ValueError: it is no architecture that diglot knows.
    """
    name = f"sm_{check_architecture(architecture)}"
    if name not in LIMITS:
        raise unknown_name("arch", architecture, LIMITS)
    return LIMITS[name]


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def occupancy(architecture: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Theoretical occupancy of a kernel.

    It takes no account of clusters: a device may hold fewer blocks in clusters. Nor does it of
    named barriers: no kernel of diglot's has more than every block may have.

    Args:
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.

    Raises:
        ValueError: an unknown architecture, or threads that no block has.
    """
    limits = find_limits(architecture)
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {threads}")
    warps = _round_up(threads, LANES) // LANES
    of_warp = _round_up(registers * LANES, REGISTER_UNIT)
    of_block = _round_up(shared_bytes + RESERVED_SHARED_BYTES, SHARED_UNIT)
    by = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        # Whether a block may be launched is asked as if each part got the same number of warps.
        fits = registers <= MAX_REGISTERS and of_warp * _round_up(warps, PARTS) <= REGISTERS
        by["registers"] = REGISTERS // PARTS // of_warp * PARTS // warps if fits else 0
    by["shared memory"] = limits.shared_bytes // of_block
    blocks = min(by.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        share=blocks * warps / limits.warps,
        limited_by=tuple(name for name, of in by.items() if of == blocks),
    )
