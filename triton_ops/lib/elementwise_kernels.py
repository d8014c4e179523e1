"""An op's two elementwise kernels, made from its function.

A kernel has a parameter for every stride, and Triton has no parameter packs, so this module writes
their source. Their names contain the op's, for profilers. Twin of the kernel templates
`elementwise_flat` and `elementwise_strided` in csrc/include/diglot/elementwise.cuh.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any

import triton
import triton.language as tl

from diglot.triton_ops.launch.layout import MAX_RANK

from .elementwise import map_flat, map_strided

WAIT = "    if WAITS:\n        tl.extra.cuda.gdc_wait()\n"


def elementwise_kernels(
    name: str,
    function: Any,
    inputs: tuple[str, ...],
    *,
    common: tuple[str, ...] = (),
    numbers: int = 0,
    prepare: Any = None,
    indexed: bool = False,
) -> tuple[Any, Any]:
    """The kernels `<name>_flat` and `<name>_strided`, which `elementwise_launch` chooses between.

    Args:
        name: the op's with its direction, such as "gelu_forward".
        function: a @triton.jit function of tiles, as lib/elementwise.py says. Its parameters are
            those of `common`, a tuple of `numbers`; its constants are the kernels' too.
        inputs: names of the input tensors.
        common: names of tensors that every program takes whole. Then the kernels have a constant
            WAITS: whether they wait for the kernel before them in the stream before they read
            anything (programmatic dependent launch).
        numbers: how many 64-bit numbers the kernels take; with 0 the function gets no tuple of
            them.
        prepare: a @triton.jit function of (numbers, OUT). A program calls it once, and the function
            takes its result instead of the numbers.
        indexed: whether the function takes the elements' row-major indices.
    """
    constants = function.arg_names[function.arg_names.index("OUT") + 1 :]
    values = [f"number{i}" for i in range(numbers)]
    packed = _tuple(values)
    if prepare is not None:
        packed = f"{prepare.__name__}({packed}, output.dtype.element_ty)"
    passed = f"{_tuple([*common, packed] if numbers else common)}, {_tuple(constants)}"
    arrays = f"{function.__name__}, {_tuple(inputs)}, output, n"

    sizes = _of_dimensions("size")
    starts = [f"{array}_start" for array in ("out", *inputs, *["index"] * indexed)]
    strides = [_of_dimensions(start.removesuffix("start")) for start in starts]
    layout = [part for pair in zip(starts, strides, strict=True) for part in (pair[0], *pair[1])]

    def define(walk: str, integers: list[str], variant: list[str], where: str) -> Any:
        variant += ["ALIGNED", "BLOCK"]
        parameters = [*common, *inputs, "output", "n", *integers, *values]
        compiled = (*constants, *["WAITS"] * bool(common), *variant)
        parameters += [f"{constant}: tl.constexpr" for constant in compiled]
        call = f"map_{walk}({arrays}, {where}, {passed}, {', '.join(variant)}, {indexed})"
        header = f"def {name}_{walk}({', '.join(parameters)}):"
        body = f"{WAIT * bool(common)}    {call}\n"
        return _define(f"{name}_{walk}", f"@triton.jit\n{header}\n{body}", function, prepare)

    flat = define("flat", ["head"], [], "head")
    where = f"{_tuple(sizes)}, {_tuple(starts)}, {_tuple(map(_tuple, strides))}"
    variant = ["RANK", "WIDE", "VECTOR", "BROADCAST"]
    return flat, define("strided", [*sizes, *layout], variant, where)


def _of_dimensions(name: str) -> list[str]:
    return [f"{name}{d}" for d in range(MAX_RANK)]


def _tuple(parts: Iterable[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _define(name: str, source: str, function: Any, prepare: Any) -> Any:
    """Defines the kernel. Triton and tracebacks read its source again, as lines of a file."""
    file = f"<{function.__module__}.{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    known = {"triton": triton, "tl": tl, "map_flat": map_flat, "map_strided": map_strided}
    known |= {used.__name__: used for used in (function, prepare) if used is not None}
    known["__name__"] = function.__module__
    exec(compile(source, file, "exec"), known)
    return known[name]
