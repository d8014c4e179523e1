"""The documents: which there are, their Python, and what they quote of sources."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The first line of a block that is part of a file.
QUOTED = re.compile(r"(?://|#) (\S+/\S+\.\w+)\n")
# The first line of a block that runs only with a GPU, or with a package.
NEEDS = re.compile(r"# Needs (a GPU|\w+)\.\n")


def documents() -> list[Path]:
    """Every Markdown file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True
    )
    names = listed.stdout.decode().split() if listed.returncode == 0 else []
    found = [ROOT / name for name in names] or [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(path for path in found if path.exists())


def python_of(path: Path) -> list[tuple[int, str]]:
    """The line number and the source of every block of Python of a document."""
    text = path.read_text()
    blocks = [found for found in FENCE.finditer(text) if found[1] == "python"]
    return [(text.count("\n", 0, found.start(2)) + 1, found[2]) for found in blocks]


def quotes_of(path: Path) -> Iterator[tuple[Path, str]]:
    """The blocks of a document that are part of a file, each with that file."""
    for found in FENCE.finditer(path.read_text()):
        named = QUOTED.match(found[2])
        if named:
            yield ROOT / named[1], found[2][named.end() :]
