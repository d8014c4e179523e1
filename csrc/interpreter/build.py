"""Compiles kernels for the interpreter, by the host's compiler: setup.py builds diglot's own so.

Every source but a kernel's is compiled as usual. Kernels are instrumented: what the compiler then
calls at every access is defined in memory.cpp.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

KERNEL_FLAGS = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "--param=tsan-instrument-func-entry-exit=0",
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
        "rule link",
        f"  command = $cxx -shared $in -o $out {' '.join(link_flags)} -ldl -lpthread",
    ]
    objects = []
    for path in [*kernels, *others]:
        objects.append(f"{path.stem}{path.suffix}.o".replace(".cpp", ""))
        lines.append(f"build {objects[-1]}: compile {path}")
        if path in kernels:
            lines.append(f"  more = {' '.join(KERNEL_FLAGS)} -x c++")
    lines += [f"build {output.resolve()}: link {' '.join(objects)}", ""]
    (folder / "build.ninja").write_text("\n".join(lines))
    command = [sys.executable, "-m", "ninja", "-C", str(folder), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for the interpreter failed:\n{done.stdout}")
