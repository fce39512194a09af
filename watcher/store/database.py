"""What the store asks of a database, whichever it is: whose is it, how old, who else has it, and transactions on it.

Anything may be at store.url: nothing yet, our own database as `kill -9` left it, one of an older or newer version, one
that is damaged, another program's, or nothing that can be reached. Only the first two may be opened as they are. An
older one is brought up to date in one transaction; for the rest there is a message that says which it is and a way out,
and nothing of it is changed. Two services that write the same rows would overwrite each other's samples, so the first
holds a lock that dies with its process.

sqlite.py and postgresql.py say how each of the two does this.
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
from watcher.store.tables import REVISIONS, Rows

READERS = 2  # connections that read beside the one that writes


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. `where` is for people; `revision` is None where there is no schema yet, `newest` the one that
    this version has; `holder` says in words who has the database open, "" if nobody, and `cure` what then to do; sizes
    in bytes, None where the database does not tell."""

    where: str
    revision: str | None
    newest: str
    holder: str
    cure: str
    size: int | None
    free: int | None


class Database(ABC):
    """A database, and the one watcher whose rows this process writes in it.

    `name`: how messages call it, without anything secret; `watcher`: whose rows; `waits`: whether a failure to reach it
    is waited out, because it is a server that others may restart. The order of calls is `acquire`, `prepare`, then
    transactions, then `release`; after a failure `acquire` and `prepare` may be called again.
    """

    name: str
    watcher: str
    waits: bool

    # --- life --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, *, owner: str) -> None:
        """Take the lock on this watcher's rows. StoreInUse names who has it; `owner` is what others are told of us."""

    @abstractmethod
    def prepare(self, *, upgrade: bool) -> tuple[str | None, str]:
        """See whose it is, how old and whole, and bring it up to date where `upgrade` allows: revision before and now.

        Raises StoreUnusable, or StoreError if it is older and must not be upgraded.
        """

    @abstractmethod
    def release(self) -> None:
        """Close the connections and give the lock back. Safe to call twice, or without `acquire`."""

    @abstractmethod
    def set_aside(self, *, now: float) -> str | None:
        """Move what cannot be used out of the way, keeping it; its new name, None where that cannot be done."""

    def __enter__(self) -> Self:
        """For the length of a command; whatever it opened is closed after it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- transactions ------------------------------------------------------------------------------------------------

    @abstractmethod
    def writing(self) -> AbstractContextManager[Rows]:
        """A transaction that writes; for the one thread that does."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Rows]:
        """A transaction that sees one state of the database and changes nothing; for any thread."""

    def check_still_there(self) -> None:  # noqa: B027  (a server says so itself)
        """Raise OSError where writing would go on and nobody would ever read it."""

    # --- space -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def size(self) -> int:
        """Bytes that it takes, for the status."""

    @abstractmethod
    def used_bytes(self, mine: Rows) -> int:
        """Bytes that count against store.max_size."""

    @abstractmethod
    def give_space_back(self, *, most: int) -> bool:
        """Give some of what is free back to whoever can use it, in one short step; whether there may be more."""

    @abstractmethod
    def may_forget(self, mine: Rows, watcher: str) -> bool:
        """Whether no process holds the lock of another watcher; if so, none takes it before this transaction ends."""

    # --- commands ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def revision(self) -> str | None:
        """Its schema's revision, None if there is none yet. Changes nothing, and needs no lock.

        Raises StoreUnusable if it is no database, not ours, or newer than this version knows.
        """

    @abstractmethod
    def look(self) -> Look:
        """What a start would find. Raises StoreError where it would fail, but for the lock. Changes nothing."""

    @abstractmethod
    def upgrade(self, *, owner: str) -> str | None:
        """Bring it up to date, making it if there is none; the revision before."""

    @abstractmethod
    def vacuum(self, *, owner: str) -> tuple[int, int] | None:
        """Rewrite it without gaps; bytes before and after, None if there is none yet."""

    # --- errors ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def is_trouble(self, error: BaseException) -> bool:
        """Whether this is about the database or the way to it, so that the same may work later; else it is about what
        was to be stored."""

    def is_damage(self, error: BaseException) -> bool:
        """Whether this says that what is stored is not what was written."""
        return isinstance(error, CodecError)

    def remember_damage(self) -> None:  # noqa: B027  (a server checks itself)
        """Have the next start look closely."""

    @property
    @abstractmethod
    def way_out(self) -> str:
        """What can be done about one that cannot be used."""

    @abstractmethod
    def translate(self, error: BaseException, *, doing: str) -> StoreError:
        """A failure as what the operator is told; `doing` completes "cannot be …"."""

    @contextmanager
    def translated(self, *, doing: str) -> Iterator[None]:
        """Turn what the database raises into StoreError; `doing` completes "cannot be …"."""
        kinds: tuple[type[Exception], ...] = (SQLAlchemyError, CodecError, OSError, *self.driver_errors)
        try:
            yield
        except StoreError:
            raise
        except kinds as error:
            if self.is_damage(error):
                raise self.damaged(reason_of(error)) from error
            raise self.translate(error, doing=doing) from error

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises where SQLAlchemy is not in between."""
        return ()

    def damaged(self, reason: str) -> StoreUnusable:
        """The error that says so."""
        return StoreUnusable(f"{self.name} is damaged: {reason}", hint=self.way_out)

    # --- whose, how old ----------------------------------------------------------------------------------------------

    def known_revision(self, versions: Iterable[object]) -> str:
        """The revision that alembic_version says, which must be one that this version knows."""
        found = list(versions)
        if not found or not all(isinstance(version, str) and version for version in found):
            raise self.damaged("it does not say what version it has")
        if len(found) != 1 or found[0] not in REVISIONS:
            raise StoreUnusable(
                f"{self.name} was written by a newer version of load-watcher: its schema is "
                f"{', '.join(map(str, found))}, this version knows {REVISIONS[-1]}",
                hint="run the newer version again; to go on with this one, " + self.way_out,
            )
        return str(found[0])

    def check_age(self, revision: str | None, *, upgrade: bool) -> None:
        """Raise StoreError if the schema is older than this version's and must not be upgraded."""
        if revision not in (None, REVISIONS[-1]) and not upgrade:
            raise StoreError(
                f"{self.name} has schema {revision}, and {REVISIONS[-1]} is needed", hint="run load-watcher db upgrade"
            )


def reason_of(error: BaseException) -> str:
    """What the database said in one line, without our statement and its parameters."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    primary = getattr(getattr(said, "diag", None), "message_primary", None)  # of psycopg, without LINE 1: …
    return primary or " ".join(str(said).split())


# --- migrations ------------------------------------------------------------------------------------------------------


def migrations_folder() -> Path:
    """Where the migrations are: inside an installed wheel, else at the top of the repository."""
    installed = Path(__file__).parents[1] / "_migrations"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "migrations"


def migrate(connection: sa.Connection, *, folder: Path | None = None) -> None:
    """Bring the schema up to date, inside the transaction that the caller holds: all of it or nothing."""
    # Here, since a start with an up-to-date database does not need it, and it would be a tenth of that start.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder or migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
