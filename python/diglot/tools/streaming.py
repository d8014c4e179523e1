"""`diglot stream`: an op over arrays in files, chunk by chunk.

Every failure that a user can cause is a ValueError that names the argument and what is allowed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diglot.files import check_writable, writing
from diglot.names import suggestion
from diglot.pipeline.arguments import numpy_dtype
from diglot.tools.inputs import from_numpy, load_npy, open_file, open_safetensors

UNITS = {"": 1, "b": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
# What safetensors calls types that NumPy has. bfloat16, which it has not, is mapped as int16.
SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<i2",
    "BOOL": "?",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}


@dataclass(frozen=True)
class Streamed:
    """An op of which a row of the results, along dimension 0, depends on that row alone.

    Attributes:
        defaults: from the shape of the first input, keyword arguments that are always given.
        refusal: from that shape and the options, why it cannot be cut into rows; None if it can.
    """

    inputs: tuple[str, ...] = ("input",)
    options: tuple[str, ...] = ()
    defaults: Callable[[tuple[int, ...]], dict[str, Any]] = lambda shape: {}
    refusal: Callable[[tuple[int, ...], dict[str, Any]], str | None] = lambda shape, options: None


def _across_rows(shape: tuple[int, ...], options: dict[str, Any]) -> str | None:
    dim = options.get("dim", -1)
    if isinstance(dim, int) and dim in (0, -len(shape)):
        return f"--dim {dim} is the dimension that is cut into chunks, and must be another one"
    return None


def _needs_columns(shape: tuple[int, ...], options: dict[str, Any]) -> str | None:
    return "its input must have two dimensions or more" if len(shape) < 2 else None


def _last(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"normalized_shape": shape[-1:]}


_SOFTMAX = Streamed(options=("dim",), refusal=_across_rows)
_NORM = Streamed(options=("eps",), defaults=_last, refusal=_needs_columns)
OPS = {
    "add": Streamed(("input", "other"), ("alpha",)),
    "gaussian_pdf": Streamed(options=("mean", "std", "terms")),
    "gelu": Streamed(options=("approximate",)),
    "layer_norm": _NORM,
    "log_softmax": _SOFTMAX,
    "rms_norm": _NORM,
    "softmax": _SOFTMAX,
}


def find(op: str) -> Streamed:
    """What is known of an op."""
    if op in OPS:
        return OPS[op]
    import diglot

    known = ", ".join(OPS)
    why = f"not {op!r}{suggestion(op, OPS)}"
    if op in diglot.__all__:
        why = f"and {op} is none: a row of its results does not depend on that row alone"
    raise ValueError(f"op must be one whose rows can be computed in chunks: {known}; {why}")


def call(op: str, shape: tuple[int, ...], options: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """The op with its options, as a function of chunks (and of `backend`).

    Args:
        shape: of the first input.
    """
    import diglot

    of = find(op)
    for name in options:
        if name not in of.options:
            raise ValueError(
                f"{op} has no option {name!r}; its options: {', '.join(of.options) or 'none'}"
                f"{suggestion(name, of.options)}"
            )
    if not shape:
        raise ValueError("--input: an array of no dimensions has no rows")
    refusal = of.refusal(shape, options)
    if refusal is not None:
        raise ValueError(f"{op}: {refusal}")
    given = {**of.defaults(shape), **options}
    # A partial without arguments would hide which op it is for nothing.
    return functools.partial(getattr(diglot, op), **given) if given else getattr(diglot, op)


def parse_bytes(text: str) -> int:
    """The bytes that a text such as "16MiB", "64k" or "1.5GB" means; a bare letter is binary."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"--chunk-bytes must be a size such as 16MiB or 1.5GB, not {text!r}")
    size = int(float(found[1]) * UNITS[found[2]])
    if size < 1:
        raise ValueError(f"--chunk-bytes must be at least one byte, unlike {text}")
    return size


def parse_devices(text: str) -> list[torch.device]:
    """The GPUs that a text such as "0,1" means."""
    if re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text) is None:
        raise ValueError(f"--devices must be numbers of GPUs joined by commas, not {text!r}")
    numbers = [int(number) for number in text.split(",")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in numbers:
        if number >= count:
            raise ValueError(f"--devices: there is no GPU {number} here: PyTorch finds {count}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--devices names a GPU twice: {text}")
    return [torch.device("cuda", number) for number in numbers]


def open_inputs(
    names: tuple[str, ...], paths: Sequence[str], tensors: Sequence[str]
) -> list[torch.Tensor]:
    """Maps the arrays of an op's inputs.

    Args:
        paths: a .npy or .safetensors file for each, or one .safetensors file for all.
        tensors: of .safetensors files, names of the tensors.

    Returns:
        Tensors on maps of the files, which are not to be written to.
    """
    if len(paths) == 1 and len(names) > 1 and Path(paths[0]).suffix.lower() == ".safetensors":
        paths = list(paths) * len(names)
    if len(paths) != len(names):
        raise ValueError(
            f"--input must be given {len(names)} time{'s' * (len(names) > 1)} "
            f"({', '.join(names)}), not {len(paths)}"
        )
    left = list(tensors)
    readers: dict[str, Callable[[Path], torch.Tensor]] = {
        ".npy": lambda path: _as_tensor(load_npy(path, "r"), path),
        ".safetensors": lambda path: _map_safetensors(path, left.pop(0) if left else None),
    }
    opened = [open_file(Path(path), readers) for path in paths]
    if left:
        raise ValueError(f"--tensor: no .safetensors file is left for {left[0]!r}")
    lengths = {len(tensor) if tensor.dim() else None for tensor in opened}
    if len(lengths) > 1:
        shapes = " and ".join(str(list(tensor.shape)) for tensor in opened)
        raise ValueError(f"--input: the inputs must have as many rows, and have shapes {shapes}")
    return opened


def _as_tensor(array: np.ndarray, path: Path) -> torch.Tensor:
    with warnings.catch_warnings():  # that it must not be written to, which it is not
        warnings.simplefilter("ignore")
        return from_numpy(array, path)


def _map_safetensors(path: Path, name: str | None) -> torch.Tensor:
    """A tensor of a .safetensors file: eight bytes of the header's length, a header in JSON with
    the places of tensors, and their bytes.

    The package checks the file. It cannot map one that is larger than memory: its maps of tensors
    may be written to, and so take memory.
    """
    with open_safetensors(path, "numpy"), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    known = ", ".join(header)
    if name is None:
        if len(header) != 1:
            raise ValueError(f"--tensor must name a tensor of {path}, which has {known or 'none'}")
        name = next(iter(header))
    if name not in header:
        raise ValueError(f"--tensor: {path} has no tensor {name!r}; it has {known}")
    kind, shape = header[name]["dtype"], tuple(header[name]["shape"])
    begin, end = header[name]["data_offsets"]
    if kind not in SAFETENSORS_TYPES:
        raise ValueError(f"--input: tensor {name!r} of {path} has dtype {kind}, which no op takes")
    try:
        if begin == end:  # no map is empty
            array = np.empty(shape, SAFETENSORS_TYPES[kind])
        else:
            array = np.memmap(path, SAFETENSORS_TYPES[kind], "r", 8 + size + begin, shape)
    except ValueError as error:
        raise ValueError(
            f"--input: {path} has a tensor {name!r} that cannot be mapped: {error}"
        ) from error
    tensor = _as_tensor(array, path)
    return tensor.view(torch.bfloat16) if kind == "BF16" else tensor


def result_like(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and NumPy's dtype of an op's result, found by a call on one row."""
    rows = len(inputs[0])
    row = [torch.zeros((1, *i.shape[1:]), dtype=i.dtype) for i in inputs]
    result = function(*row, backend="torch")
    if len(result) != 1:
        raise ValueError(f"its result has {len(result)} rows for one")
    dtype = numpy_dtype(result.dtype)
    if dtype is None:
        raise ValueError(
            f"--output: a .npy file cannot hold {str(result.dtype).removeprefix('torch.')}, which "
            "the result has as its input has"
        )
    return (rows, *result.shape[1:]), dtype


@contextmanager
def npy_file(
    path: str | Path, shape: tuple[int, ...], dtype: np.dtype, force: bool
) -> Iterator[torch.Tensor]:
    """Context manager: a map of a new .npy file, which is there under its name only when it ends
    without an error; until then it lies beside that under another one.
    """
    path = Path(path)
    check_writable(path, force)
    folder = path.absolute().parent
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        status = os.statvfs(folder)
        room = status.f_bavail * status.f_frsize
    if needed > room:
        raise ValueError(
            f"--output: {path} would have {needed:,} bytes, and {folder} has room for {room:,}"
        )
    try:
        with writing(path):
            if needed:
                array: Any = np.lib.format.open_memmap(part, "w+", dtype, shape)
            else:  # no map is empty
                with part.open("wb") as file:
                    np.save(file, np.empty(shape, dtype))
                array = np.empty(shape, dtype)
        yield torch.from_numpy(array)
        del array
        with writing(path):
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
