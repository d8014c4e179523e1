"""Builds diglot's CUDA extension, where a CUDA compiler is found.

The extension targets PyTorch's stable ABI (2.10) and Python's limited API (3.10), so that one wheel
serves every later version of either. What it is built for is read from the environment:

CUDA_HOME             the CUDA toolkit (default: that of the nvcc on PATH or of pip's packages)
TORCH_CUDA_ARCH_LIST  architectures, such as "8.0 9.0a 9.0+PTX" (the default)
DIGLOT_REQUIRE_CUDA   1: fail where no nvcc is found, instead of building without the CUDA backend
DIGLOT_SKIP_CUDA      1: build without the CUDA backend, even where nvcc is found
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
DEFAULT_ARCHITECTURES = "8.0 9.0a 9.0+PTX"
STABLE_ABI = "0x020a000000000000"  # PyTorch 2.10
LIMITED_API = "0x030A0000"  # Python 3.10


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


def code_generation_flags(architectures: str) -> list[str]:
    flags = []
    for entry in architectures.replace(";", " ").split():
        number = entry.removesuffix("+PTX").replace(".", "")
        kind = "compute" if entry.endswith("+PTX") else "sm"
        flags.append(f"-gencode=arch=compute_{number},code={kind}_{number}")
    return flags


def extension_arguments() -> dict[str, object]:
    skip = os.environ.get("DIGLOT_SKIP_CUDA") == "1"
    toolkit = None if skip else find_toolkit()
    if toolkit is None:
        reason = "DIGLOT_SKIP_CUDA=1" if skip else "no CUDA compiler (nvcc) found"
        message = f"{reason}: diglot is built without its CUDA backend"
        if os.environ.get("DIGLOT_REQUIRE_CUDA") == "1":
            raise SystemExit(f"error: {message}, and DIGLOT_REQUIRE_CUDA=1 forbids that")
        print(f"warning: {message}", file=sys.stderr)
        return {}

    import torch
    from torch.utils import cpp_extension

    class BuildExtension(cpp_extension.BuildExtension):  # type: ignore[misc]
        """Rebuilds what changed: a source, a header, a flag."""

        def finalize_options(self) -> None:
            super().finalize_options()
            self.force = True  # ninja knows better than setuptools what is up to date

        def build_extensions(self) -> None:
            # But the rules that a CPU-only PyTorch writes do not say what a .cu file includes.
            for extension in self.extensions:
                changed = max(Path(header).stat().st_mtime for header in extension.depends)
                for source in extension.sources:
                    made = Path(self.build_temp, source).with_suffix(".o")
                    if source.endswith(".cu") and made.exists() and made.stat().st_mtime < changed:
                        made.unlink()
            super().build_extensions()

    # A CPU-only PyTorch leaves this None even where a toolkit is installed.
    os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = str(toolkit)
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHITECTURES)
    definitions = [
        f"-DTORCH_TARGET_VERSION={STABLE_ABI}",
        f"-DPy_LIMITED_API={LIMITED_API}",
        "-DUSE_CUDA",
        f'-DDIGLOT_ARCHITECTURES="{architectures}"',
        f'-DDIGLOT_BUILT_WITH_TORCH="{torch.__version__}"',
    ]
    sources = sorted([*ROOT.glob("csrc/ops/*.cu"), *ROOT.glob("csrc/torch/*.cpp")])
    headers = sorted(ROOT.glob("csrc/**/*.h")) + sorted(ROOT.glob("csrc/**/*.cuh"))
    libraries = [str(toolkit / name) for name in ("lib64", "lib") if (toolkit / name).is_dir()]
    extension = cpp_extension.CppExtension(
        "diglot._C",
        [str(source.relative_to(ROOT)) for source in sources],
        depends=[str(header.relative_to(ROOT)) for header in headers],
        include_dirs=[str(ROOT / "csrc"), str(ROOT / "csrc/include"), str(toolkit / "include")],
        library_dirs=libraries,
        libraries=["cudart_static", "dl", "rt", "pthread"],
        extra_compile_args={
            "cxx": ["-O3", "-fvisibility=hidden", *definitions],
            "nvcc": [
                "-O3",
                "--expt-relaxed-constexpr",
                "-fmad=false",  # what is to be fused is written as fma, in both languages
                "-Xcompiler=-fvisibility=hidden",
                *code_generation_flags(architectures),
                *definitions,
            ],
        },
        extra_link_args=["-Wl,--no-as-needed", "-ltorch", "-Wl,--exclude-libs,ALL"],
        py_limited_api=True,
    )
    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": BuildExtension},
        "options": {"bdist_wheel": {"py_limited_api": "cp310"}},
    }


setup(**extension_arguments())
