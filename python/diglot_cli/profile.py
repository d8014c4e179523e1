"""`diglot profile`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from diglot_cli.common import check_files, command

# Until the script runs, Ctrl-C ends the process without a traceback.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from diglot.tools.profiled_script import main; main()"
)


@command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, metavar="[python] SCRIPT|-m MODULE [ARGS]...")
@click.option(
    "--engine",
    default="torch",
    show_default=True,
    metavar="NAME",
    help="torch; on a GPU also proton (Triton's) or nvtx (ranges for Nsight Systems).",
)
@click.option("--trace", metavar="FILE", help="Write a Chrome trace, a .json file.")
@click.option("--tensorboard", metavar="DIR", help="Write a trace for TensorBoard into a folder.")
@click.option("--flame", metavar="FILE", help="Draw a flame graph, an .svg file.")
@click.option("--stacks", metavar="FILE", help="Write the flame graph as text, a line per stack.")
@click.option(
    "--modules/--no-modules", default=True, help="A scope per call of a module. Default: yes."
)
@click.option(
    "--frames/--no-frames",
    default=None,
    help="Record Python's frames, which costs host time and memory. Default: yes, unless Triton "
    "interprets kernels.",
)
@click.option(
    "--table-rows",
    "rows",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Rows of the tables.",
)
@click.option("--by-shape", is_flag=True, help="Show a row per shape of an operator's inputs.")
@click.option("--force", is_flag=True, help="Overwrite files.")
def profile(asked: Any) -> NoReturn:
    """Profile a Python script: diglot profile -- python script.py.

    The tables show operators and kernels by time, and how many kernels each operator launched.
    The whole script counts, first calls too, which compile and load. To leave them out, use
    diglot.profile or diglot.profile_call in the script. The command keeps the script's output and
    exit status.
    """
    options = vars(asked)
    kind, target, arguments = split(options.pop("words"))
    written = {f"--{name}": options[name] for name in ("trace", "flame", "stacks")}
    check_files([], written, options["force"])
    if kind == "script" and not Path(target).is_file():
        raise ValueError(f"there is no script {target}")
    sys.stdout.flush()
    started = [sys.executable, "-c", START, json.dumps(options), kind, target, *arguments]
    os.execv(sys.executable, started)


def split(command: tuple[str, ...]) -> tuple[str, str, list[str]]:
    """ "script" or "module", its name, and its arguments.

    Raises:
        ValueError: the command is not one of Python's.
    """
    words = list(command)
    if words[0] in ("python", "python3"):  # whichever: this one runs it
        words.pop(0)
    kind = "module" if words and words[0].startswith("-m") else "script"
    if kind == "module":
        words[0] = words[0].removeprefix("-m")
        words = words if words[0] else words[1:]
    if not words or words[0].startswith("-"):
        raise ValueError("the command must be a Python script, or -m and a module")
    return kind, words[0], words[1:]
