"""What compiled kernels are: registers, spills, shared memory, widest accesses.

CUDA kernels are read from the built library, Triton's are compiled ahead of time; no GPU is needed
for either. Both are read by the `cuobjdump` that Triton brings.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

DEFAULT_ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class KernelResources:
    """A compiled kernel.

    Attributes:
        name: the function's name; for CUDA with its template arguments.
        architecture: what it was compiled for, such as "sm_90a".
        registers: per thread.
        spill_bytes: bytes per thread that its code stores to local memory: spilled registers, and
            arrays that did not fit in registers.
        stack_bytes: stack frame per thread.
        shared_bytes: shared memory per block, static and dynamic.
        load_bytes: width of the widest load from global memory; None if there is none.
        store_bytes: width of the widest store to global memory; None if there is none.
        loads: the loads from global memory in its code: pairs of a width in bytes and how many
            instructions have it, widest first.
        stores: the same of the stores.
    """

    name: str
    architecture: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    load_bytes: int | None
    store_bytes: int | None
    loads: tuple[tuple[int, int], ...] = ()
    stores: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> KernelResources:
        """From what `dataclasses.asdict` made, by way of JSON."""
        pairs = {name: tuple((w, n) for w, n in fields[name]) for name in ("loads", "stores")}
        return KernelResources(**{**fields, **pairs})


class ResourcesUnavailable(RuntimeError):
    """Kernels cannot be looked at here; the message says why."""


@functools.cache
def find_cuobjdump() -> Path:
    """NVIDIA's cuobjdump: Triton's own, else the one on PATH.

    Raises:
        ResourcesUnavailable: there is none.
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


def _dump(*arguments: str) -> str:
    done = subprocess.run(
        [str(find_cuobjdump()), *arguments], capture_output=True, text=True, check=False
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
    found = re.match(r"(?:void )?(\w+(?:<.*?>)?)(?:\(|$)", signature.replace("diglot::", ""))
    return found.group(1) if found else signature


# Global and generic accesses, by the width in their suffixes: LDG.E.128.CONSTANT, STG.E.U16, ...
# The space before makes it three times as fast to find them: there are millions of lines.
_ACCESS = re.compile(r" (LDG|LDGSTS|LD|STG|ST|STL|LDL|RED|ATOMG)\b((?:\.\w+)*)")
_WIDTH = re.compile(r"\.(?:[US])?(8|16|64|128|256)(?=\.|$)")


def _access_bytes(suffixes: str) -> int:
    width = _WIDTH.findall(suffixes)
    return max(int(bits) for bits in width) // 8 if width else 4


def _read_sass(text: str) -> dict[str, dict[str, Any]]:
    """By symbol: loads and stores by width, and bytes stored to local memory."""
    found: dict[str, dict[str, Any]] = {}
    for part in text.split("\tFunction : ")[1:]:
        symbol, _, body = part.partition("\n")
        loads: Counter[int] = Counter()
        stores: Counter[int] = Counter()
        spilled = 0
        for instruction, suffixes in _ACCESS.findall(body):
            size = _access_bytes(suffixes)
            if instruction in ("LDG", "LDGSTS", "LD"):
                loads[size] += 1
            elif instruction in ("STG", "ST"):
                stores[size] += 1
            elif instruction == "STL":
                spilled += size
        found[symbol.strip()] = {
            "load_bytes": max(loads, default=None),
            "store_bytes": max(stores, default=None),
            "loads": tuple(sorted(loads.items(), reverse=True)),
            "stores": tuple(sorted(stores.items(), reverse=True)),
            "spill_bytes": spilled,
        }
    return found


_USAGE = re.compile(r"^\s*Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", re.MULTILINE)


def _join(
    usage: Iterable[tuple[str, ...]], sass: str, architecture: str
) -> dict[str, KernelResources]:
    """Kernels by name, of the two things that cuobjdump tells of them."""
    code = _read_sass(sass)
    kernels = [
        KernelResources(
            name=demangle(symbol),
            architecture=architecture,
            registers=int(registers),
            stack_bytes=int(stack),
            shared_bytes=int(shared),
            **code[symbol],
        )
        for symbol, registers, stack, shared in usage
    ]
    return {kernel.name: kernel for kernel in kernels}


def library_path() -> Path:
    """The built CUDA extension.

    Raises:
        ResourcesUnavailable: diglot was installed without it.
    """
    spec = importlib.util.find_spec("diglot._C")
    if spec is None or spec.origin is None:
        raise ResourcesUnavailable("diglot was installed without its CUDA extension")
    return Path(spec.origin)


@functools.lru_cache(maxsize=1)
def _usage_in(path: Path, modified: int) -> dict[str, list[tuple[str, ...]]]:
    """By architecture, what `_USAGE` finds.

    The architectures are those that the library's own headers tell: in a list of what it holds,
    older versions of cuobjdump name sm_90a as sm_90.
    """
    text = _dump("--dump-resource-usage", str(path))
    _, *parts = re.split(r"^arch = (\w+)$", text, flags=re.MULTILINE)
    found: dict[str, list[tuple[str, ...]]] = {}
    for architecture, part in zip(parts[::2], parts[1::2], strict=True):
        if kernels := _USAGE.findall(part):  # PTX has none
            found.setdefault(architecture, []).extend(kernels)
    return found


def _library_usage() -> dict[str, list[tuple[str, ...]]]:
    path = library_path()
    return _usage_in(path, path.stat().st_mtime_ns)


def library_architectures() -> tuple[str, ...]:
    """What the CUDA extension holds machine code for, such as ("sm_80", "sm_90a")."""
    return tuple(sorted(_library_usage()))


def check_architecture(architecture: str) -> int:
    """The number of an architecture's name: 90 of "sm_90" and "sm_90a".

    Raises:
        ValueError: it is no such name.
    """
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", architecture)
    if not found:
        raise ValueError(f"arch must be like 'sm_90', not {architecture!r}")
    return int(found.group(1))


def code_that_runs(architecture: str) -> str:
    """Which of the library's architectures a GPU of `architecture` runs.

    Its own code, the one with the features of exactly that GPU first; else that of the nearest
    older one of the same major version.

    Raises:
        ResourcesUnavailable: none: the driver would compile the library's PTX, if it can.
    """
    number, present = check_architecture(architecture), library_architectures()
    older = [
        (int(m.group(1)), name)
        for name in present
        if (m := re.fullmatch(r"sm_(\d+)", name)) and number // 10 == int(m.group(1)) // 10
    ]
    candidates = (f"sm_{number}a", f"sm_{number}")
    for candidate in candidates:
        if candidate in present:
            return candidate
    for _, name in sorted(older, reverse=True):
        if int(name[3:]) <= number:
            return name
    raise ResourcesUnavailable(
        f"the CUDA extension holds machine code for {', '.join(present)}, not for {architecture}"
    )


@functools.lru_cache(maxsize=256)
def _library_kernels(
    path: Path, modified: int, architecture: str, wanted: tuple[str, ...] | None
) -> dict[str, KernelResources]:
    usage, only = _usage_in(path, modified)[architecture], []
    if wanted is not None:
        usage = [entry for entry in usage if demangle(entry[0]) in wanted]
        only = ["-fun", ",".join(symbol for symbol, *_ in usage)]
    if not usage:
        return {}
    return _join(usage, _dump("-sass", "-arch", architecture, *only, str(path)), architecture)


def cuda_kernels(
    architecture: str = DEFAULT_ARCHITECTURE, names: Iterable[str] | None = None
) -> dict[str, KernelResources]:
    """The CUDA extension's kernels, by name.

    Args:
        architecture: the GPU's; what is read is the code that it runs.
        names: only these, such as "add_forward_flat<float, FlatShape<4, 4> >"; by default all,
            which takes seconds.

    Raises:
        ResourcesUnavailable: no extension, no cuobjdump, or nothing for that architecture.
        KeyError: a name that the library does not have.
    """
    path = library_path()
    code = code_that_runs(architecture)
    wanted = None if names is None else tuple(sorted(set(names)))
    found = _library_kernels(path, path.stat().st_mtime_ns, code, wanted)
    missing = set(wanted or ()) - set(found)
    if missing:
        raise KeyError(f"the CUDA extension has no kernel {', '.join(sorted(missing))}")
    return found


def cuda_kernel_names(architecture: str = DEFAULT_ARCHITECTURE) -> tuple[str, ...]:
    """Names of all of the CUDA extension's kernels, without reading their code."""
    usage = _library_usage()[code_that_runs(architecture)]
    return tuple(sorted(demangle(symbol) for symbol, *_ in usage))


def compile_triton(
    specializations: Sequence[Any], architecture: str = DEFAULT_ARCHITECTURE
) -> list[KernelResources]:
    """Compiles Triton kernels ahead of time, in this process, and reads what came out.

    Args:
        specializations: `diglot.triton_ops.launch.Specialization`s.
        architecture: what to compile for.

    Raises:
        RuntimeError: Triton interprets in this process; `kernels_of_calls` uses another.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    if knobs.runtime.interpret:
        raise RuntimeError("Triton cannot compile in a process in which it interprets")
    target = GPUTarget("cuda", check_architecture(architecture), 32)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for specialization in specializations:
            compiled = specialization.compile(target)
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(compiled.asm["cubin"])
            usage = _USAGE.findall(_dump("--dump-resource-usage", str(cubin)))
            sass = _dump("-sass", str(cubin))
            (code,) = re.findall(r"^\s*code for (sm_\w+)$", sass, re.MULTILINE)
            (kernel,) = _join(usage, sass, code).values()
            # All of a Triton kernel's shared memory is dynamic: the cubin does not tell its size.
            found.append(replace(kernel, shared_bytes=int(compiled.metadata.shared)))
    return found


@dataclass(frozen=True)
class TensorLike:
    """A tensor without its data: what a launcher looks at to choose a kernel.

    Attributes:
        dtype: the dtype's name, such as "bfloat16".
        shape: sizes.
        stride: strides, in elements.
        misalignment: elements from the multiple of 16 bytes below to the first element.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    misalignment: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorLike:
        """The likeness of a tensor."""
        start = 0 if tensor.is_meta else tensor.data_ptr() % 16 // tensor.element_size()
        name = str(tensor.dtype).removeprefix("torch.")
        return TensorLike(name, tuple(tensor.shape), tensor.stride(), start)

    def tensor(self) -> torch.Tensor:
        """An uninitialised tensor like it, on the CPU. Nothing touches its memory."""
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        dtype = getattr(torch, self.dtype)
        elements = max(extent, 0) + self.misalignment
        return torch.empty(elements, dtype=dtype).as_strided(
            self.shape, self.stride, self.misalignment
        )


@dataclass(frozen=True)
class Call:
    """A call of an op, of which the kernels are asked.

    Attributes:
        op: the op's name.
        inputs: its inputs: tensors without data, or numbers.
        options: its keyword options.
        backward: whether the backward pass is meant, instead of the forward one.
    """

    op: str
    inputs: tuple[TensorLike | float, ...]
    options: dict[str, Any]
    backward: bool = False


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels that a call would launch, in order; or why they cannot be told."""

    kernels: tuple[KernelResources, ...] = ()
    reason: str | None = None


LANGUAGES = ("cuda", "triton")


def kernels_of_calls(
    calls: Sequence[Call],
    architecture: str = DEFAULT_ARCHITECTURE,
    languages: Sequence[str] = LANGUAGES,
) -> list[dict[str, Kernels]]:
    """The kernels that calls would launch on a GPU, by language.

    Another process makes them out: there launchers record instead of launching, and Triton
    compiles, which it cannot where it interprets.

    Args:
        calls: the calls.
        architecture: the GPU's, such as "sm_90".
        languages: of "cuda" and "triton".

    Raises:
        ValueError: no such architecture.
        ResourcesUnavailable: the other process failed as a whole.
    """
    check_architecture(architecture)
    request = {
        "architecture": architecture,
        "languages": list(languages),
        "calls": [asdict(call) for call in calls],
    }
    leave_out = {"DIGLOT_INTERPRET", "TRITON_INTERPRET", "DIGLOT_BACKEND"}
    environment = {name: value for name, value in os.environ.items() if name not in leave_out}
    done = subprocess.run(
        [sys.executable, "-m", "diglot.tools.recording"],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ResourcesUnavailable(f"looking at the kernels failed: {last[0]}")
    return [
        {
            language: Kernels(
                tuple(KernelResources.from_dict(kernel) for kernel in answer["kernels"]),
                answer["reason"],
            )
            for language, answer in of_call.items()
        }
        for of_call in json.loads(done.stdout)
    ]
