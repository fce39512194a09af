"""`load-watcher db`: the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import complain
from load_watcher.cli.options import CONFIG, SET, STORE_URL, with_options
from load_watcher.cli.progress import progress_of
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings
    from watcher.store.database import Database


@click.group()
def db() -> None:
    """Look after the database."""


@db.command()
@with_options(CONFIG, STORE_URL, SET)
def upgrade(**given: Any) -> None:
    """Bring the database up to date, making it if there is none."""
    from watcher.store import commands

    _run_on_database(commands.upgrade, given)


@db.command()
@with_options(CONFIG, STORE_URL, SET)
def current(**given: Any) -> None:
    """Say which version the database has."""
    from watcher.store import commands

    _run_on_database(commands.current, given)


@db.command()
@with_options(CONFIG, STORE_URL, SET)
def vacuum(**given: Any) -> None:
    """Give back the disk space of what was deleted. No service may have the file open."""
    from watcher.store import commands

    _run_on_database(commands.vacuum, given)


@db.command("copy")
@click.option("--from", "source", required=True, metavar="URL", help="The database to copy from.")
@click.option("--from-watcher", metavar="NAME", help="Whose rows, where there are several watchers'.")
@click.option("--to", "store_url", metavar="URL", help="The database to copy to; else store.url.")
@click.option("--replace", is_flag=True, help="Remove what this watcher has there already.")
@with_options(CONFIG, SET)
def copy_database(source: str, from_watcher: str | None, replace: bool, **given: Any) -> None:
    """Copy samples and windows from one database to another, all or nothing: to change store.url without loss.

    Whichever of the two is of an older schema is upgraded first, as serve would. Neither may be in use by a service
    with the same rows. store.password_file is for PostgreSQL at --to, or at --from where --to is a file.
    """
    from watcher.store import commands, copying

    settings = load_or_exit(given, beside=NO_SOURCE)
    with _store_errors():
        target = _database_of(settings)
        password_file = None if target.waits else settings.store.password_file
        origin = commands.database_at(source, watcher=from_watcher or "", password_file=password_file)
        if origin.waits and from_watcher is None:
            origin.watcher = copying.only_watcher(origin)
        with progress_of("copying") as tell:
            said = copying.copy(origin, target, upgrade=settings.store.upgrade, replace=replace, progress=tell)
        click.echo(said)


def _database_of(settings: Settings) -> Database:
    """The database that the settings name, with this watcher's rows; StoreError where there is no way to it."""
    from watcher.store.commands import database_at

    store = settings.store
    return database_at(store.url, watcher=settings.watcher, password_file=store.password_file)


def _run_on_database(action: Callable[[Database], str], given: Mapping[str, Any]) -> None:
    """Print what `action` says of the database that the settings name."""
    # An init container upgrades before anything else is known.
    settings = load_or_exit(given, beside=NO_SOURCE)
    with _store_errors():
        click.echo(action(_database_of(settings)))


@contextmanager
def _store_errors() -> Iterator[None]:
    """Print what cannot be done with a database, with the cure, and exit 1."""
    from watcher.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        complain(error, error.hint)
        raise SystemExit(1) from None
