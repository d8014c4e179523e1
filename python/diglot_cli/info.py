"""`diglot info`."""

from __future__ import annotations

import click

from diglot_cli.common import command


@command()
def info() -> None:
    """Tell what is installed, what it was built for, and which backends can run here."""
    from diglot.tools.info import collect

    click.echo(str(collect()))
