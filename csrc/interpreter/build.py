"""Compiles kernels for the interpreter, by the host's compiler: setup.py builds diglot's own so.

Every source but a kernel's is compiled as usual. Kernels are instrumented: what the compiler then
calls at every access is defined in memory.cpp. An array of dynamic shared memory is a thread-local
variable that its kernel declares as extern: all of them are defined as one block of memory.

    python build.py KERNEL.o ...    that definition in assembler, for the ninja file written here
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

KERNEL_FLAGS = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    "-fno-extern-tls-init",
    "-fstack-clash-protection",  # no frame steps over the page that guards a stack
]
COMMON_FLAGS = [
    "-std=c++17",
    "-O2",
    "-g1",  # lines, for messages
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # as nvcc is told: what is to be fused is written as fma
    "-DDIGLOT_INTERPRETER",
]
MAX_SHARED_BYTES = 227 * 1024  # kMaxSharedBytes of interpreter.h
RUNTIME = ["block", "fiber", "memory", "overflow", "races", "run", "symbols"]


def build(
    output: Path,
    kernels: Iterable[Path],
    folder: Path,
    *,
    sources: Iterable[Path] = (),
    flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
) -> None:
    """Builds a shared library from kernels, the interpreter, and other sources.

    Args:
        output: the library.
        kernels: .cu files, instrumented.
        folder: for objects; what is up to date there is not compiled again.
        sources: .cpp files, compiled as they are.
        flags: for the compiler, such as -I options.
        link_flags: for the linker.

    Raises:
        RuntimeError: a compiler's messages.
    """
    root = HERE.parent
    includes = [f"-I{path}" for path in (root, root / "include", HERE / "include")]
    kernels = [path.resolve() for path in kernels]
    others = [*(path.resolve() for path in sources), *(HERE / f"{name}.cpp" for name in RUNTIME)]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"flags = {' '.join([*COMMON_FLAGS, *includes, *flags])}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags $more -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule define_shared",
        f"  command = {sys.executable} {Path(__file__).resolve()} $in > $out",
        "rule assemble",
        "  command = $cxx -c $in -o $out",
        "rule link",
        f"  command = $cxx -shared $in -o $out {' '.join(link_flags)} -ldl -lpthread",
    ]
    objects = [path.name.replace(".cpp", "") + ".o" for path in (*kernels, *others)]
    for path, target in zip([*kernels, *others], objects, strict=True):
        lines.append(f"build {target}: compile {path}")
        if path in kernels:
            lines.append(f"  more = {' '.join(KERNEL_FLAGS)} -x c++")
    lines += [
        f"build shared.s: define_shared {' '.join(objects[: len(kernels)])} | {Path(__file__)}",
        "build shared.o: assemble shared.s",
        f"build {output.resolve()}: link {' '.join(objects)} shared.o",
        "",
    ]
    (folder / "build.ninja").write_text("\n".join(lines))
    command = [sys.executable, "-m", "ninja", "-C", str(folder), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for the interpreter failed:\n{done.stdout}")


def dynamic_shared(objects: Sequence[str]) -> str:
    """Defines what kernels declare as `extern __shared__`: one address with many names."""
    command = ["readelf", "--wide", "--symbols", *objects]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = re.findall(r" TLS +(?:GLOBAL|WEAK) +\S+ +(\w+) (\S+)$", table, re.MULTILINE)
    defined = {name for section, name in symbols if section != "UND"}
    arrays = {name for section, name in symbols if section == "UND"} - defined
    lines = ['.section .tbss, "awT", %nobits', ".balign 1024"]
    for name in ["diglot_dynamic_shared", *sorted(arrays)]:
        if not name.startswith(("_ZSt", "_ZNSt")):  # the standard library's own
            lines += [f".globl {name}", f".hidden {name}", f"{name}:"]
    lines += [f".zero {MAX_SHARED_BYTES}", '.section .note.GNU-stack, "", %progbits', ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(dynamic_shared(sys.argv[1:]))
