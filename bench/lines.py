"""Lines of code: how much one has to write for an op in each way.

A line counts if there is code on it: no comment, no docstring, not blank.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from diglot.bench.evidence import find_tree
from diglot.bench.harness import OURS, RANKED, Benchmark, Function
from diglot.tools.op_sources import closure, folder_of, modules

# The text beside their table.
RULE = (
    "Lines that hold code. For a kernel they are its op's file, and the functions that it takes "
    "from another op's file. A function that serves two ops counts for both. The number in "
    "brackets adds all files that ops share, each once. For the formula they are the timed "
    "functions, and the functions that these call. For PyTorch they are the call. torch.compile "
    "takes one line more than its input: the formula or, if marked †, PyTorch's forward op."
)
TRITON = "diglot.triton_ops."

_INCLUDE = re.compile(r'^\s*#include "((?:diglot|torch)/[^"]+)"', re.MULTILINE)


def code_lines(source: str, language: str) -> set[int]:
    """The numbers of a source's lines of code, from 1, as the lexers of Pygments tell them."""
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
    return used


@functools.cache
def python_lines(source: str) -> int:
    """Lines of code of a Python source."""
    return len(code_lines(source, "python"))


@functools.cache
def cxx_lines(source: str) -> int:
    """Lines of code of a C++ source."""
    return len(code_lines(source, "cpp"))


def definition_lines(source: str, names: Iterable[str]) -> int:
    """Lines of code of a Python source's functions, and of those of its own that they use."""
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    found: set[str] = set()
    waiting = [name for name in names if name in functions]
    lines: set[int] = set()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        node = functions[name]
        first = min([node.lineno, *(of.lineno for of in node.decorator_list)])
        lines |= set(range(first, (node.end_lineno or node.lineno) + 1))
        used = {of.id for of in ast.walk(node) if isinstance(of, ast.Name)}
        waiting += used & functions.keys()
    return len(lines & code_lines(source, "python"))


def is_only_called(function: Function) -> bool:
    """Whether a user writes a call of it and no more: PyTorch's ops, lambda expressions."""
    module = getattr(function, "__module__", None) or ""
    return not (
        module.startswith("diglot.")
        and inspect.isfunction(function)
        and function.__qualname__ == function.__name__ != "<lambda>"
    )


def function_lines(functions: Iterable[Function]) -> int:
    """Lines of code of functions with those that they use in their file; 1 of a mere call."""
    lines = 0
    written: dict[str, list[str]] = {}
    for function in functions:
        if is_only_called(function):
            lines += 1
        else:
            written.setdefault(function.__module__, []).append(function.__name__)
    for module, names in written.items():
        lines += definition_lines(inspect.getsource(sys.modules[module]), names)
    return lines


def _included(path: Path, text: str) -> Iterator[Path]:
    """What a source in the tree includes of the device library, the planners and PyTorch's part."""
    folder = next(parent for parent in path.parents if parent.name == "csrc")
    for name in _INCLUDE.findall(text):
        yield from (
            place for place in (folder / "include" / name, folder / name) if place.is_file()
        )


def _reexported(folder: Path, path: Path) -> int:
    """Lines of the definitions of other files that a file of Triton's has in its `__all__`."""
    tree = ast.parse(path.read_text())
    exported: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = set(ast.literal_eval(node.value))
    lines = 0
    for node in tree.body:
        names = {of.name for of in getattr(node, "names", ())} & exported
        if isinstance(node, ast.ImportFrom) and names:
            source = folder / f"{(node.module or '').removeprefix(TRITON)}.py"
            lines += definition_lines(source.read_text(), names)
    return lines


def lines_of(benchmark: Benchmark) -> dict[str, dict[str, int]]:
    """By provider of the ranking: its lines, as `RULE` says.

    "own" are the lines of the op alone. "with_shared" adds those that ops share with each other.
    "calls" says how many functions are only called, where there is no kernel. CUDA's sources are
    not installed, and are counted where the source tree is.
    """
    found: dict[str, dict[str, int]] = {}
    for name in RANKED:
        if name not in benchmark.code or name in OURS:
            continue
        code = benchmark.code[name]
        lines = function_lines(code) + (name == "torch.compile")
        calls = sum(map(is_only_called, code))
        found[name] = {"own": lines, "with_shared": lines, "calls": calls}
    folder = folder_of("triton")
    triton = folder / f"{benchmark.op}.py"
    if triton.is_file():
        found["triton"] = {
            "own": python_lines(triton.read_text()) + _reexported(folder, triton),
            "with_shared": sum(map(python_lines, closure([triton], modules).values())),
        }
    tree = find_tree()
    if tree is not None:
        cuda = tree / f"csrc/ops/{benchmark.op}.cu"
        if cuda.is_file():
            found["cuda"] = {
                "own": cxx_lines(cuda.read_text()),
                "with_shared": sum(map(cxx_lines, closure([cuda], _included).values())),
            }
    return found
