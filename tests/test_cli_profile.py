"""`diglot profile`: what it starts Python with; tests/test_profiling.py has the rest."""

from __future__ import annotations

import json
import os
import sys

import pytest
from commands import fails, run

from diglot_cli.profile import split


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("a.py", ("script", "a.py", [])),
        ("a.py -m x --flag", ("script", "a.py", ["-m", "x", "--flag"])),
        ("python a.py b", ("script", "a.py", ["b"])),
        ("python3 -m a.b c", ("module", "a.b", ["c"])),
        ("-ma.b -m c", ("module", "a.b", ["-m", "c"])),
    ],
)
def test_commands(command, expected):
    assert split(tuple(command.split())) == expected


def test_it_starts_python(tmp_path, monkeypatch):
    class Started(Exception):
        pass

    def start(*arguments):
        raise Started(*arguments)

    script = tmp_path / "script.py"
    script.touch()
    monkeypatch.setattr(os, "execv", start)
    result = run(
        "profile", "--flame", "f.svg", "--table-rows", "3", "--by-shape", script, "--engine", "mine"
    )
    assert isinstance(result.exception, Started), result.output
    program, (_, _, code, options, *rest) = result.exception.args
    assert (program, rest) == (sys.executable, ["script", str(script), "--engine", "mine"])
    assert "profiled_script" in code
    options = {name: value for name, value in json.loads(options).items() if value}
    assert options == {
        "engine": "torch", "flame": "f.svg", "rows": 3, "by_shape": True, "modules": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "Missing argument"),
        ("python", "the command must be a Python script, or -m and a module"),
        ("-- python -c pass", "the command must be a Python script"),
        ("-- -m", "the command must be a Python script"),
        ("nowhere.py", "there is no script nowhere.py"),
        ("-- python -O a.py", "the command must be a Python script"),
        ("--table-rows 0 a.py", "0 is not in the range x>=1"),
        ("--trace a --flame a a.py", "--flame must name another file than --trace"),
        ("--trace nowhere/a.json a.py", "there is no folder"),
    ],
)
def test_refused(arguments, message):
    assert message in fails("profile", *arguments.split())
