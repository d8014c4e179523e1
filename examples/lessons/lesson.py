"""What the lessons share: CUDA C++ compiled and called, Triton compiled elsewhere, tables, figures.

A lesson's `main` yields tables. `show` prints each as it comes, and `--save FILE` writes them all.
Without a GPU the kernels of both languages are interpreted, and columns of times stay empty.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

COMPILES = "LESSON_COMPILES"  # set in a process that only compiles Triton kernels
TURN = "LESSON_TURN"  # names a file to lock, where run_all.py runs several lessons
TURN_SECONDS = 90
if not torch.cuda.is_available() and COMPILES not in os.environ:
    # Before diglot is imported or a Triton kernel defined: both look once.
    os.environ["DIGLOT_INTERPRET"] = os.environ["TRITON_INTERPRET"] = "1"
INTERPRETED = os.environ.get("DIGLOT_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cpu" if INTERPRETED else "cuda"

import diglot  # noqa: E402
import diglot.interpreter  # noqa: E402

HERE = Path(__file__).resolve().parent
NO_GPU = "There is no GPU here: kernels are interpreted, and none is timed."


# --- tables --------------------------------------------------------------------------------------


Row = dict[str, Any]  # by the column's name; None is an empty cell


@dataclass(frozen=True)
class Table:
    """Figures of a lesson: a title, and rows with the same columns."""

    title: str
    rows: Sequence[Row]


def device_name() -> str:
    """The GPU's name, or "no GPU"."""
    return torch.cuda.get_device_name() if ON_GPU else "no GPU"


def text(table: Table) -> str:
    """The table as lines of text; columns in which no row has anything are left out."""
    from diglot.tools.numbers import number

    def cell(value: Any) -> str:
        if value is None:
            return "–"
        return number(value) if isinstance(value, float) else str(value)

    columns = []
    for name in table.rows[0] if table.rows else ():
        values = [row[name] for row in table.rows if row[name] is not None]
        if values:
            cells = [name, *(cell(row[name]) for row in table.rows)]
            width, is_text = max(map(len, cells)), isinstance(values[0], str)
            columns.append([c.ljust(width) if is_text else c.rjust(width) for c in cells])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([f"{table.title} ({device_name()})", *lines, ""])


def save(path: Path | None, tables: Sequence[Table]) -> None:
    """Writes a lesson's figures as JSON, where there is a path."""
    import triton

    from diglot.files import for_json

    if path is None:
        return
    figures = {
        "lesson": Path(sys.argv[0]).stem,
        "device": device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tables": [asdict(table) for table in tables],
    }
    path.write_text(json.dumps(for_json(figures), indent=1) + "\n")


def options() -> argparse.ArgumentParser:
    """What every lesson takes on its command line."""
    about, *_ = (sys.modules["__main__"].__doc__ or " ").splitlines()
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser


def show(
    main: Callable[..., Iterator[Table]], parser: argparse.ArgumentParser | None = None
) -> None:
    """Runs a lesson as a program. Options beyond `--save` are keyword arguments of its main."""
    from diglot.files import check_writable

    parser = parser or options()
    arguments = vars(parser.parse_args())
    path = arguments.pop("save")
    if path is not None:
        try:
            check_writable(path, force=True)
        except ValueError as error:
            parser.error(f"--save: {error}")
    tables: list[Table] = []
    with turn():
        save(path, tables)
        for table in main(**arguments):
            print(text(table), flush=True)
            tables.append(table)
            save(path, tables)  # tables are kept as they come, however the lesson ends
    if not ON_GPU:
        print(NO_GPU)


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Among several lessons, waits until no other has the GPU. Ends the process after a while."""
    if TURN not in os.environ or not ON_GPU:
        yield
        return
    with Path(os.environ[TURN]).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        faulthandler.dump_traceback_later(TURN_SECONDS, exit=True)
        yield
        faulthandler.cancel_dump_traceback_later()


def add_times(
    rows: Sequence[Row],
    calls: Sequence[Callable[[], object]],
    moved: int | Sequence[int] | None = None,
    budget_ms: float = 60,
) -> None:
    """Adds to each row the median device time of its call, None where kernels are interpreted.

    Args:
        rows: of a table.
        calls: one for each row, timed in turns.
        moved: the bytes that each moves, for a column of rates.
        budget_ms: device time to spend on each, about.
    """
    times: Sequence[float | None] = [None] * len(rows)
    if not INTERPRETED:
        from diglot.tools import measure

        named = {str(i): call for i, call in enumerate(calls)}
        timed = measure.interleaved(named, budget_ms=budget_ms)
        times = [timed[name].median_us for name in named]
    count = moved if isinstance(moved, Sequence) else [moved] * len(rows)
    for row, us, size in zip(rows, times, count, strict=True):
        row["µs"] = us
        if size is not None:
            row["GB/s"] = us and size / us / 1e3


def check_equal(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> None:
    """Raises AssertionError unless two tensors agree."""
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


# --- CUDA C++ ------------------------------------------------------------------------------------


def find_nvcc() -> Path | None:
    """CUDA's compiler: that of CUDA_HOME, on PATH, of pip's packages, or in the usual folder."""
    home, on_path = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    candidates = [Path(home) / "bin/nvcc"] if home else []
    candidates += [Path(on_path)] if on_path else []
    candidates += sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    candidates += [Path("/usr/local/cuda/bin/nvcc")]
    return next((path for path in candidates if path.exists()), None)


def build_folder() -> Path:
    """Where compiled kernels are kept: beside PyTorch's own extensions."""
    from torch.utils import cpp_extension

    folder = Path(cpp_extension.get_default_build_root()) / "diglot_lessons"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def architecture() -> str:
    """What nvcc compiles for: this GPU, or an H200."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability()) if ON_GPU else "sm_90"


@functools.cache
def compile_cuda(name: str, is_program: bool = False) -> Path | None:
    """NAME.cu as a library, or as a program, of machine code; None: there is no nvcc.

    Raises:
        RuntimeError: what nvcc said.
    """
    nvcc, source = find_nvcc(), HERE / f"{name}.cu"
    if nvcc is None:
        return None
    output = build_folder() / f"{name}.{architecture()}{'' if is_program else '.so'}"
    newest = max(path.stat().st_mtime for path in (source, HERE / "lesson.h"))
    if not output.exists() or output.stat().st_mtime < newest:
        command = [str(nvcc), "-O3", "-std=c++17", f"-arch={architecture()}"]
        command += ["-I", diglot.get_include(), "-o", str(output), str(source)]
        command += [] if is_program else ["-shared", "-Xcompiler=-fPIC"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"nvcc fails on {source.name}:\n{done.stderr}")
    return output


@functools.cache
def cuda(name: str) -> ctypes.CDLL:
    """The host functions of NAME.cu, for the GPU or, without one, for the interpreter."""
    if not INTERPRETED:
        library = compile_cuda(name)
        if library is None:
            sys.exit("this lesson's CUDA C++ needs nvcc, and none was found")
        return ctypes.CDLL(str(library))
    library = build_folder() / f"{name}.interpreted.so"
    if not library.exists():
        print(f"compiling {name}.cu: about a minute, the first time", file=sys.stderr, flush=True)
    diglot.interpreter.compile_library([HERE / f"{name}.cu"], library)
    return ctypes.CDLL(str(library))


def call(name: str, function: str, *arguments: torch.Tensor | int | float) -> None:
    """Calls a host function of NAME.cu: tensors as pointers, integers as int, floats as float.

    The current stream is its last argument.

    Raises:
        RuntimeError: what the function threw.
    """

    def convert(value: torch.Tensor | int | float) -> Any:
        if isinstance(value, torch.Tensor):
            return ctypes.c_void_p(value.data_ptr())
        return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)

    called = getattr(cuda(name), function)
    called.restype = ctypes.c_char_p
    stream = None if INTERPRETED else torch.cuda.current_stream().cuda_stream
    error = called(*map(convert, arguments), ctypes.c_void_p(stream))
    if error is not None:
        raise RuntimeError(f"{function}: {error.decode()}")


def cuda_kernels(name: str) -> dict[str, Any]:
    """`KernelResources` of NAME.cu's kernels by name; empty without nvcc."""
    from diglot.tools import machine_code, resources

    library = compile_cuda(name)
    if library is None:
        return {}
    usage = machine_code.read_usage(machine_code.dump("--dump-resource-usage", str(library)))
    sass = machine_code.dump("-sass", str(library))
    return resources.join(usage, sass, architecture())


def cuda_listing(name: str) -> dict[str, str]:
    """The machine code of NAME.cu's kernels by name; empty without nvcc."""
    from diglot.tools import machine_code

    library = compile_cuda(name)
    if library is None:
        return {}
    listing = machine_code.read_listing(machine_code.dump("-sass", str(library)))
    return {machine_code.demangle(symbol): code for symbol, code in listing.items()}


# --- Triton's compiler ---------------------------------------------------------------------------

_ELSEWHERE = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
print(json.dumps(function(*json.loads(sys.argv[4]))))
"""


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a lesson's function returns where Triton compiles: another process, if need be.

    A process in which Triton interprets cannot compile. Arguments and result go through JSON.
    """
    if not INTERPRETED:
        return json.loads(json.dumps(function(*arguments)))
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    file = Path(function.__code__.co_filename)
    asked = [str(file.parent), file.stem, function.__name__, json.dumps(arguments)]
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, *asked],
        env={**environment, COMPILES: "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{file.name}: {function.__name__} fails:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
