"""Compiles kernels for the interpreter, by the host's compiler: setup.py builds diglot's own so.

Every source but a kernel's is compiled as usual. Kernels are instrumented: what the compiler then
calls at every access is defined in hooks.cpp.

    python csrc/interpreter/build.py [--sanitized] OUTPUT FOLDER [OP ...]

builds diglot's own: of all ops, or of those named; `--sanitized` with AddressSanitizer and
UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

# The compiler reports no access of these functions: hooks.cpp has others in their place.
COPIES = ["memcpy", "memmove", "memset"]
KERNEL_FLAGS = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    *(f"-fno-builtin-{name}" for name in COPIES),
    "-U_FORTIFY_SOURCE",  # which has other names for them
    "-O1",  # in two thirds of the time that -O2 takes to compile
    "-fno-ipa-reference-addressable",  # keeps writes to a variable that only its writer reads
    "-fno-optimize-sibling-calls",  # a call's return address is in the function that makes it
    "-fstack-clash-protection",  # no frame steps over the page that guards a stack
]
COMMON_FLAGS = [
    "-std=c++17",
    "-O2",
    "-g1",  # lines, for messages
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",  # symbols merged into the runtime stay its own
    "-ffp-contract=off",  # as for nvcc: kernels write fma where they mean it
    "-fno-strict-aliasing",  # kernels read memory as other types, as nvcc lets them
    "-DDIGLOT_INTERPRETER",
]
# Instead: for everything, and by the compiler's own libraries.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"]
RUNTIME = sorted(path.stem for path in HERE.glob("*.cpp") if path.stem != "module")
# All other symbols of the runtime's objects are hidden. A kernel's file and the runtime may share
# an inline function, such as one of std::vector. Each then keeps its own, since the kernel's tells
# the runtime what it touches.
INTERFACE = [
    "_ZN6diglot11interpreter*",
    "_ZNK6diglot11interpreter*",
    "__tsan_*",
    "__ubsan_*",
    "__assert_fail",
    "diglot_*",
]


def build(
    output: Path,
    kernels: Iterable[Path],
    folder: Path,
    *,
    sources: Iterable[Path] = (),
    flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
    sanitized: bool = False,
    runtime: Path | None = None,
) -> None:
    """Builds a shared library from kernels, the interpreter, and other sources.

    Args:
        output: the library.
        kernels: .cu files, instrumented.
        folder: for objects. Those that are up to date are not compiled again.
        sources: .cpp files, compiled as they are.
        flags: for the compiler, such as -I options.
        link_flags: for the linker.
        sanitized: with AddressSanitizer and UndefinedBehaviorSanitizer in everything, instead of
            the interpreter's own checks of a kernel's accesses. Their library must be preloaded.
        runtime: the interpreter as another build has merged it, `runtime.o` in that one's folder.
            By default it is compiled.

    Raises:
        RuntimeError: a compiler's messages.
    """
    root = HERE.parent
    includes = [f"-I{path}" for path in (root, root / "include", HERE / "include")]
    folder.mkdir(parents=True, exist_ok=True)
    kernel_flags = ["-fno-extern-tls-init", "-x c++", *([] if sanitized else KERNEL_FLAGS)]
    if sanitized:
        flags, link_flags = [*flags, *SANITIZERS], [*link_flags, *SANITIZERS]
    kernels = [path.resolve() for path in kernels]
    renames = " ".join(f"--redefine-sym {name}=diglot_{name}" for name in COPIES)
    # Messages name a kernel's lines. Names of functions, half of a library's bytes, tell no more.
    blank = (
        "objcopy --dump-section .debug_str=$out.names $out && "
        r"LC_ALL=C tr '\001-\377' '\000' < $out.names > $out.blank"
    )
    watch = f" && {blank} && objcopy {renames} --update-section .debug_str=$out.blank $out"
    watch = "" if sanitized else watch
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"flags = {' '.join([*COMMON_FLAGS, *includes, *flags])} {os.environ.get('CXXFLAGS', '')}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule compile_kernel",
        f"  command = $cxx -MMD -MF $out.d $flags {' '.join(kernel_flags)} -c $in -o $out{watch}",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule merge",
        "  command = ld -r --force-group-allocation -o $out $in && objcopy --wildcard "
        + " ".join(f"--keep-global-symbol='{name}'" for name in INTERFACE)
        + " $out",
        "rule define_shared",
        f"  command = {sys.executable} {HERE / 'dynamic_shared.py'} $in > $out",
        "rule assemble",
        "  command = $cxx -c $in -o $out",
        "rule link",
        "  command = $cxx -shared $in -o $out -Wl,--compress-debug-sections=zlib "
        f"{' '.join(link_flags)} -ldl -lpthread",
    ]

    def compile(paths: Iterable[Path], rule: str = "compile") -> str:
        """Adds the rules of some sources; the names of their objects."""
        objects: list[str] = []
        for path in paths:
            name = path.name.replace(".cpp", "") + ".o"
            # Files of one op may lie in several folders.
            objects.append(f"{path.parent.name}-{name}" if name in objects else name)
            lines.append(f"build {objects[-1]}: {rule} {path}")
        return " ".join(objects)

    of_kernels = compile(kernels, "compile_kernel")
    of_sources = compile(path.resolve() for path in sources)
    if runtime is None:
        of_runtime = compile(HERE / f"{name}.cpp" for name in RUNTIME)
        lines.append(f"build runtime.o: merge {of_runtime}")
    shared = f"{output.stem}.shared"  # libraries built in one folder share only the runtime
    lines += [
        f"build {shared}.s: define_shared {of_kernels} | {HERE / 'dynamic_shared.py'}",
        f"build {shared}.o: assemble {shared}.s",
        f"build {output.resolve()}: link {of_kernels} {of_sources} "
        f"{runtime or 'runtime.o'} {shared}.o",
        "",
    ]
    (folder / "build.ninja").write_text("\n".join(lines))
    command = [sys.executable, "-m", "ninja", "-C", str(folder), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for the interpreter failed:\n{done.stdout}")


# diglot's extensions target PyTorch's stable ABI (2.10); Python's is declared in python_abi.h.
STABLE_ABI_DEFINITIONS = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]


def build_extension(
    output: Path, folder: Path, *, ops: Sequence[str] = (), sanitized: bool = False
) -> None:
    """Builds diglot._interpreter: the kernels of these ops, by default of all.

    Other arguments as of `build`.
    """
    from torch.utils import cpp_extension

    root = HERE.parent
    build(
        output,
        sorted(path for path in root.glob("ops/**/*.cu") if path.stem in ops or not ops),
        folder,
        sources=[
            HERE / "module.cpp",
            root / "torch/choice.cpp",
            root / "torch/copier.cpp",
            root / "torch/launcher.cpp",
            root / "torch/pipeline.cpp",
            root / "torch/plans.cpp",
            root / "torch/reader.cpp",
            root / "torch/tunables.cpp",
            *sorted(root.glob("pipeline/*.cpp")),
        ],
        flags=[
            *STABLE_ABI_DEFINITIONS,
            *(f"-isystem{path}" for path in cpp_extension.include_paths()),
        ],
        link_flags=[
            *(f"-L{path}" for path in cpp_extension.library_paths()),
            "-Wl,--no-as-needed",
            "-ltorch",
        ],
        sanitized=sanitized,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds diglot._interpreter.")
    parser.add_argument("output", type=Path)
    parser.add_argument("folder", type=Path, help="for objects")
    parser.add_argument("ops", nargs="*", help="by default all")
    parser.add_argument("--sanitized", action="store_true")
    arguments = parser.parse_args()
    build_extension(
        arguments.output, arguments.folder, ops=arguments.ops, sanitized=arguments.sanitized
    )
