"""docs/models.md: its snippets run, and print what it shows."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import pytest

from diglot.models.reviewed import Refusal, reviewed

PAGE = Path(__file__).parent.parent / "docs/models.md"
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(with_transformers):
    """Runs the snippets in order, and compares what each prints with the block that follows."""
    scope, compared = {}, 0
    for (kind, source), (next_kind, shown) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind != "python" or ("transformers" in source and not with_transformers):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(PAGE), "exec"), scope)
        if next_kind == "text":
            assert printed.getvalue() == shown
            compared += 1
    return compared


def test_snippets():
    assert run(with_transformers=False) == 2


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers is not installed")
def test_snippets_with_transformers():
    assert run(with_transformers=True) == 3


def test_counts_and_names():
    """Of the norms of transformers; and every GELU on the list is on the page."""
    page = PAGE.read_text()
    said = {name: each for name, each in reviewed().items() if not isinstance(each, Refusal)}
    (count,) = re.findall(r"some (\d+) RMS norms", page)
    norms = [each for each in said.values() if each.kind == "rms_norm" and not each.becomes]
    assert abs(len(norms) - int(count)) <= 5
    for name, each in said.items():
        short = name.rpartition(".")[2]
        assert each.kind != "gelu" or short in page
