"""`diglot info`."""

from __future__ import annotations

import click

from diglot_cli.common import one_line_errors


@click.command()
def info() -> None:
    """Tell what is installed, what it was built for, and which backends can run here."""
    from diglot.tools.info import collect

    with one_line_errors():
        click.echo(str(collect()))
