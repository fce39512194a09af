"""Options shared by several commands, and the parsing of option values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

SERVICE = "http://127.0.0.1:2020"
"""Default address of `serve`."""
URL_VARIABLE = "LOAD_WATCHER_URL"
"""Environment variable with the address of the service, for every command that sends requests to one."""

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]
"""Decorator that adds an option to a command."""


def with_options(*options: Option) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def removed_option(*names: str, instead: str) -> Option:
    """Return a hidden option of a removed feature, with or without a value: giving it is an error that states what to
    use instead. It stays for one minor version."""

    def refuse(_context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        if given is not None:
            raise click.UsageError(f"{parameter.opts[0]} was removed in this version: {instead}")

    return click.option(*names, hidden=True, expose_value=False, is_flag=False, flag_value="", callback=refuse)


# --- how values are read ----------------------------------------------------------------------------------------------


def _assignments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse the KEY=VALUE pairs of --set. Error messages never contain the value, since it may be a secret."""
    pairs = [each.partition("=") for each in given]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise click.BadParameter("must have the form section.key=value")
    return {key.strip(): value for key, _, value in pairs}


def to_seconds(_context: click.Context, _parameter: click.Parameter, given: str) -> float:
    """Parse a duration such as "15m"; return seconds."""
    from watcher.core.config.quantities import read_duration
    from watcher.core.config.values import InvalidValue

    try:
        return read_duration(given)
    except InvalidValue:
        raise click.BadParameter("must be a duration, for example 30s, 15m or 1h") from None


def to_seconds_or_none(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Parse an optional duration; return seconds, or None if the option is not given."""
    return None if given is None else to_seconds(context, parameter, given)


def finite(_context: click.Context, _parameter: click.Parameter, given: float) -> float:
    """Reject NaN, which click's number ranges accept."""
    if given != given:
        raise click.BadParameter("must be a number")
    return given


def to_address(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str:
    """Validate the URL of a service and remove a trailing slash; return "" if the option is not given."""
    from watcher.core.config.addresses import ADDRESS
    from watcher.core.config.values import InvalidValue

    if given is None:
        return ""
    try:
        return str(ADDRESS.read_text(given)).rstrip("/")
    except InvalidValue as unfit:
        example = f"http://{given}" if re.fullmatch(r"[\w.-]+:[0-9]{1,5}", given) else SERVICE
        message = f"must be an http:// or https:// address with a host, for example {example}"
        raise click.BadParameter(message + (f"; {unfit}" if str(unfit) else "")) from None


# --- texts that several options contain -------------------------------------------------------------------------------

IN_SECONDS = "a number without a unit is in seconds"
MOMENT = 'a time span before now (10m or "10 minutes ago"), a date (2026-01-31T12:00:00Z) or unix seconds'

# --- options of commands that read settings; settings.py maps them to keys -------------------------------------------

CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML settings file. [default: environment variable LOAD_WATCHER_CONFIG, otherwise load-watcher.toml in the "
    "working directory, if it exists]",
)
SET = click.option(
    "--set",
    "assigned",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_assignments,
    help="Set any setting by its full key, for example "
    "refresh.max_staleness=2m; can be repeated. docs/reference/settings.md "
    "lists the keys. If a key has an option of its own, that option takes precedence.",
)
LOGGING = (
    click.option(
        "--log-level",
        metavar="LEVEL",
        help="Lowest level of messages to log: debug, info, warning, error or critical (log.level). [default: info]",
    ),
    click.option(
        "--log-format",
        metavar="FORMAT",
        help="Log format: text, or json with one object per line (log.format). [default: text]",
    ),
    click.option(
        "-v", "--verbose", is_flag=True, help="Same as --log-level debug; --log-level takes precedence if it is given."
    ),
)


def node_option(table: str) -> Option:
    """Return the option --node; it sets the key `node` of this table."""
    return click.option(
        "--node",
        metavar="NAME",
        help=f"Name of this node in Kubernetes ({table}.node). [default: environment variable NODE_NAME, otherwise the "
        "host name]",
    )


def listening_options(table: str, *, port: int, protected: bool) -> tuple[Option, ...]:
    """Return --host and --port; they set keys of this table. `protected`: other hosts need the table's token_file."""
    condition = f"; {table}.token_file is required unless this is a loopback address" if protected else ""
    return (
        click.option(
            "--host",
            metavar="ADDRESS",
            help=f"IP address or host name to listen on ({table}.host){condition}. [default: 127.0.0.1]",
        ),
        click.option(
            "--port",
            metavar="PORT",
            help=f"TCP port to listen on; 0 selects a free port ({table}.port). [default: {port}]",
        ),
    )


def store_url(default: str) -> Option:
    return click.option(
        "--store-url",
        metavar="URL",
        help="Database: sqlite:///FILE (relative to the working directory), sqlite:////PATH/FILE or "
        f"postgresql://USER@HOST/DATABASE (store.url). [default: {default}]",
    )


STORE_URL = store_url("sqlite:///load-watcher.db")


def service_options(*, interval: str, database: Option) -> tuple[Option, ...]:
    """Return the options that serve and demo share; `interval` is the default of --interval."""
    return (
        click.option(
            "--interval",
            metavar="DURATION",
            help=f"Interval at which samples are fetched, 1s to 10m (refresh.interval); {IN_SECONDS}. [default: "
            f"{interval}]",
        ),
        *listening_options("server", port=2020, protected=False),
        database,
        *LOGGING,
        SET,
    )


SERVE = (
    CONFIG,
    click.option(
        "--provider",
        metavar="NAME",
        help="Source of samples: host, metrics-server, prometheus, influxdb, datadog, replay, or a "
        "provider of an installed package (provider.name). [default: metrics-server inside a cluster, otherwise host]",
    ),
    click.option(
        "--address",
        metavar="URL",
        help="URL of the source (provider.address). Required for prometheus and influxdb; datadog has a "
        "default; not used by other providers.",
    ),
    click.option(
        "--trace",
        metavar="FILE",
        help="Trace, or SQLite database of a load-watcher, that the provider replay replays (provider.trace). "
        "Required for replay.",
    ),
    click.option(
        "--speed",
        metavar="X",
        help="Speed of the provider replay, as a multiple of real time, 0.01 to 1440 (provider.speed). Samples have "
        "current timestamps; at the end the replay starts again, unless provider.at_end is stop. [default: 1]",
    ),
    *service_options(interval="1m", database=STORE_URL),
)

# --- options of commands that send requests to a running service ------------------------------------------------------


def service_url(description: str) -> Callable[[Command], Command]:
    """Return the option --url with the default address of `serve`; `description` is the start of its help text."""
    return click.option(
        "--url",
        default=SERVICE,
        envvar=URL_VARIABLE,
        show_envvar=True,
        show_default=True,
        callback=to_address,
        metavar="URL",
        help=f"{description} Requests time out after 30s.",
    )


def token_file(description: str) -> Callable[[Command], Command]:
    return click.option("--token-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=description)


TOKEN_FILE = token_file("File with the service's bearer token, if it requires one. [default: no token]")
CLIENT_OPTIONS = (service_url("Base URL of the service."), TOKEN_FILE)


class OutputFormat(click.Choice[str]):
    """The formats of --output. The message for any other value names the option for files."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices and ("." in str(value) or "/" in str(value)):
            formats = ", ".join(self.choices)
            self.fail(f"is a format ({formats}), given {value!r}; to name a file, use --file {value}", param, ctx)
        return super().convert(value, param, ctx)


def output_option(*more: str) -> Option:
    """Return --output: the format of what a command prints, text, json or one of `more`."""
    return click.option(
        "-o",
        "--output",
        type=OutputFormat(("text", "json", *more)),
        default="text",
        help="Format of the output. [default: text]",
    )


OUTPUT = output_option()


def to_address_or_none(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Like `to_address`, but return None if the option is not given."""
    return None if given is None else to_address(context, parameter, given)


def watcher_url(service: str) -> Option:
    """Return --watcher with LOAD_WATCHER_URL, for a process that reads the load of the service."""
    return click.option(
        "--watcher",
        envvar=URL_VARIABLE,
        show_envvar=True,
        callback=to_address_or_none,
        metavar="URL",
        help=f"Base URL of {service}",
    )


def read_token(file: Path | None) -> str | None:
    """Read the token of --token-file. Raises BadParameter, which never contains the file's content."""
    if file is None:
        return None
    from watcher.decoding.text import read_text

    try:
        token = read_text(file).strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.BadParameter(f"cannot read {file}: {why}", param_hint="--token-file") from None
    if not token.isprintable() or not token:
        raise click.BadParameter(f"{file} must contain the token on a single line", param_hint="--token-file")
    return token
