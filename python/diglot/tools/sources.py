"""The sources of kernels, in both languages: what a kernel is written as, and what it uses."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import diglot

_LIBRARY = "diglot.triton_ops.lib"


@dataclass(frozen=True)
class Source:
    """A kernel's source.

    Attributes:
        file: the name of its file, such as "csrc/ops/gelu.cu".
        text: its definition, behind those in the same file that it uses.
        library: by file of the device library, the names of what it uses from there.
    """

    file: str
    text: str
    library: dict[str, tuple[str, ...]]


# What a paragraph of C++ defines: a type, a constant, a function, as the first of its lines that
# begins such a definition names it. What stands between its end and that of a line does not matter.
_CPP_NAMES = re.compile(
    r"^(?!return|using namespace)[^\n=(]*?(?:"
    r"\b(?:struct|class|using)\s+(\w+)\b|"
    r"\bconstexpr\s[^\n(;]*?(\w+)(?:<[^=\n]*>)?\s*=|"
    r"(\w+)\()",
    re.MULTILINE,
)
_NOISE = re.compile(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)|^\s*//.*$|^#.*$", re.MULTILINE)
_NAMESPACE = re.compile(r"^(?:inline )?namespace[^{\n]*\{$|^\}  // namespace.*$", re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    """Parts of a C++ file between blank lines where no brace is open, but for namespaces'."""
    depth, lines = 0, []
    for line in [*_NAMESPACE.sub("", text).splitlines(), ""]:
        if line.strip() or depth:
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
        code = line.partition("//")[0]
        depth += code.count("{") - code.count("}")


def _cpp_definitions(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for paragraph in _paragraphs(text):
        code = _NOISE.sub("", paragraph)
        code = re.sub(r"\s*\n\s+(?=\w+\()", " ", code)  # a name behind its qualifiers' line
        for names in _CPP_NAMES.findall(re.sub(r"^[ \t]+.*$", "", code, flags=re.MULTILINE)):
            found.setdefault(next(filter(None, names)), paragraph)
    return found


def _names(node: ast.AST) -> list[str]:
    return [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]


def _python_uses(text: str) -> set[str]:
    """The names that a definition uses, but for its own variables."""
    module = ast.parse(text)
    own = {inner.arg for inner in ast.walk(module) if isinstance(inner, ast.arg)}
    return set(_names(module)) - own


def _python_definitions(text: str) -> dict[str, str]:
    lines = text.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        first = node.lineno
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
            first = min([first, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in _names(target)]
        else:
            continue
        found |= {name: "\n".join(lines[first - 1 : node.end_lineno]) for name in names}
    return found


def _cpp_uses(text: str) -> set[str]:
    """The names in a text that is no comment; of variables only those that are called."""
    code = re.sub(r"//.*$", "", text, flags=re.MULTILINE)
    called = re.findall(r"\b([a-z_]\w*)(?=[(<.])", code)
    return {*called, *re.findall(r"\b(?:k[A-Z]|[A-Z])\w*\b", code)}


def _cpp_imports(text: str) -> dict[str, str]:
    """By name, the header of the device library that defines it; the same for every file."""
    return {name: file for file, of in _headers().items() for name in of}


def _python_imports(text: str) -> dict[str, str]:
    """By name, the file of the device library that it is imported from."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_LIBRARY):
            inside = (node.module or "").removeprefix(_LIBRARY).lstrip(".").replace(".", "/")
            for name in node.names:
                module = f"{inside}/{name.name}".lstrip("/") if inside in _rooms() else inside
                found[name.asname or name.name] = f"triton_ops/lib/{module}.py"
    return found


@functools.cache
def _rooms() -> frozenset[str]:
    """The folders of Triton's device library, by their path in it; the library's own is ""."""
    library = folder_of("triton") / "lib"
    return frozenset({"", *(path.name for path in library.iterdir() if path.is_dir())})


@functools.cache
def _headers() -> dict[str, dict[str, str]]:
    folder = Path(diglot.get_include()) / "diglot"
    return {
        f"diglot/{path.relative_to(folder)}": _cpp_definitions(path.read_text())
        for path in folder.rglob("*.cuh")
    }


@dataclass(frozen=True)
class _Language:
    """Where the files of a language's kernels are, in a tree and installed, and how to read them.

    `definitions(text)` has the parts of a file by the names that they define; `imports(text)`, by
    name, the files of the device library that a file has names from; `uses(text)` the names that a
    definition uses.
    """

    folder: str
    installed: str
    pattern: str
    definitions: Callable[[str], dict[str, str]]
    imports: Callable[[str], dict[str, str]]
    uses: Callable[[str], set[str]]
    separator: str


_LANGUAGES = {
    "cuda": _Language(
        "csrc/ops", "cuda_ops", "*.cu", _cpp_definitions, _cpp_imports, _cpp_uses, "\n\n"
    ),
    "triton": _Language(
        "triton_ops",
        "triton_ops",
        "*.py",
        _python_definitions,
        _python_imports,
        _python_uses,
        "\n\n\n",
    ),
}


def folder_of(language: str) -> Path:
    """Where the files of ops lie in a language: installed, or else in the tree."""
    of, here = _LANGUAGES[language], Path(diglot.__file__).parent
    installed, in_tree = here / of.installed, here.parents[1] / of.folder
    return installed if installed.is_dir() else in_tree


@functools.cache
def _files(language: str) -> dict[str, str]:
    """The files of a language's kernels, as the tree names them, and what they say."""
    of = _LANGUAGES[language]
    paths = sorted(folder_of(language).glob(of.pattern))
    return {f"{of.folder}/{path.name}": path.read_text(encoding="utf-8") for path in paths}


def source_of(language: str, kernel: str) -> Source | None:
    """The source of a kernel; None where the installation has none.

    Args:
        kernel: its name, with template arguments or without.
    """
    # An elementwise kernel of C++ is the device library's; the op's is the functor that it maps.
    name = re.sub(r"^elementwise_(?:flat|strided)<", "", kernel)
    name, of = re.split("[<,>]", name)[0], _LANGUAGES[language]
    for file, content in _files(language).items():
        definitions = of.definitions(content)
        if name not in definitions:
            continue
        wanted, pending = {name}, [name]
        while pending:
            new = (of.uses(definitions[pending.pop()]) & definitions.keys()) - wanted
            wanted |= new
            pending += new
        # One definition may have several names.
        texts = dict.fromkeys(text for other, text in definitions.items() if other in wanted)
        text = of.separator.join(texts)
        own = set(re.findall(r"\busing (\w+) =", text))  # which hide names of the library
        imports, library = of.imports(content), defaultdict(list)
        for used in sorted(of.uses(text) & imports.keys() - own):
            library[imports[used]].append(used)
        named = {other: tuple(library[other]) for other in sorted(library)}
        return Source(file, text + "\n", named)
    return None
