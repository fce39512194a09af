"""The interface between the store and a database: ownership, schema revision, locking, and transactions.

store.url may refer to a missing database, to one left behind by `kill -9`, to one of an older or newer version, to a
damaged one, to one of another program, or to an unreachable server. The first two are opened as they are. An older
schema is migrated in one transaction. In all other cases an error names the problem and a fix, and the database is not
changed. Two services writing the same rows would overwrite each other's samples, so the first one holds a lock that is
released when its process ends.

sqlite.py and postgresql.py implement the interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from watcher.store.codec import CodecError
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.tables import REVISIONS, Rows, metadata

READERS = 2  # read connections, in addition to the one write connection


@dataclass(frozen=True, slots=True)
class DatabaseCheck:
    """Result of a check that changes nothing. `where` is the database's display name; `revision` is None without a
    schema, `newest` the newest revision known to this version; `holder` describes the process that has the database
    open ("" if none) and `hint` how to resolve that; `size` and `free` are in bytes, None if unknown."""

    where: str
    revision: str | None
    newest: str
    holder: str
    hint: str
    size: int | None
    free: int | None


class Database(ABC):
    """A database, and the watcher that this process writes rows of.

    `name`: display name without secrets; `watcher`: selects the rows; `retries_connection`: whether a failed connection
    is retried later (a server may be restarted). The order of calls is `acquire`, `prepare`, transactions, `release`;
    after a failure `acquire` and `prepare` may be called again.
    """

    name: str
    watcher: str
    retries_connection: bool

    # --- opening and closing -----------------------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, *, owner: str) -> None:
        """Lock this watcher's rows. Raises StoreInUse, which names the holder; `owner` describes this process to other
        processes."""

    @abstractmethod
    def prepare(self, *, upgrade: bool) -> tuple[str | None, str]:
        """Check the database, and migrate it if `upgrade` is set. Returns the revisions before (None: new) and after.

        Raises StoreUnusable, or StoreError if the schema is older and `upgrade` is not set.
        """

    @abstractmethod
    def release(self) -> None:
        """Close the connections and release the lock. Safe to call twice, or without `acquire`."""

    @abstractmethod
    def set_aside(self, *, now: float) -> str | None:
        """Rename an unusable database. Returns its new name, None if not supported. `now` is in unix seconds."""

    def __enter__(self) -> Self:
        """Use the database for the duration of a command; leaving the context calls `release`."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- transactions ------------------------------------------------------------------------------------------------

    @abstractmethod
    def writing(self) -> AbstractContextManager[Rows]:
        """A write transaction; only for the writer thread."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Rows]:
        """A read-only transaction on a consistent snapshot; for any thread."""

    def check_not_replaced(self) -> None:  # noqa: B027  (not needed for a server)
        """Raise OSError if the database was moved or replaced, so that writes would be lost."""

    # --- space -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def size(self) -> int:
        """Size in bytes, for the status."""

    @abstractmethod
    def used_bytes(self, mine: Rows) -> int:
        """Size in bytes that is compared with store.max_size."""

    @abstractmethod
    def release_space(self, *, most: int) -> bool:
        """Release some free space in one short step. Returns whether more may remain. `most` is store.max_size in
        bytes."""

    @abstractmethod
    def can_remove(self, mine: Rows, watcher: str) -> bool:
        """Whether no process holds the lock of `watcher`; if so, it stays available until this transaction ends."""

    # --- commands ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def revision(self) -> str | None:
        """The revision of the schema, None if it does not exist yet. Changes nothing, and needs no lock.

        Raises StoreUnusable if it is not a database, belongs to another program, or is newer than this version.
        """

    @abstractmethod
    def check(self) -> DatabaseCheck:
        """Check without changes whether a service could start. Raises StoreError if not, except for a held lock."""

    @abstractmethod
    def upgrade(self, *, owner: str) -> str | None:
        """Migrate the database to the newest schema, or create it. Returns the previous revision, None if it is new."""

    @abstractmethod
    def vacuum(self, *, owner: str) -> tuple[int, int] | None:
        """Vacuum the database. Returns its size in bytes before and after, None if it does not exist yet."""

    # --- errors ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def is_database_error(self, error: BaseException) -> bool:
        """Whether the error comes from the database or the connection, so that a retry may succeed; otherwise the data
        cannot be stored."""

    def is_damage(self, error: BaseException) -> bool:
        """Whether the error shows that stored data is damaged."""
        return isinstance(error, CodecError)

    def mark_damaged(self) -> None:  # noqa: B027  (not needed for a server)
        """Make the next start check the whole database."""

    @property
    @abstractmethod
    def recovery_hint(self) -> str:
        """Hint how to proceed with an unusable database."""

    @abstractmethod
    def to_store_error(self, error: BaseException, *, doing: str) -> StoreError:
        """Convert a failure to an error for the operator; `doing` completes "cannot be …"."""

    @contextmanager
    def store_errors(self, *, doing: str) -> Iterator[None]:
        """Convert exceptions of the database to StoreError; `doing` completes "cannot be …"."""
        kinds: tuple[type[Exception], ...] = (SQLAlchemyError, CodecError, OSError, *self.driver_errors)
        try:
            yield
        except StoreError:
            raise
        except kinds as error:
            if self.is_damage(error):
                raise self.damaged(reason_of(error)) from error
            raise self.to_store_error(error, doing=doing) from error

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that the driver raises if it is used without SQLAlchemy."""
        return ()

    def damaged(self, reason: str) -> StoreUnusable:
        """The error for a damaged database."""
        return StoreUnusable(f"{self.name} is damaged: {reason}", hint=self.recovery_hint)

    # --- revision ----------------------------------------------------------------------------------------------------

    def known_revision(self, versions: Iterable[object]) -> str:
        """The revision stored in alembic_version. Raises StoreUnusable if it is missing or unknown to this version."""
        found = list(versions)
        if not found or not all(isinstance(version, str) and version for version in found):
            raise self.damaged("the table alembic_version contains no revision")
        if len(found) != 1 or found[0] not in REVISIONS:
            raise StoreUnusable(
                f"{self.name} was written by a newer version of load-watcher: its schema is "
                f"{', '.join(map(str, found))}, but the newest schema known to this version is {REVISIONS[-1]}",
                hint="run the newer version again; to continue with this one, " + self.recovery_hint,
            )
        return str(found[0])

    def check_age(self, revision: str | None, *, upgrade: bool) -> None:
        """Raise StoreError if the schema is older than this version's and `upgrade` is not set."""
        if revision not in (None, REVISIONS[-1]) and not upgrade:
            raise StoreError(
                f"{self.name} has schema {revision}, but {REVISIONS[-1]} is needed", hint="run load-watcher db upgrade"
            )


def reason_of(error: BaseException) -> str:
    """The database's error message in one line, without the statement and its parameters."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    primary = getattr(getattr(said, "diag", None), "message_primary", None)  # psycopg's message without "LINE 1: …"
    return primary or " ".join(str(said).split())


# --- migrations ------------------------------------------------------------------------------------------------------


def migrations_folder() -> Path:
    """The directory of the migrations: inside an installed wheel, or at the top of the repository."""
    installed = Path(__file__).parents[2] / "_migrations"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "migrations"


def create_or_migrate(connection: sa.Connection, *, revision: str | None) -> None:
    """Bring the schema to the newest revision inside the caller's transaction; `revision` None: there is no schema."""
    if revision is not None:
        migrate(connection)
        return
    # The same tables as after all migrations, without Alembic, whose import takes a fifth of a first start.
    metadata.create_all(connection)
    connection.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql(f"INSERT INTO alembic_version (version_num) VALUES ('{REVISIONS[-1]}')")


def migrate(connection: sa.Connection, *, folder: Path | None = None) -> None:
    """Migrate the schema to the newest revision inside the caller's transaction."""
    # Local import: a start with a current schema does not need Alembic, which would take a tenth of the start time.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder or migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
