"""`diglot info`."""

from __future__ import annotations

from typing import Any

import click

from diglot_cli.common import command


@command()
def info(_: Any) -> None:
    """Show the installed versions, their build, and the backends that can run here."""
    from diglot.tools.info import collect

    click.echo(str(collect()))
