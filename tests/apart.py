"""Code that needs a process of its own: Triton compiles in one, or interprets.

Each is forked from one that has imported PyTorch and Triton, which takes seconds, and nothing else.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# What `python FILE` and the command `diglot` are to `run_apart`.
FILE = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
COMMAND = 'import runpy; runpy.run_module("diglot_cli", run_name="__main__")'

# The child sees a program's own arguments, variables, folder and path of modules.
SERVER = """
import atexit, json, os, sys, traceback
import torch
import triton.compiler

def run(code, arguments, environment, folder, outputs):
    for descriptor, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv, sys.path[:0] = ["-c", *arguments], ["", *filter(None, paths)]
    exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = 0
        try:
            run(*json.loads(line))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            status = 1
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def compiling_environment() -> dict[str, str]:
    """The variables of a process in which nothing is interpreted."""
    return {name: value for name, value in os.environ.items() if "INTERPRET" not in name}


@functools.cache
def server() -> subprocess.Popen[str]:
    """One for all tests of this process; it ends when its input does."""
    environment = compiling_environment()
    environment.pop("PYTHONPATH", None)
    started = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    atexit.register(started.communicate)
    return started


def run_apart(
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program that interprets nothing, as `python -c`, and keeps what it prints.

    Args:
        code: the program.
        arguments: its own.
        environment: variables beside this process's.
        folder: it runs there, by default here.
    """
    of_server = server()
    assert of_server.stdin is not None and of_server.stdout is not None
    variables = {**compiling_environment(), **(environment or {})}
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as error:
        told = [code, arguments, variables, str(folder or Path.cwd()), [out.name, error.name]]
        of_server.stdin.write(json.dumps(told) + "\n")
        of_server.stdin.flush()
        status = int(of_server.stdout.readline())
        said = [file.read().decode() for file in (out, error)]
    return subprocess.CompletedProcess(["python", *arguments], status, *said)
