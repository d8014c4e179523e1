"""Lines of code: how much one has to write for an op in each way.

A line counts if there is code on it: no comment, no docstring, not blank.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from diglot.bench.evidence import find_tree
from diglot.bench.harness import OURS, RANKED, Benchmark, Function

# What is beside the table of them.
RULE = (
    "Lines that hold code. For a kernel they are its op's file, and the functions that it takes "
    "from another op's file. A function that serves two ops counts for both. The number in "
    "brackets adds all files that ops share, each once. For the formula they are the timed "
    "functions, and the functions that these call. For PyTorch they are the call. torch.compile "
    "takes one line more than its input: the formula or, if marked †, PyTorch's forward op."
)
TRITON = "diglot.triton_ops."

# Strings first, so that what looks like a comment in one is none.
_CXX = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_INCLUDE = re.compile(r'^\s*#include "((?:diglot|torch)/[^"]+)"', re.MULTILINE)
_IMPORT = re.compile(r"^\s*from (diglot\.triton_ops)?\.([\w.]+) import", re.MULTILINE)
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _used_lines(source: str) -> set[int]:
    """The numbers of a Python source's lines of code."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*_LAYOUT, tokenize.ENDMARKER):
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    used -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return used


def python_lines(source: str) -> int:
    """Lines of code of a Python source."""
    return len(_used_lines(source))


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
    return len(lines & _used_lines(source))


def cxx_lines(source: str) -> int:
    """Lines of code of a C++ source."""

    def without_comment(match: re.Match[str]) -> str:
        text = match.group()
        return text if text[0] in "\"'" else "\n" * text.count("\n")

    return sum(bool(line.strip()) for line in _CXX.sub(without_comment, source).splitlines())


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


def _reached(start: Path, neighbours: Callable[[Path], Iterator[Path]]) -> list[Path]:
    """A file and what it includes or imports, and so on."""
    found, waiting = [start], [start]
    while waiting:
        for path in neighbours(waiting.pop()):
            if path not in found:
                found.append(path)
                waiting.append(path)
    return found


def _included(folder: Path) -> Callable[[Path], Iterator[Path]]:
    def of(path: Path) -> Iterator[Path]:
        for name in _INCLUDE.findall(path.read_text()):
            places = (folder / "include" / name, folder / name)
            yield from (place for place in places if place.is_file())

    return of


def _imported(folder: Path) -> Callable[[Path], Iterator[Path]]:
    def of(path: Path) -> Iterator[Path]:
        for package, name in _IMPORT.findall(path.read_text()):
            place = (folder if package else path.parent) / f"{name.replace('.', '/')}.py"
            if place.is_file():
                yield place

    return of


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

    "own" are the lines of the op alone, "with_shared" those with what ops share with each other;
    "calls", of what is not a kernel, says how many of its functions are only called. CUDA's sources
    are not installed, and are counted where the source tree is.
    """
    found: dict[str, dict[str, int]] = {}
    for name in RANKED:
        if name not in benchmark.code or name in OURS:
            continue
        code = benchmark.code[name]
        lines = function_lines(code) + (name == "torch.compile")
        calls = sum(map(is_only_called, code))
        found[name] = {"own": lines, "with_shared": lines, "calls": calls}
    package = importlib.util.find_spec("diglot.triton_ops")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0])
    triton = folder / f"{benchmark.op}.py"
    if triton.is_file():
        found["triton"] = {
            "own": python_lines(triton.read_text()) + _reexported(folder, triton),
            "with_shared": _lines(_reached(triton, _imported(folder)), python_lines),
        }
    tree = find_tree()
    if tree is not None:
        cuda = tree / f"csrc/ops/{benchmark.op}.cu"
        if cuda.is_file():
            found["cuda"] = {
                "own": cxx_lines(cuda.read_text()),
                "with_shared": _lines(_reached(cuda, _included(tree / "csrc")), cxx_lines),
            }
    return found


def _lines(paths: Iterable[Path], count: Callable[[str], int]) -> int:
    return sum(count(path.read_text()) for path in paths)
