"""Lines of code: how much one has to write for an op in each way.

A line counts if there is code on it: no comment, no docstring, not blank.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable

from diglot.bench.harness import OURS, RANKED, Benchmark, Function
from diglot.tools.op_sources import ops_of, source_of

# The text beside their table.
RULE = (
    "Lines that hold code. For a kernel they are its op's file, and those of ops whose kernels it "
    "launches, without the library that ops share. For the formula they are the timed functions, "
    "and for PyTorch the call. torch.compile takes one line more than its input: the formula or, "
    "if marked †, PyTorch's forward op."
)


def code_lines(source: str, language: str) -> int:
    """A source's lines of code, as the lexers of Pygments tell them."""
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, String

    used: set[int] = set()
    number = 1
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(source):
        is_directive = token in Comment.Preproc or token in Comment.PreprocFile
        is_code = is_directive or (token not in Comment and token not in String.Doc)
        for line in text.split("\n"):
            if is_code and line.strip():
                used.add(number)
            number += 1
        number -= 1
    return len(used)


def is_only_called(function: Function) -> bool:
    """Whether a user writes a call of it and no more: PyTorch's ops, lambda expressions."""
    module = getattr(function, "__module__", None) or ""
    return not (
        module.startswith("diglot.")
        and inspect.isfunction(function)
        and function.__qualname__ == function.__name__ != "<lambda>"
    )


def function_lines(functions: Iterable[Function]) -> int:
    """Lines of code of functions; 1 of a mere call."""
    return sum(
        1 if is_only_called(function) else code_lines(inspect.getsource(function), "python")
        for function in functions
    )


def lines_of(benchmark: Benchmark) -> dict[str, dict[str, int]]:
    """By provider of the ranking: its lines, "own", as `RULE` says.

    "calls" says how many functions are only called, where there is no kernel.
    """
    found: dict[str, dict[str, int]] = {}
    for name in RANKED:
        if name in benchmark.code and name not in OURS:
            code = benchmark.code[name]
            lines = function_lines(code) + (name == "torch.compile")
            found[name] = {"own": lines, "calls": sum(map(is_only_called, code))}
    for language, lexer in (("triton", "python"), ("cuda", "cpp")):
        with contextlib.suppress(FileNotFoundError):
            texts = [source_of(language, op)[1] for op in ops_of(benchmark.op)]
            found[language] = {"own": sum(code_lines(text, lexer) for text in texts)}
    return found
