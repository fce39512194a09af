"""Error output of commands on standard error, and their exit codes. With --output json, an error is one line of JSON:
`{"error": {"message", "hint"}}`, or `{"error": {"message", "problems": [{"key", "message", "cure"}]}}` for settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.json_text import json_text
from watcher.core.messages import visible

if TYPE_CHECKING:
    from watcher.core.config.problems import Problem, SettingsError

BAD_SETTINGS = 2
FAILED = 2


def print_error(message: object, hint: str = "", *, of: str = "load-watcher") -> None:
    """Print an error to standard error, and the hint on the lines below it. `of` is the command that failed."""
    if _prints_json():
        click.echo(json_text({"error": {"message": str(message), "hint": hint}}), err=True)
    else:
        lines = [*f"{of}: {message}".split("\n"), *(f"  {line}" for line in hint.splitlines())]
        click.echo("\n".join(map(visible, lines)), err=True)


def print_settings_problems(error: SettingsError) -> None:
    """Print every problem of the settings, each with its fix, to standard error."""
    count = len(error.problems)
    message = f"{count} problem{'s' if count > 1 else ''} in the settings"
    if _prints_json():
        document = {"error": {"message": message, "problems": problem_documents(error.problems)}}
        click.echo(json_text(document), err=True)
        return
    print_error(message)
    for problem in error.problems:
        click.echo(f"\n{click.style(problem.key, bold=True)}: {visible(problem.message)}", err=True)
        click.echo(f"  {click.style('fix:', fg='green')} {visible(problem.cure)}", err=True)


def problem_documents(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    return [{"key": each.key, "message": each.message, "cure": each.cure} for each in problems]


def _prints_json() -> bool:
    """Whether the running command has the option --output with the value json."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("output") == "json"
