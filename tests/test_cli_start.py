"""Help, version and completion of the command line answer without PyTorch, and at once."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import diglot_cli

ANSWERS = """
import json, sys
import diglot_cli
from click.testing import CliRunner

answers = {}
for arguments in json.load(sys.stdin):
    done = CliRunner().invoke(diglot_cli.app, arguments)
    loaded = [name for name in ("torch", "triton", "diglot", "numpy") if name in sys.modules]
    answers[" ".join(arguments)] = (done.exit_code, done.stdout, loaded)
json.dump(answers, sys.stdout)
"""
QUESTIONS = [["--help"], ["--version"], *([name, "--help"] for name in diglot_cli.COMMANDS)]


@pytest.fixture(scope="module")
def answers() -> dict:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        input=json.dumps(QUESTIONS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_help_and_version_load_no_torch(answers, question):
    status, output, loaded = answers[" ".join(question)]
    assert (status, loaded) == (0, [])
    assert output.startswith("Usage: " if "--help" in question else "diglot ")


def complete(words: str) -> list[str]:
    variables = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_DIGLOT_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-m", "diglot_cli"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def test_the_shell_completes_commands_and_options():
    assert complete("diglot co") == ["plain,compare"]
    assert complete("diglot compare --sh") == ["plain,--shape"]


def test_help_is_quick():
    """In processor time, which other programs do not lengthen: 0.1 s, and 2 s with PyTorch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-m", "diglot_cli", "--help"], capture_output=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.6


@pytest.mark.slow
def test_the_package_is_the_command_line_too():
    command = [sys.executable, "-m", "diglot", "compare", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: op must be one of")
