"""Triton's interpreter in less time: what it does again and again, in vain, or element by element.

Results are the same but for one thing: what `tl.reduce` combines with a function of its own it
combines in another order, of halves, as a GPU's threads do too, instead of one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def patch_once() -> None:
    """At each call of a function it looks through its whole language for what it is to replace,
    most of the time that it takes: here only if that is not replaced yet.
    """
    replace, scope = interpreter._patch_lang, interpreter._LangPatchScope

    @functools.cache
    def languages(function: Any) -> list[Any]:
        return [m for m in function.__globals__.values() if m is tl or m is tl.core]

    def replace_once(function: Any) -> Any:
        # What is replaced in a language is replaced as a whole, and such as `load` are no builtins.
        if all(not tl.core.is_builtin(language.load) for language in languages(function)):
            return scope()
        return replace(function)

    interpreter._patch_lang = replace_once


def remember_types() -> None:
    """NumPy's type for one of Triton's it finds in a dictionary that it makes each time."""
    find = interpreter._get_np_dtype
    find_once = functools.cache(find)

    def remembered(of: Any) -> np.dtype:
        element = of.scalar
        return find(element) if element.is_ptr() else find_once(element)  # pointers have no hash

    interpreter._get_np_dtype = remembered


def check_no_overflow_in_vain() -> None:
    """Whether integers overflow it computes with each of their sums, and tells only to debug."""
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(
        options, sanitize_overflow=options.debug
    )


def combine_halves() -> None:
    """Where `tl.reduce` has a function of its own, it calls that once for every element."""

    def reduce(self: Any, inputs: Any) -> list[Any]:
        whole = self.axis is None
        tensors, axis = self.unravel(inputs, self.axis)
        dtypes = [tensor.dtype for tensor in tensors]
        arrays = [np.moveaxis(tensor.handle.data, axis, 0) for tensor in tensors]
        while len(arrays[0]) > 1:
            half = len(arrays[0]) // 2  # Triton's shapes are powers of two
            pairs = [
                self.to_tensor(array[part], dtype)
                for part in (slice(None, half), slice(half, None))
                for array, dtype in zip(arrays, dtypes, strict=True)
            ]
            combined = self.combine_fn.fn(*pairs)
            combined = combined if isinstance(combined, tuple) else (combined,)
            arrays = [tensor.handle.data for tensor in combined]
        if self.keep_dims:
            shape = [1] * inputs[0].handle.data.ndim if whole else None
            found = [a.reshape(shape) if whole else np.moveaxis(a, 0, axis) for a in arrays]
        else:
            found = [array[0] for array in arrays]
        return [self.to_tensor(array, dtype) for array, dtype in zip(found, dtypes, strict=True)]

    interpreter.ReduceOps.generic_reduce = reduce


def make_faster() -> None:
    """Does all of that, for this process."""
    patch_once()
    remember_types()
    check_no_overflow_in_vain()
    combine_halves()
