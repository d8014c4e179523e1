"""The files on which the times of an op depend: its kernels and planners in a language, and every
file that these include or import.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import diglot

# Comments of C++; what stands in quotes comes first, since it may hold "//".
_QUOTED = r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')"""
_COMMENT = re.compile(_QUOTED + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^#include "(diglot/[^"]+)"', re.MULTILINE)
_PACKAGE = "diglot.triton_ops."
# By language: the folder of ops in the package, that in the tree, and how a file's name ends.
_PLACES = {
    "cuda": ("cuda_ops", "csrc/ops", ".cu"),
    "triton": ("triton_ops", "triton_ops", ".py"),
}


def folder_of(language: str) -> Path:
    """Where the files of ops lie in a language: installed, or else in the tree."""
    here = Path(diglot.__file__).parent
    installed, in_tree, _ = _PLACES[language]
    return here / installed if (here / installed).is_dir() else here.parents[1] / in_tree


def source_of(language: str, op: str) -> tuple[str, str]:
    """An op's file in a language, as the tree names it, and what it says."""
    _, in_tree, ending = _PLACES[language]
    return f"{in_tree}/{op}{ending}", (folder_of(language) / f"{op}{ending}").read_text("utf-8")


@functools.cache
def sources_hash(language: str, op: str) -> str:
    """A hash of these files' code, wherever they are installed. Comments do not count.

    Raises:
        FileNotFoundError: there is no such op in the language.
    """
    code = {"cuda": code_of_cuda, "triton": code_of_python}[language]
    total = hashlib.sha256()
    for text in sorted(map(code, files_of(language, op).values())):
        total.update(text.encode() + b"\0")
    return total.hexdigest()[:12]


def hashes_of(op: str) -> dict[str, str]:
    """`sources_hash` by language; {} for a name that is no op's."""
    try:
        return {language: sources_hash(language, op) for language in _PLACES}
    except FileNotFoundError:
        return {}


@functools.cache  # ops share most of their files
def code_of_cuda(text: str) -> str:
    """A file of CUDA C++ without comments and empty lines."""
    return _filled(_COMMENT.sub(lambda found: found[1] or " ", text).splitlines())


@functools.cache
def code_of_python(text: str) -> str:
    """A file of Python without comments, docstrings and empty lines."""
    lines = text.splitlines()
    before = tokenize.NEWLINE
    starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (first, begin), (last, end) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[first - 1] = lines[first - 1][:begin]
        elif token.type == tokenize.STRING and before in starts:
            lines[last - 1] = lines[last - 1][end:]
            lines[first - 1 : last - 1] = [""] * (last - first)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return _filled(lines)


def _filled(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines if line.strip())


def files_of(language: str, op: str) -> dict[Path, str]:
    """These files, and what they say."""
    if language == "triton":
        return closure([folder_of("triton") / f"{op}.py"], modules)
    # Ops that launch each other's kernels do so in both languages, and only Triton's import them.
    folder, ops = folder_of("cuda"), ops_of(op)
    files = [folder / f"{other}.cu" for other in ops]
    # Kernels for one architecture lie in its folder: those of an op under its name, and others that
    # serve all of these.
    for own in sorted(folder.glob("sm_*")):
        kernels = [own / path.name for path in files if (own / path.name).is_file()]
        shared = [path for path in own.glob("*.cu") if not (folder / path.name).is_file()]
        files += kernels + (shared if kernels else [])
    return closure(files, _headers)


def ops_of(op: str) -> list[str]:
    """The op, and others whose kernels it launches."""
    files = closure([folder_of("triton") / f"{op}.py"], modules)
    return sorted(path.stem for path in files if path.parent == folder_of("triton"))


def families_of(op: str) -> set[str]:
    """The families of tunables that its planners read, in both languages."""
    found: set[str] = set()
    for text in files_of("triton", op).values():
        found.update(re.findall(r'"(\w+)\.(?:triton|both)\.', text))
    return found


def closure(first: list[Path], used: Callable[[Path, str], Iterator[Path]]) -> dict[Path, str]:
    """Files, and all that they use."""
    texts: dict[Path, str] = {}
    pending = list(first)
    while pending:
        path = pending.pop()
        if path not in texts:
            texts[path] = path.read_text(encoding="utf-8")
            pending += used(path, texts[path])
    return texts


def _headers(_: Path, text: str) -> Iterator[Path]:
    """The headers that a file includes from the device library and the planners."""
    for name in _INCLUDE.findall(text):
        yield Path(diglot.get_include()) / name


@functools.cache
def _imports_from(text: str) -> list[ast.ImportFrom]:
    """The statements of a file that import names from modules."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]


def modules(path: Path, text: str) -> Iterator[Path]:
    """The modules of `triton_ops` that one imports, and those that it imports names from."""
    for node in _imports_from(text):
        module = node.module or ""
        if node.level:
            place = path.parents[node.level - 1]
        elif f"{module}.".startswith(_PACKAGE):
            place, module = (
                folder_of("triton"),
                module.removeprefix(_PACKAGE.rstrip(".")).lstrip("."),
            )
        else:
            continue
        place = place.joinpath(*filter(None, module.split(".")))
        for candidate in (place, *(place / alias.name for alias in node.names)):
            if candidate.with_suffix(".py").is_file():
                yield candidate.with_suffix(".py")
