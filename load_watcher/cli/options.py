"""Flags that several commands have, and how the values of flags are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# --- how values are read ----------------------------------------------------------------------------------------------


def _assignments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """What --set was given. The value is not repeated where it is wrong: it may be a secret."""
    pairs = [each.partition("=") for each in given]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise click.BadParameter("must have the form section.key=value")
    return {key.strip(): value for key, _, value in pairs}


def to_seconds(_context: click.Context, _parameter: click.Parameter, given: str) -> float:
    """Seconds."""
    from watcher.platform.settings.quantities import read_duration
    from watcher.platform.settings.values import Unfit

    try:
        return read_duration(given)
    except Unfit:
        raise click.BadParameter("must be a duration, like 30s, 15m or 1h") from None


def to_seconds_or_none(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Seconds, None where nothing is given."""
    return None if given is None else to_seconds(context, parameter, given)


def finite(_context: click.Context, _parameter: click.Parameter, given: float) -> float:
    """A number; click's ranges let NaN through."""
    if given != given:
        raise click.BadParameter("must be a number")
    return given


def to_address(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str:
    """The address of a service, without a slash at its end; empty where nothing is given."""
    from watcher.platform.settings.addresses import ADDRESS
    from watcher.platform.settings.values import Unfit

    if given is None:
        return ""
    try:
        return str(ADDRESS.read_text(given)).rstrip("/")
    except Unfit as unfit:
        raise click.BadParameter(f"must be {ADDRESS.accepts}" + (f"; {unfit}" if str(unfit) else "")) from None


# --- flags of what reads settings, by the keys in loading.py ----------------------------------------------------------

CONFIG = click.option("--config", type=click.Path(path_type=Path), help="TOML file; else load-watcher.toml, if any.")
STORE_URL = click.option("--store-url", metavar="URL", help="Database, like sqlite:///load-watcher.db.")
SET = click.option(
    "--set", "assigned", multiple=True, metavar="KEY=VALUE", callback=_assignments, help="Any setting, by its key."
)
NODE = click.option("--node", metavar="NAME", help="This node's name in Kubernetes; else NODE_NAME, else the host's.")
LISTENING = (
    click.option("--host", metavar="ADDRESS", help="Address to listen on."),
    click.option("--port", metavar="PORT", help="Port to listen on; 0 takes any free one."),
)
LOGGING = (
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical."),
    click.option("--log-format", metavar="FORMAT", help="text or json."),
    click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug."),
)
SERVICE = (
    click.option("--interval", metavar="DURATION", help="How often samples are fetched."),
    *LISTENING,
    STORE_URL,
    *LOGGING,
    SET,
)
SERVE = (
    CONFIG,
    click.option("--provider", metavar="NAME", help="Source of samples, like host or prometheus."),
    click.option("--address", metavar="URL", help="Where the source is."),
    click.option("--trace", metavar="FILE", help="What the provider replay replays."),
    click.option("--speed", metavar="X", help="How many times as fast; times of samples stay true."),
    *SERVICE,
)

# --- flags of what asks a running service -----------------------------------------------------------------------------


def service_url(told: str) -> Callable[[Command], Command]:
    """--url with the address that `serve` has by default; `told` says which service it is."""
    default = "http://127.0.0.1:2020"
    return click.option("--url", default=default, show_default=True, callback=to_address, metavar="URL", help=told)


def token_file(told: str) -> Callable[[Command], Command]:
    return click.option("--token-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=told)


TOKEN_FILE = token_file("Its bearer token, if one is set.")
SERVICE_ASKED = (service_url("The service."), TOKEN_FILE)
OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")


def read_token(file: Path | None) -> str | None:
    """What is in --token-file; a usage error where that is no token. It is not repeated: it is a secret."""
    if file is None:
        return None
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.BadParameter(f"{file} cannot be read: {why}", param_hint="--token-file") from None
    if not token.isprintable() or not token:
        raise click.BadParameter(f"{file} must hold one line, the token", param_hint="--token-file")
    return token
