"""The tools' data: tensors from files, or random ones.

Every failure is a ValueError that names the argument and the values that it may have.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from diglot.names import suggestion, unknown_name
from diglot.reference.specs import OpSpec

TOO_MANY_ELEMENTS = 2**60  # their bytes, 8 for each, would overflow

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
    "fp64": torch.float64,
    "double": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}


@dataclass(frozen=True)
class TensorFile:
    """What a file holds.

    Attributes:
        tensors: by name; the one of a file that names none has the name "".
        metadata: of a safetensors file; `diglot.<op>` names an op's default tensors.
    """

    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name such as "bf16" or "float32"."""
    if name not in DTYPES:
        raise unknown_name("--dtype", name, DTYPES)
    return DTYPES[name]


def parse_shape(text: str) -> tuple[int, ...]:
    """The sizes in a text such as "8192x8192"."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise ValueError(f"--shape must be sizes joined by x, such as 8192x8192, not {text!r}")
    sizes = text.split("x")
    # Long ones are not even converted: Python refuses thousands of digits in words of its own.
    if max(map(len, sizes)) > 19 or math.prod(max(int(s), 1) for s in sizes) >= TOO_MANY_ELEMENTS:
        raise ValueError(f"--shape must have fewer than 2^60 elements, unlike {text}")
    return tuple(int(size) for size in sizes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: PyTorch has no type for the CPU's."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator: " in str(error)


def tell_out_of_memory(error: BaseException) -> str:
    """One line about it."""
    return f"out of memory: {' '.join(str(error).split()).rpartition('DefaultCPUAllocator: ')[2]}"


@contextmanager
def _memory_for(argument: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"{argument}: {tell_out_of_memory(error)}") from error


def _read_npy(path: Path) -> TensorFile:
    import numpy as np

    array = np.load(path, allow_pickle=False)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return TensorFile({"": torch.from_numpy(array)})


def _read_safetensors(path: Path) -> TensorFile:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return TensorFile(tensors, file.metadata() or {})


def _read_pt(path: Path) -> TensorFile:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    named = loaded if isinstance(loaded, dict) else {"": loaded}
    tensors = {str(k): v.detach() for k, v in named.items() if isinstance(v, torch.Tensor)}
    return TensorFile(tensors)


READERS = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
    ".pth": _read_pt,
}


def read_file(path: Path) -> TensorFile:
    """Reads a file of tensors, by its suffix. A pickle is refused, since it could run code."""
    try:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "is not there"
            raise ValueError(f"--input: {path} {problem}")
    except OSError as error:
        raise ValueError(f"--input: {path} cannot be read: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ValueError(f"--input: {path} must end in one of {', '.join(READERS)}")
    try:
        with warnings.catch_warnings():  # about files that are refused
            warnings.simplefilter("ignore")
            return READERS[suffix](path)
    except ImportError as error:
        why = f'{suffix} files need {error.name}: pip install "diglot[tools]"'
        raise ValueError(f"--input: {why}") from error
    except OSError as error:
        raise ValueError(f"--input: {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # what a broken file has a package raise can be anything
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"--input: {path} has no tensors that can be read without a pickle: {reason}"
        ) from error


def pick(spec: OpSpec, file: TensorFile, names: Sequence[str], source: str) -> list[str]:
    """Names of the tensors that an op is to take from a file.

    Those given; else those that the file's metadata says; else the first ones.
    """
    needed, known = len(spec.inputs), list(file.tensors)
    listed = ", ".join(known) if known != [""] else "one without a name"
    if names:
        chosen = list(names)
        if len(chosen) != needed:
            raise ValueError(
                f"--tensor must be given {needed} time{'s'[: needed > 1]} for {spec.name} "
                f"({', '.join(spec.inputs)}), not {len(chosen)}"
            )
    elif f"diglot.{spec.name}" in file.metadata:
        chosen = file.metadata[f"diglot.{spec.name}"].split(",")
    else:
        chosen = known[:needed]
    for name in chosen:
        if name not in file.tensors:
            end = suggestion(name, known)
            raise ValueError(f"--tensor: {source} has no tensor {name!r}; it has {listed}{end}")
    if len(chosen) != needed:
        raise ValueError(
            f"--input: {spec.name} takes {needed} tensors ({', '.join(spec.inputs)}), and {source} "
            f"has {len(chosen)}{': ' if listed else ''}{listed}"
        )
    return chosen


def load(
    spec: OpSpec,
    path: str | Path | None = None,
    *,
    tensors: Sequence[str] = (),
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> list[torch.Tensor]:
    """An op's inputs, from a file or random and normal.

    Args:
        path: a .npy, .safetensors or .pt file.
        tensors: names of the tensors to take from it, one per input.
        shape: instead of a file, draw data of this shape, with `seed`.
        dtype: dtype to convert to; by default the file's, or float32.
    """
    if (path is None) == (shape is None):
        raise ValueError(
            "exactly one of --input FILE and --shape SIZES must be given, such as --shape 64x1024"
        )
    if dtype is not None and spec.floating_only and not dtype.is_floating_point:
        raise ValueError(f"--dtype must be floating-point for {spec.name}, not {dtype}")
    if shape is not None:
        if tensors:
            raise ValueError("--tensor names tensors of --input, and --shape draws random ones")
        with _memory_for("--shape"):
            shapes = spec.shapes(shape) if spec.shapes else [shape] * len(spec.inputs)
            return _random(shapes, dtype or torch.float32, device, seed)
    assert path is not None
    path = Path(path)
    with _memory_for("--input"):
        file = read_file(path)
        loaded = []
        for name in pick(spec, file, tensors, str(path)):
            tensor = file.tensors[name]
            which = f"tensor {name!r} of {path}" if name else str(path)
            _check(spec, tensor, which, dtype)
            loaded.append(tensor.to(device=device, dtype=dtype or tensor.dtype))
    return loaded


def _check(spec: OpSpec, tensor: torch.Tensor, which: str, dtype: torch.dtype | None) -> None:
    """Refuses a tensor of a file that is no input of an op, nor can be made one by `dtype`."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "without data" if tensor.is_meta else f"{tensor.layout}, {tensor.dtype}"
        raise ValueError(f"--input: ops take dense tensors of plain numbers, and {which} is {kind}")
    if tensor.is_complex():
        raise ValueError(
            f"--input: ops take real numbers, and {which} has dtype {tensor.dtype}; save its real "
            "and its imaginary part as tensors of their own (--dtype would drop the latter)"
        )
    if dtype is None and spec.floating_only and not tensor.is_floating_point():
        raise ValueError(
            f"--input: {spec.name} takes floating-point data, and {which} has dtype "
            f"{tensor.dtype}; --dtype float32 would convert it"
        )


def _random(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device | str, seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    drawn = []
    for shape in shapes:
        if dtype.is_floating_point:
            tensor = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        else:
            high = 2 if dtype == torch.bool else 100
            tensor = torch.randint(0, high, shape, generator=generator, device=device).to(dtype)
        drawn.append(tensor)
    return drawn
