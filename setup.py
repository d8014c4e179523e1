"""Builds diglot's CUDA extension, where a CUDA compiler is found, and the CUDA kernels for the
host's interpreter.

Each targets PyTorch's stable ABI (2.10) and Python's limited API (3.10), so that one wheel
serves every later version of either. What it is built for is read from the environment:

CUDA_HOME             the CUDA toolkit (default: that of the nvcc on PATH or of pip's packages)
TORCH_CUDA_ARCH_LIST  architectures, such as "8.0 9.0a 9.0+PTX" (the default)
DIGLOT_REQUIRE_CUDA   1: fail where no nvcc or no g++ is found, instead of building without
DIGLOT_SKIP_CUDA      1: build no CUDA kernels. gpu: build them for the host's interpreter alone.
DIGLOT_FEW_TYPES      1: build CUDA kernels for float32 and bfloat16 alone, in half the time
DIGLOT_HOST_OPTIMIZATION  level for what launches kernels, 0 to 3 (the default); theirs is always 3
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import setup

ROOT = Path(__file__).parent
DEFAULT_ARCHITECTURES = "8.0 9.0a 9.0+PTX"
INTERPRETER = "diglot._interpreter"
SKIPPED = os.environ.get("DIGLOT_SKIP_CUDA")
SKIP = "DIGLOT_SKIP_CUDA=1" if SKIPPED == "1" else ""


def load_builder() -> ModuleType:
    path = ROOT / "csrc/interpreter/build.py"
    specification = importlib.util.spec_from_file_location("build", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


builder = load_builder()


def toolkit_of(nvcc: Path) -> Path | None:
    """The toolkit that an nvcc belongs to, by its own account: it may be a wrapper."""
    command = [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    top = re.search(r"^#\$ TOP=(.+)$", answer.stderr, re.MULTILINE)
    return Path(top.group(1).strip()).resolve() if top else None


def find_toolkit() -> Path | None:
    candidates: list[Path | None] = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable]))
    on_path = shutil.which("nvcc")
    if on_path:
        candidates.append(toolkit_of(Path(on_path)))
    # pip's nvidia-cuda-nvcc and friends share one folder per major version.
    for packages in {sysconfig.get_path("purelib"), *sys.path}:
        candidates.extend(sorted(Path(packages).glob("nvidia/cu[0-9]*"), reverse=True))
    for candidate in candidates:
        if candidate and (candidate / "bin/nvcc").exists():
            if (candidate / "include/cuda_runtime.h").exists():
                return candidate
    return None


def architectures_of(source: str, architectures: str) -> str:
    """Those of the architectures that a source is compiled for.

    A .cu file whose instructions only some have names them in a line of its own, as far as they are
    asked for: "// Architectures: 9.0a". Where none is asked for, there is no such file.
    """
    text = (ROOT / source).read_text() if source.endswith(".cu") else ""
    named = re.search(r"^// Architectures: (.+)$", text, re.MULTILINE)
    if named is None:
        return architectures
    asked = architectures.replace(";", " ").split()
    return " ".join(entry for entry in named.group(1).split() if entry in asked)


def code_generation_flags(architectures: str) -> list[str]:
    flags = []
    for entry in architectures.replace(";", " ").split():
        number = entry.removesuffix("+PTX").replace(".", "")
        kind = "compute" if entry.endswith("+PTX") else "sm"
        flags.append(f"-gencode=arch=compute_{number},code={kind}_{number}")
    return flags


def leave_out(part: str, reason: str) -> None:
    """Says that a part is not built, and why; ends the build where that is forbidden."""
    message = f"{reason}: diglot is built without its CUDA {part}"
    if os.environ.get("DIGLOT_REQUIRE_CUDA") == "1":
        raise SystemExit(f"error: {message}, and DIGLOT_REQUIRE_CUDA=1 forbids that")
    print(f"warning: {message}", file=sys.stderr)


def interpreter_extension() -> Any:
    """What `build_interpreter` builds; None, with a reason printed, where a tool is missing."""
    tools = (*shlex.split(os.environ.get("CXX", "g++"))[:1], "ld", "objcopy")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if SKIP or missing:
        leave_out("interpreter", SKIP or f"no {', '.join(missing)} found")
        return None
    from setuptools import Extension

    return Extension(INTERPRETER, [], py_limited_api=True)


def cuda_extension() -> Any:
    """The extension of the CUDA backend; None, with a reason printed, where it cannot be built."""
    if SKIPPED == "gpu":
        return None
    toolkit = None if SKIP else find_toolkit()
    if toolkit is None:
        leave_out("backend", SKIP or "no CUDA compiler (nvcc) found")
        return None

    import torch
    from torch.utils import cpp_extension

    # A CPU-only PyTorch leaves this None even where a toolkit is installed.
    os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = str(toolkit)
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHITECTURES)
    few_types = os.environ.get("DIGLOT_FEW_TYPES") == "1"
    definitions = [
        *builder.STABLE_ABI_DEFINITIONS,
        "-DUSE_CUDA",
        *(["-DDIGLOT_FEW_TYPES"] if few_types else []),
        f'-DDIGLOT_ARCHITECTURES="{architectures}"',
        f'-DDIGLOT_BUILT_WITH_TORCH="{torch.__version__}"',
    ]
    patterns = ["csrc/ops/**/*.cu", "csrc/pipeline/*.cpp", "csrc/torch/*.cpp", "csrc/torch/*.cu"]
    every = [source for pattern in patterns for source in ROOT.glob(pattern)]
    # Those for one architecture last, as tools/wheel_size.py expects them.
    sources = sorted(every, key=lambda path: (len(path.parts), path))
    headers = sorted(ROOT.glob("csrc/**/*.h")) + sorted(ROOT.glob("csrc/**/*.cuh"))
    libraries = [str(toolkit / name) for name in ("lib64", "lib") if (toolkit / name).is_dir()]
    return cpp_extension.CppExtension(
        "diglot._C",
        [str(source.relative_to(ROOT)) for source in sources],
        depends=[str(header.relative_to(ROOT)) for header in headers],
        include_dirs=[str(ROOT / "csrc"), str(ROOT / "csrc/include"), str(toolkit / "include")],
        library_dirs=libraries,
        libraries=["cudart_static", "dl", "rt", "pthread"],
        extra_compile_args={
            "cxx": ["-O3", "-fvisibility=hidden", *definitions],
            "nvcc": [
                f"-O{os.environ.get('DIGLOT_HOST_OPTIMIZATION', '3')}",
                "--expt-relaxed-constexpr",
                "-fmad=false",  # what is to be fused is written as fma, in both languages
                # Machine code in a ninth of the space, for wheels.
                *([] if few_types else ["-compress-mode=size"]),
                "-Xcompiler=-fvisibility=hidden",
                *code_generation_flags(architectures),
                *definitions,
            ],
        },
        extra_link_args=["-Wl,--no-as-needed", "-ltorch", "-Wl,--exclude-libs,ALL", "-Wl,-s"],
        py_limited_api=True,
    )


def extension_arguments() -> dict[str, object]:
    """What setup() is told of the extensions, and how they are built."""
    from setuptools import Extension
    from torch.utils import cpp_extension

    class BuildExtension(cpp_extension.BuildExtension):  # type: ignore[misc]
        """Rebuilds what changed: a source, a header, a flag. Each source has its architectures."""

        extensions: list[Extension]

        def finalize_options(self) -> None:
            super().finalize_options()
            self.force = True  # ninja knows better than setuptools what is up to date

        def build_extensions(self) -> None:
            # But the rules that a CPU-only PyTorch writes do not say what a .cu file includes.
            for extension in self.extensions:
                if extension.name == INTERPRETER:
                    continue
                changed = max(Path(header).stat().st_mtime for header in extension.depends)
                for source in extension.sources:
                    made = Path(self.build_temp, source).with_suffix(".o")
                    if source.endswith(".cu") and made.exists() and made.stat().st_mtime < changed:
                        made.unlink()
            every = self.extensions
            self.extensions = [e for e in every if e.name != INTERPRETER]
            if self.extensions:
                super().build_extensions()
            self.extensions = every
            if INTERPRETER in [e.name for e in every]:
                build_interpreter(Path(self.get_ext_fullpath(INTERPRETER)), Path(self.build_temp))

        def build_extension(self, extension: Extension) -> None:
            every = os.environ.get("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHITECTURES)
            groups: dict[str, list[str]] = {}
            for source in extension.sources:
                groups.setdefault(architectures_of(source, every), []).append(source)
            extension.sources = groups.pop(every, [])
            groups.pop("", None)
            for architectures, sources in groups.items():
                nvcc = extension.extra_compile_args["nvcc"]
                flags = [flag for flag in nvcc if not flag.startswith("-gencode")]
                flags += code_generation_flags(architectures)
                extension.extra_objects += self.compiler.compile(
                    sources,
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    debug=self.debug,
                    extra_postargs={**extension.extra_compile_args, "nvcc": flags},
                    depends=extension.depends,
                )
            super().build_extension(extension)

    extensions = [cuda_extension(), interpreter_extension()]
    return {
        "ext_modules": [extension for extension in extensions if extension is not None],
        "cmdclass": {"build_ext": BuildExtension},
        "options": {"bdist_wheel": {"py_limited_api": "cp310"}},
    }


def build_interpreter(output: Path, folder: Path) -> None:
    """diglot._interpreter: the CUDA kernels for the host."""
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        builder.build_extension(output, folder / "interpreter")
    except RuntimeError as error:
        lines = str(error).splitlines()
        # All of a compiler's messages, and below them in one line what matters.
        why = next((line for line in lines if "error:" in line), lines[0])
        print(*lines, sep="\n", file=sys.stderr)
        raise SystemExit(f"error: the CUDA interpreter cannot be built: {why}") from None


if "--inplace" in sys.argv:
    # Should this build fail, or leave a library out, that of an earlier one must not pass for it.
    for library in (*ROOT.glob("python/diglot/_C.*"), *ROOT.glob("python/diglot/_interpreter.*")):
        library.unlink()
setup(**extension_arguments())
