"""The command line, run in the tests' own process."""

from __future__ import annotations

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import diglot_cli as cli


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def fails(*arguments):
    """Runs a command that must fail as a user's mistake should; returns the message."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "", result.stdout
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: "), lines[0]
    return lines[0]
