"""`load-watcher config`: validates and shows the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from load_watcher.cli.options import SERVE, with_options
from load_watcher.cli.settings import load_or_exit, scheduler_notices


@click.group()
def config() -> None:
    """Validate a settings file, or show the settings in effect."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Validate a TOML settings file.

    Validates the settings that result from FILE and the environment variables, and prints every problem. The variable
    LOAD_WATCHER_CONFIG is ignored. With extender.watcher, the windows in [scheduler] are those of the watcher and are
    not checked.

    Exit code 0: valid; 2: invalid, or FILE does not exist.
    """
    settings = load_or_exit({"config": file, "assigned": {}}, own_windows=None)
    for notice in (*settings.notices, *scheduler_notices(settings)):
        click.echo(f"note: {notice}", err=True)
    click.echo("ok")


@config.command("show")
@with_options(*SERVE)
def show_settings(**given: Any) -> None:
    """Print the settings in effect as TOML, with the origin of each. Secrets are replaced by <hidden>.

    Exit code 0: printed; 2: the arguments or the settings are invalid.
    """
    from watcher.platform.settings.reference import show

    click.echo(show(load_or_exit(given)), nl=False)
