"""Builds planted kernels, for the interpreter or for this machine's GPU, and calls them.

    python library.py LIBRARY KERNEL [LAUNCH VALUES]

runs a kernel without PyTorch, on memory that is allocated for this alone, and prints what went
wrong and the results: what memory checkers watch. LAUNCH is JSON, such as {"threads": 128}; VALUES
is a file of the kernel's input.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import json
import shutil
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parent.parent.parent
KERNELS = ROOT / "tests/planted/kernels.cu"
BLOCKS, THREADS = 4, 256

Run = Callable[..., "tuple[str, torch.Tensor]"]


class Options(ctypes.Structure):
    """As in runner.h."""

    _fields_ = (
        ("blocks", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("shared_bytes", ctypes.c_ulonglong),
        ("is_cooperative", ctypes.c_int),
        ("seed", ctypes.c_ulonglong),
        ("finds_races", ctypes.c_int),
        ("patience_ms", ctypes.c_uint),
        ("seconds", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
    )


def options(
    *,
    blocks: int = BLOCKS,
    threads: int = THREADS,
    shared: int = 0,
    cooperative: bool = False,
    seed: int = 0,
    races: bool = True,
    patience_ms: int = 200,
    seconds: int = 300,
    cluster: int = 1,
) -> Options:
    return Options(blocks, threads, shared, cooperative, seed, races, patience_ms, seconds, cluster)


def runtime_of_extension() -> Path | None:
    """The interpreter as setup.py has compiled it, unless its sources are newer."""
    folders = (ROOT / "csrc/interpreter", ROOT / "csrc/include")
    newest = max(path.stat().st_mtime for folder in folders for path in folder.rglob("*.*"))
    built = ROOT.glob("build/temp.*/interpreter/runtime.o")
    return next((path for path in built if path.stat().st_mtime > newest), None)


def build_interpreted(
    kernels: Path = KERNELS, library: Path | None = None, *, sanitized: bool = False
) -> Path:
    """For the interpreter, which is compiled at most once for all tests and their processes."""
    where = ROOT / "csrc/interpreter/build.py"
    specification = importlib.util.spec_from_file_location("build", where)
    assert specification is not None and specification.loader is not None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    folder = ROOT / "build" / ("planted-sanitized" if sanitized else "planted")
    folder.mkdir(parents=True, exist_ok=True)
    library = library or folder / f"{kernels.stem}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtime = None if sanitized else runtime_of_extension()
        builder.build(library, [kernels], folder, sanitized=sanitized, runtime=runtime)
    return library


def find_nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def build_for_gpu(
    folder: Path,
    flags: Sequence[str] = (),
    kernels: Path = KERNELS,
    architecture: str | None = None,
) -> Path:
    """By nvcc, for an architecture such as "sm_90a": by default for the GPU of this machine."""
    import torch

    nvcc = find_nvcc()
    assert nvcc is not None
    if architecture is None:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"sm_{major}{minor}{'a' if major == 9 else ''}"
    library = folder / f"{kernels.stem}.so"
    command = [nvcc, "-std=c++17", "-O2", "-lineinfo", "--expt-relaxed-constexpr", "-shared"]
    command += [f"-arch={architecture}", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    command += [*flags, f"-I{ROOT / 'csrc/include'}", str(kernels), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library


def runner(path: Path) -> Run:
    """run(kernel, ...), as options(...): what went wrong, or "", and the results of its blocks."""
    import torch

    library = ctypes.CDLL(str(path))
    library.run.restype = ctypes.c_char_p

    def run(
        kernel: str, *, values: torch.Tensor | None = None, **launch: int
    ) -> tuple[str, torch.Tensor]:
        how = options(**launch)
        blocks = max(how.blocks, 1)
        if values is None:
            values = torch.arange(blocks * THREADS, dtype=torch.float32)
        out = torch.full((blocks,), -1.0)
        message = library.run(
            kernel.encode(),
            ctypes.byref(how),
            ctypes.c_void_p(values.data_ptr()),
            ctypes.c_int64(values.numel()),
            ctypes.c_void_p(out.data_ptr()),
        )
        return message.decode(), out

    if hasattr(library, "free_stacks"):  # the interpreter's
        weakref.finalize(run, library.free_stacks)
    return run


def main(path: str, kernel: str, launch: str = "{}", values_file: str | None = None) -> None:
    library, libc = ctypes.CDLL(path), ctypes.CDLL(None)
    library.run.restype = ctypes.c_char_p
    libc.malloc.restype = ctypes.c_void_p
    how = options(races=False, **json.loads(launch))
    if values_file is None:
        given = array("f", range(how.blocks * THREADS)).tobytes()
    else:
        given = Path(values_file).read_bytes()
    values = libc.malloc(len(given))
    ctypes.memmove(values, given, len(given))
    out = ctypes.cast(libc.malloc(4 * how.blocks), ctypes.POINTER(ctypes.c_float))
    for i in range(how.blocks):
        out[i] = -1
    count = ctypes.c_int64(len(given) // 4)
    message = library.run(kernel.encode(), ctypes.byref(how), ctypes.c_void_p(values), count, out)
    print(f"said: {message.decode()!r}; results:", *out[: how.blocks])


if __name__ == "__main__":
    main(*sys.argv[1:])
