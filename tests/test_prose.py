"""Pages and comments are in plain English: no sentence above 30 words, no phrase that stumbles.

Of a page, the tests read the prose: no code, tables, comments or headings. Of a source file, they
read comments and docstrings, but no indented examples. CONTRIBUTING.md says the rules ("Write").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    + [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
)
FOLDERS = ("bench", "csrc", "examples", "python/diglot_cli", "tests", "tools", "triton_ops")
PARTS = (
    "backends", "define", "distributed", "graphs", "models", "ops", "pipeline", "reference",
    "tools",
)  # fmt: skip
LONGEST = 30
BANNED = re.compile(
    r"\b(?:of which|of whom|by which|what is|what was|what are|what were|what there is|"
    r"so many|the same of|as are|as ever|as it stands|as they stand|but for|for want of|"
    r"by way of|is no part of|(?-i:(?:is|are) none)|one's own|in vain|anew|besides|"
    r"is done with|are done with|for as long as|as by)\b",
    re.IGNORECASE,
)
SKIPPED = re.compile(r"\s*(?:\||<!--|#|!\[)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
WORD = re.compile(r"(?:`[^`]*`|[^\s`])+")  # code is one word
END = re.compile(r"[.!?][*_\")\]]*$")
CPP = re.compile(r'R"(\w*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//.*')
DIRECTIVE = re.compile(r"#\s*(?:fmt:|type:|noqa)")
# Python's strings and comments: to tokenize and to parse all files would take ten times as long.
PYTHON = re.compile(
    r'[rR]?"""(?:\\[\s\S]|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|'
    r"'''(?:\\[\s\S]|[^\\])*?'''|'(?:\\.|[^'\\\n])*'|#.*"
)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Each paragraph or list item of prose, with the number of its first line."""
    first, lines, is_code = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        is_break = is_fence or is_code or not line.strip() or bool(SKIPPED.match(line))
        if lines and (is_break or ITEM.match(line)):
            yield first, "\n".join(lines)
            lines = []
        is_code ^= is_fence
        if not is_break:
            first = first if lines else number
            lines.append(ITEM.sub("", line, count=1))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of a page, with the number of its first line."""
    for first, paragraph in paragraphs(text):
        words: list[str] = []
        line = first
        for word in WORD.finditer(paragraph):
            line = line if words else first + paragraph.count("\n", 0, word.start())
            words.append(" ".join(word[0].split()))
            if END.search(word[0]):
                yield line, " ".join(words)
                words = []
        if words:
            yield line, " ".join(words)


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Sentences that are too long or have a banned phrase: the line, and the fault."""
    for line, sentence in sentences(text):
        words = sum(any(map(str.isalnum, word)) for word in WORD.findall(sentence))
        if words > LONGEST:
            yield line, f"{words} words: {sentence}"
        for phrase in BANNED.findall(re.sub(r"`[^`]*`", "`", sentence)):
            yield line, f'"{phrase}": {sentence}'


def comments_of_cpp(text: str) -> str:
    """The comments of C++, line by line; one behind code is an item of its own."""
    lines = [""] * (text.count("\n") + 1)
    for match in CPP.finditer(text):
        if match[0].startswith("//") and not match[0].startswith("//   "):
            start = text.rfind("\n", 0, match.start()) + 1
            mark = "- " if text[start : match.start()].strip() else ""
            lines[text.count("\n", 0, match.start())] = mark + match[0].strip("/ ")
    return "\n".join(lines)


def comments_of_python(text: str) -> str:
    """The comments and docstrings of Python; one behind code, or an argument, is an item."""
    source = text.splitlines()
    lines = [""] * len(source)
    number = end = 0
    code = ":"  # the last character of code; a docstring follows a colon
    for match in PYTHON.finditer(text):
        number += text.count("\n", end, match.start())
        code = text[end : match.start()].rstrip()[-1:] or code
        end = match.end()
        indent = match.start() - text.rfind("\n", 0, match.start()) - 1
        begins = not source[number][:indent].strip()
        if match[0].startswith("#"):
            if not DIRECTIVE.match(match[0]):
                lines[number] = ("" if begins else "- ") + match[0].strip("# ")
            continue
        inner = match[0].count("\n")
        if begins and code == ":" and match[0].endswith('"""'):
            for i in range(number, number + inner + 1):
                line = source[i].strip()
                lines[i] = ("- " if source[i].index(line) - indent == 4 else "") + line.strip('"')
        number, code = number + inner, match[0][-1]
    return "\n".join(lines)


def sources() -> Iterator[Path]:
    """Kernels, the device library, host code, the interpreter, examples, instruments and tests."""
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file())
    for folder in PARTS:
        yield from (ROOT / "python/diglot" / folder).rglob("*.py")
    yield from (ROOT / "python/diglot").glob("*.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page):
    name = page.relative_to(ROOT)
    found = [f"{name}:{line}: {fault}" for line, fault in faults(page.read_text())]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("suffixes", "comments_of"),
    [((".c", ".cu", ".cuh", ".cpp", ".h"), comments_of_cpp), ((".py",), comments_of_python)],
    ids=["c++", "python"],
)
def test_comments_are_plain_english(suffixes, comments_of):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sources()
        if path.suffix in suffixes
        for line, fault in faults(comments_of(path.read_text()))
    ]
    assert not found, "\n".join(["", *found])


def test_faults_are_found():
    long = " ".join(["word"] * LONGEST)
    text = f"# What is {long} left out\n\n- {long}.\n- One `what is`\n  {long}. What is this?\n"
    text += f"\n```\n{long} of which\n```\n| {long} of which |\n"
    assert [(line, fault.split(":")[0]) for line, fault in faults(text)] == [
        (4, f"{LONGEST + 2} words"),
        (5, '"What is"'),
    ]


def test_faults_of_comments_are_found():
    cpp = '// Of one,\n// of which two.\nauto x = "// what is";  // so many\n//   what is code\n'
    assert list(faults(comments_of_cpp(cpp))) == [
        (1, '"of which": Of one, of which two.'),
        (3, '"so many": so many'),
    ]
    python = 'def f(x):\n    """Does.\n\n    Args:\n        x: so many\n            things.\n'
    python += '    """\n    return x  # what is "left"\n    # fmt: skip anew\n'
    assert list(faults(comments_of_python(python))) == [
        (5, '"so many": x: so many things.'),
        (8, '"what is": what is "left"'),
    ]
