"""Lines of code: how much is written for an op in each way.

A line counts if there is code on it: no comment, no docstring, not blank.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from diglot.bench.evidence import find_tree
from diglot.bench.harness import RANKED, Benchmark

# Strings first, so that what looks like a comment in one is none.
_CXX = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_INCLUDE = re.compile(r'^\s*#include "((?:diglot|torch)/[^"]+)"', re.MULTILINE)
_IMPORT = re.compile(r"^\s*from (diglot\.triton_ops)?\.([\w.]+) import", re.MULTILINE)
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def python_lines(source: str) -> int:
    """Lines of code of a Python source."""
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
    return len(used)


def cxx_lines(source: str) -> int:
    """Lines of code of a C++ source."""

    def without_comment(match: re.Match[str]) -> str:
        text = match.group()
        return text if text[0] in "\"'" else "\n" * text.count("\n")

    return sum(bool(line.strip()) for line in _CXX.sub(without_comment, source).splitlines())


def function_lines(function: Callable[..., Any]) -> int:
    """Lines of code of a function; 1 of one that a user only calls, and of a lambda expression."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or ""
    if not module.startswith("diglot.") or not inspect.isfunction(function):
        return 1
    if function.__name__ == "<lambda>":
        return 1
    return python_lines(textwrap.dedent(inspect.getsource(function)))


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


def _own_and_all(paths: Iterable[Path], count: Callable[[str], int]) -> dict[str, int]:
    lines = [count(path.read_text()) for path in paths]
    return {"own": lines[0], "with_shared": sum(lines)}


def lines_of(benchmark: Benchmark) -> dict[str, dict[str, int]]:
    """By provider of the ranking: its lines, and those with all that ops share with each other.

    A function that is compiled costs a line more. CUDA's sources are not installed, and are counted
    where the source tree is.
    """
    found: dict[str, dict[str, int]] = {}
    for name in RANKED:
        if name not in benchmark.code or name in ("cuda", "triton"):
            continue
        lines = sum(map(function_lines, benchmark.code[name])) + (name == "torch.compile")
        found[name] = {"own": lines, "with_shared": lines}
    package = importlib.util.find_spec("diglot.triton_ops")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0])
    triton = folder / f"{benchmark.op}.py"
    if triton.is_file():
        found["triton"] = _own_and_all(_reached(triton, _imported(folder)), python_lines)
    tree = find_tree()
    if tree is not None:
        cuda = tree / f"csrc/ops/{benchmark.op}.cu"
        if cuda.is_file():
            found["cuda"] = _own_and_all(_reached(cuda, _included(tree / "csrc")), cxx_lines)
    return found
