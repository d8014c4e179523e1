"""examples/streams.py: it asserts by itself; here it is run."""

from __future__ import annotations

import contextlib
import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import KERNELS
from scripts import run_here

import diglot

EXAMPLE = Path(__file__).parent.parent / "examples/streams.py"


def test_it_explains_itself():
    status, output = run_here(EXAMPLE, "--help")
    assert status == 0 and "--spin-ms" in output and "--hw7" in output


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


@pytest.mark.gpu
@pytest.mark.parametrize("backend", KERNELS)
def test_homework_7(backend):
    """It compares the results by itself."""
    command = [sys.executable, EXAMPLE, "--hw7", "--backend", backend]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    ways = [line.partition(" elapsed time: ")[0] for line in answer.stdout.splitlines()[1:]]
    assert ways == ["non-stream", "streams", "stream_map"]


@pytest.fixture
def homework(monkeypatch):
    """It, on the CPU; and the numbers of the streams that are current."""
    current = []

    @contextlib.contextmanager
    def stream(number):
        current.append(number)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", itertools.count().__next__)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, device: empty(*sizes))
    return runpy.run_path(str(EXAMPLE))["Homework"], current


def test_homework_7_is_as_published(homework, monkeypatch):
    """The sizes; and which stream each chunk is in, and that there its kernel follows its copy."""
    made, current = homework
    calls = []

    def kernel(chunk, backend):
        calls.append((current[-1], chunk.storage_offset()))
        return chunk * 2

    monkeypatch.setattr(diglot, "gaussian_pdf", kernel)
    assert made.ELEMENTS * 4 == 256 << 20
    problem = made("cuda", 64 * 100)
    problem.with_streams()
    assert calls == [(i % 8, 100 * i) for i in range(64)]
    assert torch.equal(problem.target, problem.source * 2)


def test_homework_7_checks_its_results(homework, monkeypatch):
    """By the formula, and the ways by one another."""
    made, _ = homework
    problem = made("torch", 64 * 100)
    problem.with_streams()
    problem.check_formula()
    problem.target[0] *= 1.0001
    with pytest.raises(AssertionError, match="not close"):
        problem.check_formula()
    ways = {"streams": problem.with_streams, "stream_map": lambda: problem.target.fill_(0.3)}
    monkeypatch.setattr(made, "ways", {"non-stream": problem.without_streams, **ways})
    lines = problem.figures()
    assert [next(lines).partition(" elapsed")[0] for _ in range(2)] == ["non-stream", "streams"]
    with pytest.raises(AssertionError, match="stream_map: 6400 mismatches"):
        next(lines)
