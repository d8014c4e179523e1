"""The command line: `diglot COMMAND`, each command in a file of its name.

It lies outside the package `diglot`, which imports PyTorch: help, version and completion of the
shell answer without either. A command imports them when it runs.
"""

from __future__ import annotations

import difflib
import importlib
import io
import signal
import sys
from typing import Any

MISSING = 'error: the command line needs {}: pip install "diglot[tools]"'

try:
    import click

    from diglot_cli.common import usage_errors
except ImportError as missing:
    print(MISSING.format(missing.name), file=sys.stderr)
    raise SystemExit(2) from None

COMMANDS = ("bench", "compare", "info", "inspect", "report", "specs", "tune")


class _Group(click.Group):
    """Commands that are imported when they are asked for; its usage errors are one line too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name.lower(), COMMANDS, n=1)
            if near and not ctx.resilient_parsing:
                raise click.UsageError(
                    f"No such command {cmd_name!r}; did you mean {near[0]!r}?", ctx
                )
            return None
        return getattr(importlib.import_module(f"diglot_cli.{cmd_name}"), cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with usage_errors():
            return super().invoke(ctx)


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="diglot", message="%(package)s %(version)s")
def app() -> None:
    """PyTorch ops written twice by hand, in CUDA C++ and in Triton.

    \b
    Completion in the shell, by a line of its start-up file:
      bash   eval "$(_DIGLOT_COMPLETE=bash_source diglot)"
      zsh    eval "$(_DIGLOT_COMPLETE=zsh_source diglot)"
      fish   _DIGLOT_COMPLETE=fish_source diglot | source
    """


def main() -> None:
    """Entry point of `diglot`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the encoding has no µ or –
    app(prog_name="diglot")
