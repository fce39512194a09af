"""The command line `load-watcher`. Each command has a module in `load_watcher.commands`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.version import print_version, version_line
from load_watcher.commands import (
    agent,
    config,
    db,
    doctor,
    extender,
    koordinator,
    marks,
    qrm,
    score,
    serve,
    shadow,
    top,
    why,
)
from load_watcher.commands.lab import compare, demo, forecast, record, report, simulate

COMMANDS: tuple[click.Command, ...] = (
    serve.serve,
    demo.demo,
    extender.extender,
    doctor.doctor,
    compare.compare,
    top.top,
    score.score,
    why.why,
    shadow.shadow,
    record.record,
    report.report,
    simulate.simulate,
    forecast.forecast,
    koordinator.koordinator,
    marks.marks,
    config.config,
    agent.agent,
    qrm.qrm,
    db.db,
)


OTHER_NAMES = {"nodes": "top nodes", "pods": "top pods", "explain": "why"}
"""Names of commands that readers of the documentation of Kubernetes may try."""
PACKAGES = ("agent", "lab", "load_watcher", "scorers", "watcher")


COMPLETION = """\b
Shell completion, for bash; write zsh or fish instead for these shells:
  eval "$(_LOAD_WATCHER_COMPLETE=bash_source load-watcher)"
"""


class CommandGroup(click.Group):
    """Commands of which some need packages that this installation may lack: the agent's image has only its own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if meant := OTHER_NAMES.get(args[0]):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in PACKAGES:
                raise
            print_error(f"this installation does not contain {error.name}", "install the whole of load-watcher")
            raise SystemExit(FAILED) from None


@click.group(
    cls=CommandGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=COMPLETION,
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Real-load-aware scheduling and node protection for Kubernetes.

    Settings are read from flags, environment variables (LOAD_WATCHER_<SECTION>_<KEY>) and the TOML file, in this order
    of precedence; docs/reference/settings.md lists all of them. Commands that send requests to a service take its
    address from --url or the environment variable LOAD_WATCHER_URL. A command exits with 2 if its arguments or the
    settings are invalid; doctor reports invalid settings as a failed check and exits with 1.

    With -o json, a command prints one JSON document, and an error is one JSON object on standard error: {"error":
    {"message", "hint"}}, for invalid settings {"error": {"message", "problems": [{"key", "message", "cure"}]}}.
    Errors in the arguments are always text.

    A DURATION is a number with a unit, for example 250ms, 30s, 15m or 1h30m; without a unit it is in seconds.
    """


@main.command("version", hidden=True)
def show_version() -> None:
    """Print the version, as --version does."""
    click.echo(version_line())


@main.command("help", hidden=True)
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, names: Sequence[str]) -> None:
    """Print the help of a command, as --help does."""
    assert context.parent is not None
    found: click.Context = context.parent
    for name in names:
        group = found.command
        command = group.get_command(found, name) if isinstance(group, click.Group) else None
        if command is None:
            raise click.UsageError(f"No such command {name!r}.", ctx=found)
        found = click.Context(command, info_name=name, parent=found, **context.parent.command.context_settings)
    click.echo(found.get_help())
