"""`load-watcher config`: the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from load_watcher.cli.options import SERVE, with_options
from load_watcher.cli.settings import load_or_exit


@click.group()
def config() -> None:
    """Check settings, or show those in effect."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say everything that is wrong with FILE, as serve would find it here; exit 2 if anything is."""
    settings = load_or_exit({"config": file, "assigned": {}})
    for notice in settings.notices:
        click.echo(f"note: {notice}", err=True)
    click.echo("ok")


@config.command("show")
@with_options(*SERVE)
def show_settings(**given: Any) -> None:
    """Print the settings in effect and where each is from, without anything secret."""
    from watcher.platform.settings.reference import show

    click.echo(show(load_or_exit(given)), nl=False)
