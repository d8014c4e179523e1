"""Machine code, read by NVIDIA's cuobjdump: what it takes of a multiprocessor, and what it does.

The cuobjdump is the one that Triton brings; no GPU is needed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class ResourcesUnavailable(RuntimeError):
    """Kernels cannot be looked at here; the message says why."""


def check_architecture(architecture: str) -> int:
    """The number of an architecture's name: 90 of "sm_90" and "sm_90a".

    Raises:
        ValueError: it is no such name.
    """
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", architecture)
    if not found:
        raise ValueError(f"arch must be like 'sm_90', not {architecture!r}")
    return int(found.group(1))


@functools.cache
def find_cuobjdump() -> Path:
    """NVIDIA's cuobjdump: Triton's own, else the one on PATH.

    Raises:
        ResourcesUnavailable: it is not installed.
    """
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or []) if triton else []:
        tool = Path(folder) / "backends/nvidia/bin/cuobjdump"
        if tool.exists():
            return tool
    on_path = shutil.which("cuobjdump")
    if on_path is None:
        raise ResourcesUnavailable("no cuobjdump: neither Triton nor a CUDA toolkit is installed")
    return Path(on_path)


def dump(*arguments: str, folder: Path | None = None) -> str:
    """What cuobjdump prints; files that it extracts go to `folder`.

    Raises:
        ResourcesUnavailable: there is no cuobjdump, or it fails.
    """
    done = subprocess.run(
        [str(find_cuobjdump()), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if done.returncode != 0:
        raise ResourcesUnavailable(f"cuobjdump fails: {done.stderr.strip() or done.returncode}")
    return done.stdout


@functools.cache
def _demangler() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return function


def demangle(symbol: str) -> str:
    """A C++ symbol as `name<template arguments>`; the symbol itself where it cannot be read."""
    demangler = _demangler()
    status = ctypes.c_int(0)
    address = demangler and demangler(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return symbol
    text = ctypes.string_at(address).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return short_name(text)


def short_name(signature: str) -> str:
    """`name<T, (E)1>` of `void diglot::name<T, (diglot::E)1>(parameters)`."""
    # The parameters follow from the rest.
    plain = re.sub(r"diglot::|\(anonymous namespace\)::", "", signature)
    found = re.match(r"(?:void )?(\w+(?:<.*?>)?)(?:\(|$)", plain)
    return found.group(1) if found else signature


# Of every block's shared memory, what the system has for itself.
RESERVED_SHARED_BYTES = 1024


class Usage(NamedTuple):
    """What cuobjdump tells of a function without looking at its code.

    Attributes:
        shared_bytes: static shared memory per block, as the file has it: from sm_90 on, where there
            is any, with `RESERVED_SHARED_BYTES`.
    """

    symbol: str
    registers: int
    stack_bytes: int
    shared_bytes: int

    def own_shared_bytes(self, architecture: str) -> int:
        """Static shared memory that is the function's own."""
        has_reserved = self.shared_bytes and check_architecture(architecture) >= 90
        return self.shared_bytes - (RESERVED_SHARED_BYTES if has_reserved else 0)


_USAGE = re.compile(r"^\s*Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", re.MULTILINE)


def read_usage(text: str) -> list[Usage]:
    """The functions of what `--dump-resource-usage` printed."""
    return [Usage(symbol, *map(int, numbers)) for symbol, *numbers in _USAGE.findall(text)]


# Instructions whose number says much of a kernel. Of accesses each width counts by itself.
ACCESSES = ("LDG", "STG", "LD", "ST", "LDGSTS", "LDS", "STS", "LDL", "STL")
PRODUCTS = ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA")  # tensor cores
ROLES = "USETMAXREG"  # warpgroups that share out registers: setmaxnreg in PTX
COUNTED = (
    *ACCESSES,
    *("UBLKCP", "UTMALDG", "UTMASTG"),  # bulk copies, of the tensor memory accelerator
    *("LDSM", *PRODUCTS),
    ROLES,
    "MUFU",  # approximations: reciprocals, roots, exponentials, tanh
    *("SHFL", "REDUX", "VOTE"),  # between the lanes of a warp
    *("BAR", "SYNCS", "MEMBAR"),  # barriers and fences
    *("RED", "REDG", "ATOM", "ATOMG", "ATOMS"),
)
LOADS, STORES = ("LDG", "LDGSTS", "LD"), ("STG", "ST")  # global and generic accesses

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)((?:\.\w+)*)[ ;]")
# In suffixes such as .E.128.CONSTANT, .E.U16, .64
_WIDTH = re.compile(r"\.(?:[US])?(8|16|64|128|256)(?=\.|$)")
# An instruction's address and text, and not the encoding behind it.
_LINE = re.compile(r"^\s*(/\*[0-9a-f]{4,}\*/)\s+(.*?;)\s*(?:/\*.*)?$")


@dataclass(frozen=True)
class Code:
    """Counts in a function's code, as `diglot.tools.resources.KernelResources` has them."""

    loads: tuple[tuple[int, int], ...]
    stores: tuple[tuple[int, int], ...]
    spill_bytes: int
    instructions: tuple[tuple[str, int], ...]
    products: tuple[tuple[str, int], ...] = ()


def _access_bytes(suffixes: str) -> int:
    width = _WIDTH.findall(suffixes)
    return max(int(bits) for bits in width) // 8 if width else 4


def _functions(text: str) -> Iterator[tuple[str, str]]:
    """Symbols and bodies of what `-sass` printed."""
    for part in re.split(r"^\s*Function : ", text, flags=re.MULTILINE)[1:]:
        symbol, _, body = part.partition("\n")
        yield symbol.strip(), body


def read_sass(text: str) -> dict[str, Code]:
    """By symbol, the counts in what `-sass` printed."""
    found = {}
    for symbol, body in _functions(text):
        accesses: Counter[tuple[str, int]] = Counter()
        others: Counter[str] = Counter()
        products: Counter[str] = Counter()
        for name, suffixes in _INSTRUCTION.findall(body):
            if name in ACCESSES:
                accesses[name, _access_bytes(suffixes)] += 1
            elif name in COUNTED:
                others[name] += 1
            if name in PRODUCTS:
                products[name + suffixes] += 1

        def widths(
            names: tuple[str, ...], of: Counter[tuple[str, int]] = accesses
        ) -> tuple[tuple[int, int], ...]:
            total: Counter[int] = Counter()
            for (name, size), count in of.items():
                if name in names:
                    total[size] += count
            return tuple(sorted(total.items(), reverse=True))

        by_name = sorted(accesses.items(), key=lambda of: (ACCESSES.index(of[0][0]), -of[0][1]))
        found[symbol] = Code(
            loads=widths(LOADS),
            stores=widths(STORES),
            spill_bytes=sum(size * count for size, count in widths(("STL",))),
            instructions=(
                *((f"{name}.{8 * size}", count) for (name, size), count in by_name),
                *((name, others[name]) for name in COUNTED if name in others),
            ),
            products=tuple(products.items()),
        )
    return found


def read_listing(text: str) -> dict[str, str]:
    """By symbol, the instructions of what `-sass` printed: one a line, without their encodings.

    What pads a function behind its last instruction is left out.
    """
    found = {}
    for symbol, body in _functions(text):
        lines = [f"{line[1]}  {line[2]}" for line in map(_LINE.match, body.splitlines()) if line]
        while lines and re.search(r"\bNOP ?;$", lines[-1]):
            lines.pop()
        found[symbol] = "\n".join(lines) + "\n"
    return found
