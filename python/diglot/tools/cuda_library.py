"""The kernels of the built CUDA extension: names, resources and code, by architecture."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from diglot.backends.registry import NO_EXTENSION
from diglot.tools.machine_code import (
    ResourcesUnavailable,
    Usage,
    check_architecture,
    demangle,
    dump,
    read_listing,
    read_usage,
)
from diglot.tools.resources import DEFAULT_ARCHITECTURE, KernelResources, join


def library_path() -> Path:
    """The built CUDA extension.

    Raises:
        ResourcesUnavailable: diglot was installed without it.
    """
    spec = importlib.util.find_spec("diglot._C")
    if spec is None or spec.origin is None:
        raise ResourcesUnavailable(NO_EXTENSION)
    return Path(spec.origin)


@functools.lru_cache(maxsize=1)
def _usage_in(path: Path, modified: int) -> dict[str, list[Usage]]:
    """By architecture, the functions.

    The architectures are those that the library's own headers tell: in a list of what it holds,
    older versions of cuobjdump name sm_90a as sm_90.
    """
    text = dump("--dump-resource-usage", str(path))
    _, *parts = re.split(r"^arch = (\w+)$", text, flags=re.MULTILINE)
    found: dict[str, list[Usage]] = {}
    for architecture, part in zip(parts[::2], parts[1::2], strict=True):
        if kernels := read_usage(part):  # PTX has none
            found.setdefault(architecture, []).extend(kernels)
    return found


def library_usage() -> dict[str, list[Usage]]:
    """By architecture, what the extension's functions take: without reading their code."""
    path = library_path()
    return _usage_in(path, path.stat().st_mtime_ns)


def library_architectures() -> tuple[str, ...]:
    """What the CUDA extension holds machine code for, such as ("sm_80", "sm_90a")."""
    return tuple(sorted(library_usage()))


def library_ptx() -> tuple[str, ...]:
    """What the CUDA extension holds PTX for, such as ("sm_90",)."""
    listed = dump("-lptx", str(library_path()))
    return tuple(sorted(set(re.findall(r"\.(sm_\w+)\.ptx$", listed, re.MULTILINE))))


def _nearest(number: int, names: Iterable[str]) -> str | None:
    """Of names such as "sm_80", that of the greatest number up to this one."""
    numbers = [int(found[1]) for name in names if (found := re.fullmatch(r"sm_(\d+)", name))]
    return f"sm_{max(older)}" if (older := [n for n in numbers if n <= number]) else None


def code_that_runs(architecture: str) -> str:
    """Which of the library's architectures a GPU of `architecture` runs.

    Its own code, the one with the features of exactly that GPU first; else that of the nearest
    older one of the same major version.

    Raises:
        ResourcesUnavailable: none: the driver would compile the library's PTX, if it can.
    """
    number, present = check_architecture(architecture), library_architectures()
    if f"sm_{number}a" in present:
        return f"sm_{number}a"
    same_major = [name for name in present if re.fullmatch(rf"sm_{number // 10}\d", name)]
    found = _nearest(number, same_major)
    if found is None:
        raise ResourcesUnavailable(
            f"the CUDA extension holds machine code for {', '.join(present)}, not for "
            f"{architecture}"
        )
    return found


def ptx_that_runs(architecture: str) -> str:
    """Which of the library's PTX a driver would compile for a GPU of `architecture`.

    Raises:
        ResourcesUnavailable: none.
    """
    present = library_ptx()
    found = _nearest(check_architecture(architecture), present)
    if found is None:
        has = f"PTX for {', '.join(present)} and" if present else "no PTX, but"
        raise ResourcesUnavailable(
            f"the CUDA extension holds {has} machine code for "
            f"{', '.join(library_architectures())}: PTX for {architecture} is not there; the "
            "stages cubin, sass and resources are"
        )
    return found


@functools.lru_cache(maxsize=256)
def _library_kernels(
    path: Path, modified: int, architecture: str, wanted: tuple[str, ...] | None
) -> dict[str, KernelResources]:
    usage, only = _usage_in(path, modified)[architecture], []
    if wanted is not None:
        usage = [entry for entry in usage if demangle(entry.symbol) in wanted]
        only = ["-fun", ",".join(entry.symbol for entry in usage)]
    if not usage:
        return {}
    return join(usage, dump("-sass", "-arch", architecture, *only, str(path)), architecture)


def cuda_kernels(
    architecture: str = DEFAULT_ARCHITECTURE, names: Iterable[str] | None = None
) -> dict[str, KernelResources]:
    """The CUDA extension's kernels, by name.

    Their threads, their dynamic shared memory and their clusters are a launch's: none are told.

    Args:
        architecture: the GPU's, whose code is read.
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
    usage = library_usage()[code_that_runs(architecture)]
    return tuple(sorted(demangle(entry.symbol) for entry in usage))


def symbol_of(name: str, architecture: str = DEFAULT_ARCHITECTURE) -> str:
    """The symbol of a kernel, which is its name in the file.

    Raises:
        KeyError: the library does not have it.
    """
    for entry in library_usage()[code_that_runs(architecture)]:
        if demangle(entry.symbol) == name:
            return entry.symbol
    raise KeyError(f"the CUDA extension has no kernel {name}")


def _extract(option: str, architecture: str, kind: str, symbol: str) -> bytes:
    """The first of the files in the extension in which a symbol stands."""
    # Older versions of cuobjdump name a file of sm_90a as one of sm_90.
    for named in dict.fromkeys((architecture, architecture.rstrip("af"))):
        with tempfile.TemporaryDirectory() as folder:
            dump(option, f".{named}.{kind}", str(library_path()), folder=Path(folder))
            for path in sorted(Path(folder).iterdir()):
                if symbol.encode() in (content := path.read_bytes()):
                    return content
    raise ResourcesUnavailable(f"the CUDA extension has no {kind} of {symbol} for {architecture}")


def cuda_cubin(name: str, architecture: str = DEFAULT_ARCHITECTURE) -> bytes:
    """The cubin in which a kernel lies, with all others of the same .cu file."""
    code = code_that_runs(architecture)
    return _extract("-xelf", code, "cubin", symbol_of(name, architecture))


def cuda_sass(name: str, architecture: str = DEFAULT_ARCHITECTURE) -> str:
    """A kernel's instructions, one a line."""
    symbol, code = symbol_of(name, architecture), code_that_runs(architecture)
    text = dump("-sass", "-arch", code, "-fun", symbol, str(library_path()))
    return read_listing(text)[symbol]


def cuda_ptx(name: str, architecture: str = DEFAULT_ARCHITECTURE) -> str:
    """A kernel's PTX: for which version and target it is, and its entry."""
    symbol, target = symbol_of(name, architecture), ptx_that_runs(architecture)
    text = _extract("-xptx", target, "ptx", f".entry {symbol}(").decode()
    head = re.findall(r"^\.(?:version|target|address_size) .*$", text, re.MULTILINE)
    entry = re.search(
        rf"^[^\n]*\.entry {re.escape(symbol)}\(.*?^}}", text, re.MULTILINE | re.DOTALL
    )
    assert entry is not None
    return "\n".join([*head, "", entry[0], ""])
