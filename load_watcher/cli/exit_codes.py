"""How a command says that it cannot do what it was asked to, and with which exit code it ends then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from watcher.platform.settings.problems import SettingsError

BAD_SETTINGS = 2
COULD_NOT = 2


def complain(told: object, hint: str = "", *, of: str = "load-watcher") -> None:
    """Say on standard error what is wrong and, in a line of its own, what to do about it."""
    click.echo(f"{of}: {told}" + (f"\n  {hint}" if hint else ""), err=True)


def complain_of_settings(error: SettingsError) -> None:
    """Say all that is wrong with the settings, each with its cure."""
    count = len(error.problems)
    complain(f"{count} problem{'s' if count > 1 else ''} in the settings")
    for problem in error.problems:
        click.echo(f"\n{click.style(problem.key, bold=True)}: {problem.message}", err=True)
        click.echo(f"  {click.style('cure:', fg='green')} {problem.cure}", err=True)
