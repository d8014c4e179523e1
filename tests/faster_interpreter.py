"""Triton's interpreter in less time: it skips work that it repeats or does element by element.

Results are the same with one exception. Where `tl.reduce` has a function of its own, it combines
halves, as a GPU's threads do, instead of one element after the other.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def patch_once() -> None:
    """Has the interpreter replace Triton's functions once. They stay replaced.

    Otherwise it looks for them in the whole language at each launch, and at each call of a
    function, which takes much of the time of both.
    """
    replace, scope = interpreter._patch_lang, interpreter._LangPatchScope

    @functools.cache
    def languages(function: Any) -> list[Any]:
        return [m for m in function.__globals__.values() if m is tl or m is tl.core]

    def replace_once(function: Any) -> Any:
        # A language is replaced as a whole, and then functions such as `load` are no builtins.
        if any(tl.core.is_builtin(language.load) for language in languages(function)):
            replace(function)
        return scope()  # nothing to restore

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


def remember_shapes() -> None:
    """A tensor's type, and its shape as a tuple of constants, are made with every operation."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__

    def type_like_others(self: Any, element: Any, shape: Any) -> None:
        if isinstance(element, tl.pointer_type):  # pointers have no hash
            make_type(self, element, shape)
            return
        key = (element.name, *getattr(shape, "values", shape))
        if key not in known:
            make_type(self, element, shape)
            known[key] = self.__dict__
        self.__dict__ = known[key]  # nothing writes to a type

    def tensor_like_others(self: Any, handle: Any, type: Any) -> None:
        try:
            self.shape, self.numel = type.__dict__["of_tensors"]
        except KeyError:
            make_tensor(self, handle, type)
            type.__dict__["of_tensors"] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar

    tl.block_type.__init__, tl.tensor.__init__ = type_like_others, tensor_like_others


def unwrap_at_once() -> None:
    """A value that is no constant is asked four times for its kind."""
    unwrap = tl.core._unwrap_if_constexpr
    nested = (list, tuple, tl.tuple)

    def unwrapped(of: Any) -> Any:
        if isinstance(of, tl.constexpr):
            return of.value
        return unwrap(of) if isinstance(of, nested) else of

    tl.core._unwrap_if_constexpr = unwrapped


def broadcast_what_differs() -> None:
    """Shapes are compared one size after another, and most are equal."""
    semantic = type(interpreter.interpreter_semantic)
    broadcast = semantic.broadcast_impl_value

    def broadcast_others(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        shapes = [of.type.is_block() and of.type.shape.values for of in (left, right)]
        return (left, right) if shapes[0] == shapes[1] else broadcast(self, left, right)

    semantic.broadcast_impl_value = broadcast_others


def call_at_once() -> None:
    """Each call of a builtin goes through two functions, which look for the semantic and set it."""

    def wrapper_code(of: Any) -> Any:
        return getattr(of, "__code__", None)

    wrapped = wrapper_code(tl.core.builtin(lambda: None))

    def patch(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        inner = member.__wrapped__ if wrapper_code(member) is wrapped else member

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = interpreter.interpreter_semantic
            return inner(*arguments, **named)

        scope.set_attr(obj, name, call)

    interpreter._patch_attr = patch


def check_types_that_differ() -> None:
    """Of two operands of one type nothing is converted, nor is a tensor beside a small number."""
    semantic = type(interpreter.interpreter_semantic)
    check, equal = semantic.binary_op_type_checking_impl, tl.dtype.__eq__
    integers, floats = {"int32", "int64"}, {"fp32", "fp64"}
    plain = integers | floats

    def is_kept(number: Any, name: str) -> bool:
        if type(number) is int:
            return name in floats or (name in integers and -(2**31) <= number < 2**31)
        return type(number) is float and name in floats

    def check_others(self: Any, lhs: Any, rhs: Any, *flags: Any, **named: Any) -> tuple[Any, Any]:
        if type(lhs) is tl.tensor:
            name = lhs.dtype.name
            if type(rhs) is tl.tensor:
                if name == rhs.dtype.name and name in plain:
                    return self.broadcast_impl_value(lhs, rhs)
            elif is_kept(rhs, name):
                return self.broadcast_impl_value(lhs, self.scalar_constant(rhs, dtype=lhs.dtype))
        elif type(rhs) is tl.tensor and is_kept(lhs, rhs.dtype.name):
            return self.broadcast_impl_value(self.scalar_constant(lhs, dtype=rhs.dtype), rhs)
        return check(self, lhs, rhs, *flags, **named)

    semantic.binary_op_type_checking_impl = check_others
    tl.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


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
    remember_shapes()
    unwrap_at_once()
    broadcast_what_differs()
    call_at_once()
    check_types_that_differ()
    combine_halves()
