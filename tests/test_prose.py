"""The documents are in plain English: no sentence above 30 words, and no phrase that stumbles.

Code, tables, comments and headings are not counted. CONTRIBUTING.md says the rules ("Write").
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
    """Sentences that are too long or have a banned phrase: the line, and what is wrong."""
    for line, sentence in sentences(text):
        words = sum(any(map(str.isalnum, word)) for word in WORD.findall(sentence))
        if words > LONGEST:
            yield line, f"{words} words: {sentence}"
        for phrase in BANNED.findall(re.sub(r"`[^`]*`", "`", sentence)):
            yield line, f'"{phrase}": {sentence}'


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page):
    name = page.relative_to(ROOT)
    found = [f"{name}:{line}: {fault}" for line, fault in faults(page.read_text())]
    assert not found, "\n".join(["", *found])


def test_faults_are_found():
    long = " ".join(["word"] * LONGEST)
    text = f"# What is {long} left out\n\n- {long}.\n- One `what is`\n  {long}. What is this?\n"
    text += f"\n```\n{long} of which\n```\n| {long} of which |\n"
    assert [(line, fault.split(":")[0]) for line, fault in faults(text)] == [
        (4, f"{LONGEST + 2} words"),
        (5, '"What is"'),
    ]
