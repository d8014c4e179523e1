"""Your own CUDA kernels on CPU tensors: `load` corresponds to `torch.utils.cpp_extension.load`.

`compile_library` needs no binding.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import diglot


def _folder() -> Path:
    include = Path(diglot.get_include())
    for folder in (include / "interpreter", include.parent / "interpreter"):  # or editable
        if (folder / "build.py").exists():
            return folder
    raise RuntimeError("diglot was installed without the sources of its interpreter")


def _import(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def compile_library(sources: Iterable[str | Path], output: str | Path) -> None:
    """Compiles CUDA kernels for the host into a shared library, whose C functions ctypes calls.

    The kernels start by `diglot::launch`, as for `load`. Nothing limits the memory that they may
    touch unless a source makes a `diglot::interpreter::Arguments`.

    Args:
        sources: `.cu` files.
        output: the library. Files that are up to date in the folder `objects` beside it are not
            compiled again.

    Raises:
        RuntimeError: the compiler failed, with its message; or there is no compiler.
    """
    output = Path(output)
    with _locked(output.parent) as folder:
        builder = _import("build", _folder() / "build.py")
        builder.build(output, [Path(source) for source in sources], folder / "objects")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """A folder, made if need be, in which only one process compiles at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def load(
    name: str,
    sources: Iterable[str | Path],
    *,
    extra_cflags: Sequence[str] = (),
    extra_include_paths: Sequence[str | Path] = (),
    build_directory: str | Path | None = None,
) -> ModuleType:
    """Compiles CUDA kernels for the host, with their binding to Python, and imports the result.

    The kernels start with `diglot::launch`, since a host compiler has no `<<<>>>`. They include no
    header of PyTorch. The binding takes CPU tensors. Where `DIGLOT_INTERPRETER` is defined, it
    names the memory that its kernels may touch, with `diglot::interpreter::Arguments`.
    docs/interpreter.md says which errors the interpreter finds, and how to debug a kernel.

    Args:
        name: the module's, as `TORCH_EXTENSION_NAME`.
        sources: `.cu` files, the kernels, and `.cpp` files, their binding.
        extra_cflags: for the compiler, after diglot's own.
        extra_include_paths: folders for the compiler to look for headers in.
        build_directory: where to compile. Files that are up to date there are kept. By
            default the folder `name` in that of PyTorch's extensions (`TORCH_EXTENSIONS_DIR`).

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: a source is neither `.cu` nor `.cpp`.
        RuntimeError: the compiler failed, with its message; or there is no compiler.
    """
    from torch.utils import cpp_extension

    paths = [Path(source).resolve() for source in sources]
    for path in paths:
        if path.suffix not in (".cu", ".cpp"):
            raise ValueError(f"sources must be .cu and .cpp files, and {path.name} is neither")
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}")
    if build_directory is None:
        build_directory = Path(cpp_extension.get_default_build_root()) / f"{name}_interpreted"
    folder = Path(build_directory)
    includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    builder = _import("build", _folder() / "build.py")
    output = folder / f"{name}.so"
    with _locked(folder):
        builder.build(
            output,
            [path for path in paths if path.suffix == ".cu"],
            folder,
            sources=[path for path in paths if path.suffix == ".cpp"],
            flags=[
                "-std=c++20",  # PyTorch's headers
                f"-DTORCH_EXTENSION_NAME={name}",
                *(f"-isystem{path}" for path in includes),
                *(f"-I{Path(path).resolve()}" for path in extra_include_paths),
                *extra_cflags,
            ],
            link_flags=[
                *(f"-L{path}" for path in cpp_extension.library_paths()),
                *("-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"),
            ],
        )
    module = _import(name, output)
    sys.modules[name] = module
    return module
