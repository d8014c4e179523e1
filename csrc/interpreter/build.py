"""Compiles kernels for the interpreter, by the host's compiler: setup.py builds diglot's own so.

Every source but a kernel's is compiled as usual. Kernels are instrumented: what the compiler then
calls at every access is defined in memory.cpp.

    python csrc/interpreter/build.py OUTPUT FOLDER    diglot's own, with AddressSanitizer and
                                                      UndefinedBehaviorSanitizer
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

KERNEL_FLAGS = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
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
# Instead: for everything, and by the compiler's own libraries.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"]
RUNTIME = ["block", "fiber", "memory", "overflow", "races", "run", "symbols"]


def build(
    output: Path,
    kernels: Iterable[Path],
    folder: Path,
    *,
    sources: Iterable[Path] = (),
    flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
    sanitized: bool = False,
) -> None:
    """Builds a shared library from kernels, the interpreter, and other sources.

    Args:
        output: the library.
        kernels: .cu files, instrumented.
        folder: for objects; what is up to date there is not compiled again.
        sources: .cpp files, compiled as they are.
        flags: for the compiler, such as -I options.
        link_flags: for the linker.
        sanitized: with AddressSanitizer and UndefinedBehaviorSanitizer in everything, instead of
            the interpreter's own checks of a kernel's accesses. Their library must be preloaded.

    Raises:
        RuntimeError: a compiler's messages.
    """
    root = HERE.parent
    includes = [f"-I{path}" for path in (root, root / "include", HERE / "include")]
    kernels = [path.resolve() for path in kernels]
    others = [*(path.resolve() for path in sources), *(HERE / f"{name}.cpp" for name in RUNTIME)]
    folder.mkdir(parents=True, exist_ok=True)
    kernel_flags = ["-fno-extern-tls-init", *([] if sanitized else KERNEL_FLAGS)]
    if sanitized:
        flags, link_flags = [*flags, *SANITIZERS], [*link_flags, *SANITIZERS]
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"flags = {' '.join([*COMMON_FLAGS, *includes, *flags])}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags $more -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule define_shared",
        f"  command = {sys.executable} {HERE / 'dynamic_shared.py'} $in > $out",
        "rule assemble",
        "  command = $cxx -c $in -o $out",
        "rule link",
        f"  command = $cxx -shared $in -o $out {' '.join(link_flags)} -ldl -lpthread",
    ]
    objects = [path.name.replace(".cpp", "") + ".o" for path in (*kernels, *others)]
    for path, target in zip([*kernels, *others], objects, strict=True):
        lines.append(f"build {target}: compile {path}")
        if path in kernels:
            lines.append(f"  more = {' '.join(kernel_flags)} -x c++")
    lines += [
        f"build shared.s: define_shared {' '.join(objects[: len(kernels)])} | "
        f"{HERE / 'dynamic_shared.py'}",
        "build shared.o: assemble shared.s",
        f"build {output.resolve()}: link {' '.join(objects)} shared.o",
        "",
    ]
    (folder / "build.ninja").write_text("\n".join(lines))
    command = [sys.executable, "-m", "ninja", "-C", str(folder), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for the interpreter failed:\n{done.stdout}")


# diglot's extensions target PyTorch's stable ABI (2.10) and Python's limited API (3.10).
STABLE_ABI_DEFINITIONS = [
    "-DTORCH_TARGET_VERSION=0x020a000000000000",
    "-DPy_LIMITED_API=0x030A0000",
]


def build_extension(output: Path, folder: Path, *, sanitized: bool = False) -> None:
    """Builds diglot._interpreter: every op's kernels. Arguments as of `build`."""
    from torch.utils import cpp_extension

    root = HERE.parent
    includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    build(
        output,
        sorted(root.glob("ops/*.cu")),
        folder,
        sources=[HERE / "module.cpp", root / "torch/launcher.cpp"],
        flags=[*STABLE_ABI_DEFINITIONS, *(f"-isystem{path}" for path in includes)],
        link_flags=[
            *(f"-L{path}" for path in cpp_extension.library_paths()),
            "-Wl,--no-as-needed",
            "-ltorch",
        ],
        sanitized=sanitized,
    )


if __name__ == "__main__":
    build_extension(Path(sys.argv[1]), Path(sys.argv[2]), sanitized=True)
