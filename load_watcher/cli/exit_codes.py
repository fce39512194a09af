"""Error output of commands on standard error, and their exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from watcher.platform.settings.problems import SettingsError

BAD_SETTINGS = 2
FAILED = 2


def print_error(told: object, hint: str = "", *, of: str = "load-watcher") -> None:
    """Print an error to standard error, and the hint on a second line. `of` is the command that failed."""
    click.echo(f"{of}: {told}" + (f"\n  {hint}" if hint else ""), err=True)


def print_settings_problems(error: SettingsError) -> None:
    """Print every problem of the settings, each with its fix, to standard error."""
    count = len(error.problems)
    print_error(f"{count} problem{'s' if count > 1 else ''} in the settings")
    for problem in error.problems:
        click.echo(f"\n{click.style(problem.key, bold=True)}: {problem.message}", err=True)
        click.echo(f"  {click.style('fix:', fg='green')} {problem.cure}", err=True)
