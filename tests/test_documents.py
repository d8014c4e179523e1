"""The documents: their Python runs, their links lead somewhere, what they quote is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path, PurePosixPath

import pytest
from documents import ROOT, documents, python_of, quotes_of

from diglot.backends.registry import has_interpreter
from tools.document_links import anchors, links, path_of

README = ROOT / "README.md"
# Nothing is interpreted, until the script says so.
ENVIRONMENT = {name: of for name, of in os.environ.items() if not name.endswith("_INTERPRET")}
ENVIRONMENT["PYTHONBREAKPOINT"] = "0"


def run_snippets(pages: list[Path], **variables: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent / "run_snippets.py"
    return subprocess.run(
        [sys.executable, str(script), *map(str, pages)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | variables,
    )


def pages_with_python() -> list[Path]:
    """README first."""
    return [README, *(path for path in documents() if path != README and python_of(path))]


@pytest.mark.skipif(not has_interpreter(), reason="snippets need both interpreters")
def test_snippets_run():
    pages = pages_with_python()
    assert len(pages) >= 15
    answer = run_snippets(pages, CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    # README's first block prints the lines that stand below it. PyTorch's line is left out, since
    # its kernel is not the same everywhere. Where nothing is interpreted, the block prints that
    # line alone.
    shown = re.search(r"^cuda   tensor.*\ntriton tensor.*$", README.read_text(), re.MULTILINE)
    assert f"## README.md\n{shown.group()}\ntorch " in answer.stdout
    assert answer.stdout.startswith("## as it stands\ntorch ")


@pytest.mark.gpu
def test_snippets_run_on_a_gpu():
    answer = run_snippets(pages_with_python())
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.slow
def test_a_snippet_that_fails_is_told(tmp_path):
    page = tmp_path / "page.md"
    needs = "```python\n# Needs nosuchpackage.\nimport nosuchpackage\n```\n\n"
    page.write_text(f"# A page\n\n```python\none = 1\n```\n\n{needs}```python\none.gone\n```\n")
    answer = run_snippets([page])
    assert answer.returncode == 1
    assert 'page.md.py", line 13' in answer.stderr and "no attribute 'gone'" in answer.stderr


def test_links_lead_somewhere():
    texts = {PurePosixPath(path.relative_to(ROOT)): path.read_text() for path in documents()}
    broken = []
    for page, text in texts.items():
        for link in links(text):
            path = page if link.startswith("#") else path_of(link, page)
            _, _, heading = link.partition("#")
            is_there = (ROOT / path).exists() and ".." not in path.parts
            if not is_there or (heading and heading not in anchors(texts.get(path, ""))):
                broken.append(f"{page}: {link}")
    assert broken == []


def test_anchors_are_those_of_github():
    text = "# A `b`, c: d\n\n## [Same](x.md)\n\n```\n# none\n```\n\n## Same\n"
    assert anchors(text) == {"a-b-c-d", "same", "same-1"}


def test_quotes_are_in_their_files():
    quotes = [(path, *quote) for path in documents() for quote in quotes_of(path)]
    assert len(quotes) >= 3
    for page, source, quote in quotes:
        indented = [textwrap.indent(quote, " " * width) for width in (0, 2, 4, 6)]
        is_there = any(text in source.read_text() for text in indented)
        assert is_there, f"{page.name} quotes {source.name}"


def test_readme_has_two_screens():
    assert len(README.read_text().splitlines()) <= 150


def test_an_entry_of_the_changelog_is_one_line():
    text = (ROOT / "CHANGELOG.md").read_text()
    lines = [line for line in text.partition("### Added\n")[2].splitlines() if line]
    others = [line for line in lines if not re.match(r"- \S|\*\*|##", line)]
    assert len(lines) > 100 and others == []
    assert [line for line in lines if len(line) > 110] == []
    assert [line for line in set(lines) if line.startswith("- ") and lines.count(line) > 1] == []
