"""`load-watcher db`: maintenance of the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import print_error
from load_watcher.cli.options import CONFIG, OUTPUT, SET, STORE_URL, with_options
from load_watcher.cli.printing import print_facts
from load_watcher.cli.progress import progress_of
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings
    from watcher.store.commands import DatabaseReport
    from watcher.store.engines.database import Database


@click.group(short_help="Upgrade, inspect or copy the database.")
def db() -> None:
    """Upgrade, inspect, compact and copy the database."""


@db.command(short_help="Upgrade or create the database.")
@with_options(CONFIG, STORE_URL, SET, OUTPUT)
def upgrade(**given: Any) -> None:
    """Upgrade or create the database.

    An older database gets the schema of this version.

    With -o json, prints {"database", "schema", "newest_schema", "schema_before"}; null for no schema.

    Exit code 0: the schema is current; 1: the upgrade failed; 2: the
    arguments or the settings are invalid.
    """
    from watcher.store import commands

    _run_on_database(commands.upgrade, given)


@db.command(short_help="Print the schema version of the database.")
@with_options(CONFIG, STORE_URL, SET, OUTPUT)
def current(**given: Any) -> None:
    """Print the schema version of the database, and whether it needs an upgrade. Changes nothing.

    With -o json, prints {"database", "schema", "newest_schema"}; "schema" is null if the database does not exist.

    Exit code 0: printed, also if the database does not exist; 1: the database is not accessible; 2: the arguments or
    the settings are invalid.
    """
    from watcher.store import commands

    _run_on_database(commands.current, given)


@db.command(short_help="Return unused disk space of the database.")
@with_options(CONFIG, STORE_URL, SET, OUTPUT)
def vacuum(**given: Any) -> None:
    """Return the disk space of deleted rows to the file system.

    SQLite: no service may have the file open. PostgreSQL: the tables are locked meanwhile, and services wait.

    With -o json, prints {"database", "schema", "newest_schema", "bytes_before", "bytes_after"}, without the last two if
    the database does not exist.

    Exit code 0: done, or the database does not exist; 1: it failed; 2: the arguments or the settings are invalid.
    """
    from watcher.store import commands

    _run_on_database(commands.vacuum, given)


@db.command("copy", short_help="Copy the rows to another database.")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    help="URL of the database to copy from: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
)
@click.option(
    "--from-watcher",
    metavar="NAME",
    help="Name of the watcher whose rows to copy from PostgreSQL: CLUSTER_NAME/WATCHER_ID (cluster.name and "
    "store.watcher_id), or WATCHER_ID if cluster.name is not set. Required if several watchers share the source "
    "database. [default: the only one]",
)
@click.option(
    "--to",
    "store_url",
    metavar="URL",
    help="URL of the database to copy to: sqlite:///FILE or postgresql://USER@HOST/DATABASE. [default: store.url]",
)
@click.option(
    "--replace",
    is_flag=True,
    help="First delete the rows that the watcher already has in the target. [default: fail if there are any]",
)
@with_options(CONFIG, SET, OUTPUT)
def copy_database(source: str, from_watcher: str | None, replace: bool, **given: Any) -> None:
    """Copy samples, windows and decisions to another database.

    Copies all rows of one watcher in one transaction, to change store.url without data loss. If the source or the
    target has an older schema, it is upgraded first; if store.upgrade is false, the copy fails. Stop the services that
    use these rows first, otherwise the copy fails. store.password_file applies to the database of --to if that is
    PostgreSQL, otherwise to that of --from.

    With -o json, prints {"from", "to", "rows", "bytes"}.

    Exit code 0: copied; 1: nothing was copied, for example because --from is not a valid database URL; 2: an option is
    missing, or the settings or --to are invalid.
    """
    from watcher.store import commands, copying
    from watcher.store.settings import StoreSettings

    settings = load_or_exit(given, overrides=NO_SOURCE)
    store = settings[StoreSettings]
    with _store_errors():
        target = _database_of(settings)
        password_file = None if target.retries_connection else store.password_file
        origin = commands.database_at(source, watcher=from_watcher or "", password_file=password_file)
        if origin.retries_connection and from_watcher is None:
            origin.watcher = copying.only_watcher(origin)
        with progress_of("copying") as tell:
            done = copying.copy(origin, target, upgrade=store.upgrade, replace=replace, progress=tell)
    document = {"from": done.source, "to": done.target, "rows": done.rows, "bytes": done.size}
    print_facts(document, done.text, output=given["output"])


def _database_of(settings: Settings) -> Database:
    """Return the database of the settings, for this watcher's rows. Raises StoreError if it is not accessible."""
    from watcher.platform.logs import ClusterSettings
    from watcher.store.commands import database_at
    from watcher.store.settings import StoreSettings

    store = settings[StoreSettings]
    watcher = store.watcher_name(settings[ClusterSettings].name)
    return database_at(store.url, watcher=watcher, password_file=store.password_file)


def _run_on_database(action: Callable[[Database], DatabaseReport], given: Mapping[str, Any]) -> None:
    """Run `action` on the database of the settings and print its result."""
    # No provider is needed: an init container upgrades the database before the source is configured or reachable.
    settings = load_or_exit(given, overrides=NO_SOURCE)
    with _store_errors():
        report = action(_database_of(settings))
    print_facts(report.document, report.text, output=given["output"])


@contextmanager
def _store_errors() -> Iterator[None]:
    """Print a StoreError with its hint and exit with code 1."""
    from watcher.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        print_error(error, error.hint)
        raise SystemExit(1) from None
