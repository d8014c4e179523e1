"""examples/streams.py: it asserts by itself; here it is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts import run_here

EXAMPLE = Path(__file__).parent.parent / "examples/streams.py"


def test_it_explains_itself():
    status, output = run_here(EXAMPLE, "--help")
    assert status == 0 and "--spin-ms" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    assert run_here(EXAMPLE) == ("there is no GPU, and streams are a GPU's", "")


@pytest.mark.gpu
def test_it_shows_what_it_says():
    answer = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 8, answer.stdout
    beginnings = ("order within a stream: ", "overlap across streams: ", "an event between streams")
    assert all(line.startswith(b) for line, b in zip(lines[1:], beginnings, strict=False))
    assert lines[4].startswith("early return: ")
    assert lines[5].endswith("one after the other")
    assert lines[6].endswith("at once") and lines[7].endswith("at once")
