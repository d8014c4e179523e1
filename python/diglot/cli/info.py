"""`diglot info`."""

from __future__ import annotations

import click

from diglot.cli.common import one_line_errors


@click.command()
def info() -> None:
    """Show what is installed, its build, and the backends that can run here."""
    from diglot.tools.info import collect

    with one_line_errors():
        click.echo(str(collect()))
