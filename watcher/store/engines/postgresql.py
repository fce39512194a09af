"""The database on a PostgreSQL server, which may be shared by several watchers, each with separate rows.

The writer of a watcher's rows holds an advisory lock on the watcher's name, on the same connection that it writes with.
If the connection is lost, the lock is released too, and nothing is written until both are restored. Therefore two
processes with the same name never write at the same time, and a process that ended leaves no lock behind. Migrations
run in one transaction under a second advisory lock: if several watchers start with an empty database, one creates the
tables and the others wait.

Connections must be direct or through a pooler in session mode, because advisory locks belong to a session.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from watcher.core.messages import install_extra
from watcher.decoding.text import read_text
from watcher.store import schema
from watcher.store import tables as store_tables
from watcher.store.engines.database import READERS, Database, DatabaseCheck, create_or_migrate, reason_of
from watcher.store.errors import StoreError, StoreInUse, StoreUnreachable, StoreUnusable
from watcher.store.tables import REVISIONS, Rows

if TYPE_CHECKING:
    from types import ModuleType

    import psycopg

CONNECT_SECONDS = 5
POOL_SECONDS = 5.0
LOCK_TIMEOUT = "5s"  # the session of a killed process ends after its current statement
# TCP keepalives detect a lost peer within seconds instead of hours, on both ends. The server's settings matter because
# it holds the lock until it detects that the client is gone.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_CLIENT = {**_KEEPALIVE, "keepalives": 1, "tcp_user_timeout": 25_000, "connect_timeout": CONNECT_SECONDS}
_SESSION = {f"tcp_{name}": str(value) for name, value in _KEEPALIVE.items()} | {
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
_WRITER = {**_SESSION, "statement_timeout": "60s"}
_READER = {**_SESSION, "statement_timeout": "10s"}


def server_of(url: sa.URL, *, watcher: str, password_file: Path | None) -> PostgresqlServer:
    """The database of a postgresql:// URL. Raises StoreError if psycopg is not installed or the URL requests another
    driver."""
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(
            f"unsupported PostgreSQL driver {url.drivername}",
            hint="write postgresql://user@host/database; the driver is psycopg 3",
        )
    try:
        import psycopg
    except ImportError as error:
        raise StoreError(f"PostgreSQL requires the package psycopg: {error}", hint=install_extra("postgres")) from error
    return PostgresqlServer(
        url.set(drivername="postgresql+psycopg"), watcher=watcher, password_file=password_file, driver=psycopg
    )


class PostgresqlServer(Database):
    """The tables in the first schema of the search path, with the rows of one watcher."""

    retries_connection = True

    def __init__(self, url: sa.URL, *, watcher: str, password_file: Path | None, driver: ModuleType) -> None:
        port = f":{url.port}" if url.port else ""
        self.name = f"postgresql://{url.host or ''}{port}/{url.database or ''}"
        self.watcher = watcher
        self._url = url
        self._password_file = password_file
        self._driver = driver
        # Distinguishes the sessions of this process from other sessions.
        self._session = f"load-watcher on {socket.gethostname()[:30]} {secrets.token_hex(4)}"
        self._writer = self._engine(connections=1, settings=_WRITER)
        self._reader = self._engine(connections=READERS, settings=_READER, writes=False)
        sa.event.listen(self._writer, "connect", self._lock_on_connect)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def acquire(self, *, owner: str) -> None:
        """Connect; this also takes the lock (see `_lock_on_connect`)."""
        with self.store_errors(doing="reached"), self._writer.connect():
            pass

    def prepare(self, *, upgrade: bool) -> tuple[str | None, str]:
        with self.store_errors(doing="opened"):
            with self._writer.begin() as connection:
                before = self._revision(connection)
            self.check_age(before, upgrade=upgrade)
            if before != REVISIONS[-1]:
                before = self._migrate(self._writer)
        return before, REVISIONS[-1]

    def _migrate(self, engine: sa.Engine) -> str | None:
        """Wait for other migrations, then migrate if still necessary. Returns the revision before this migration."""
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            key = _key(self._schema(connection), "migration")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
            before = self._revision(connection)
            if before != REVISIONS[-1]:
                create_or_migrate(connection, revision=before)
            return before

    def release(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    def set_aside(self, *, now: float) -> str | None:
        """Not supported, because the database may have other users; returns None."""
        return None

    # --- connections -------------------------------------------------------------------------------------------------

    def _engine(self, *, connections: int, settings: Mapping[str, str], writes: bool = True) -> sa.Engine:
        engine = sa.create_engine(
            self._url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            pool_pre_ping=True,  # reconnect silently if the server was restarted between two ticks
            hide_parameters=True,
            # A read transaction queries hours and minutes separately; an hour may be compacted between both queries.
            isolation_level="READ COMMITTED" if writes else "REPEATABLE READ",
            connect_args={**_CLIENT, "application_name": self._session} | _given(self._url),
        )

        @sa.event.listens_for(engine, "do_connect")
        def with_password(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
            if self._password_file is not None:
                parameters["password"] = self._password(self._password_file)

        @sa.event.listens_for(engine, "connect")
        def set_up(connection: psycopg.Connection[Any], _record: Any) -> None:
            wanted = {**settings, "default_transaction_read_only": "off" if writes else "on"}
            with _closed_on_failure(connection):
                for name, value in wanted.items():
                    connection.execute("SELECT set_config(%s, %s, false)", (name, value))
                connection.commit()

        return engine

    def _password(self, path: Path) -> str:
        """The password from the file. It is read for each connection, so that it can be changed at run time."""
        try:
            return read_text(path).strip()
        except (OSError, msgspec.DecodeError) as error:
            raise StoreUnreachable(
                f"cannot read the password file {path}: {error}", hint="see store.password_file"
            ) from error

    def _lock_on_connect(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        with _closed_on_failure(connection):
            (schema_name,) = connection.execute("SELECT current_schema()").fetchone() or (None,)
            key = _key(str(schema_name), f"watcher {self.watcher}")
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
            try:
                connection.execute("SELECT pg_advisory_lock(%s)", (key,))
            except self._driver.errors.LockNotAvailable:
                connection.rollback()
                raise self._in_use(connection.execute(_HOLDER, {"key": key}).fetchone()) from None
            connection.commit()

    def _in_use(self, holder: Sequence[Any] | None) -> StoreInUse:
        who = "another process" if holder is None else self._in_words(holder)
        return StoreInUse(f'the watcher "{self.watcher}" in {self.name} is in use by {who}', hint=_OTHER_NAME)

    def _in_words(self, holder: Sequence[Any]) -> str:
        session, address, since = holder
        if session == self._session:
            return "an earlier connection of this process that the server has not closed yet"
        who = session.rpartition(" ")[0] if session.startswith("load-watcher on ") else "another process"
        return f"{who} ({address}, connected since {since})"

    @staticmethod
    def _schema(connection: sa.Connection) -> str:
        name = connection.execute(sa.select(sa.func.current_schema())).scalar_one()
        if name is None:
            raise StoreError(
                "no schema of the search path exists", hint="create the schema, or change options= in store.url"
            )
        return str(name)

    # --- transactions ------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        with self._writer.begin() as connection:
            yield Rows(connection, self.watcher)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with self._reader.begin() as connection:
            yield Rows(connection, self.watcher)

    # --- space -------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Size of this watcher's payloads in bytes; the tables also contain rows of other watchers and deleted rows."""
        with self.writing() as mine:
            return schema.stored_bytes(mine)

    def used_bytes(self, mine: Rows) -> int:
        return schema.stored_bytes(mine)

    def release_space(self, *, most: int) -> bool:
        """Nothing to do: autovacuum reuses free space. Returns False."""
        return False

    def can_remove(self, mine: Rows, watcher: str) -> bool:
        key = _key(self._schema(mine.connection), f"watcher {watcher}")
        return bool(mine.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar_one())

    # --- commands: without a watcher's lock, so that they work while watchers run ------------------------------------

    def revision(self) -> str | None:
        with self.store_errors(doing="read"), self._reader.begin() as connection:
            return self._revision(connection)

    def check(self) -> DatabaseCheck:
        with self.store_errors(doing="read"), self._reader.begin() as connection:
            revision = self._revision(connection)
            writable = _FIRST_RIGHTS if revision is None else _RIGHTS
            if not connection.exec_driver_sql(writable).scalar_one():
                raise StoreError(f"{self.name} cannot be written: standby server, or missing privileges", hint=_GRANT)
            key = _key(self._schema(connection), f"watcher {self.watcher}")
            holder = connection.exec_driver_sql(_HOLDER, {"key": key}).one_or_none()
            return DatabaseCheck(
                where=self.name,
                revision=revision,
                newest=REVISIONS[-1],
                holder="" if holder is None else self._in_words(holder),
                hint=_OTHER_NAME,
                size=None,
                free=None,
            )

    def _revision(self, connection: sa.Connection) -> str | None:
        tables = set(sa.inspect(connection).get_table_names(schema=self._schema(connection)))
        ours = tables & set(store_tables.metadata.tables)
        if "alembic_version" not in tables:
            if ours:
                raise self._not_ours(ours)
            return None
        if not {"tick", "sample_block"} <= ours:
            raise self._not_ours({"alembic_version"})
        return self.known_revision(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars())

    def _not_ours(self, tables: set[str]) -> StoreUnusable:
        return StoreUnusable(
            f"{self.name} contains tables of another program with conflicting names ({', '.join(sorted(tables))})",
            hint="use a separate database for load-watcher, or a schema: ?options=-csearch_path%3Dload_watcher",
        )

    def upgrade(self, *, owner: str) -> str | None:
        engine = self._engine(connections=1, settings=_WRITER)
        with self.store_errors(doing="upgraded"), _disposed(engine):
            return self._migrate(engine)

    def vacuum(self, *, owner: str) -> tuple[int, int] | None:
        if self.revision() is None:
            return None
        tables = ", ".join(store_tables.metadata.tables)
        engine = self._engine(connections=1, settings={**_WRITER, "statement_timeout": "0", "lock_timeout": "60s"})
        with self.store_errors(doing="vacuumed"), _disposed(engine), engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            before = _size_of_tables(connection)
            connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {tables}")
            return before, _size_of_tables(connection)

    # --- errors ------------------------------------------------------------------------------------------------------

    def is_database_error(self, error: BaseException) -> bool:
        if isinstance(error, (StoreError, OSError, PoolTimeout)) or self.is_damage(error):
            return True
        said = error.orig if isinstance(error, DBAPIError) else error
        driver = self._driver
        if isinstance(said, (driver.OperationalError, driver.InterfaceError, driver.InternalError)):
            return True
        # Errors with an SQLSTATE come from the server (such as a missing table); psycopg's own errors are bugs.
        return isinstance(said, driver.ProgrammingError) and said.sqlstate is not None

    @property
    def recovery_hint(self) -> str:
        return "use another database in store.url, or restore this one; only the history of the windows is lost"

    def to_store_error(self, error: BaseException, *, doing: str) -> StoreError:
        said = error.orig if isinstance(error, DBAPIError) else error
        message = f"{self.name} cannot be {doing}: {reason_of(error)}"
        if isinstance(said, (self._driver.OperationalError, self._driver.InterfaceError, PoolTimeout, OSError)):
            return StoreUnreachable(message, hint="check the server, the network, and user and password in store.url")
        if getattr(said, "sqlstate", None) == "42501":  # insufficient_privilege
            return StoreError(message, hint=_GRANT)
        return StoreError(message, hint=_PAGE)

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        error: type[Exception] = self._driver.Error
        return (error,)


_OTHER_NAME = "stop the other process, or set a different store.watcher_id for this one"
_PAGE = "docs/reference/store.md describes store.url and the requirements for the database"
_GRANT = "allow the user of store.url to create tables in its schema and write them: GRANT CREATE, USAGE ON SCHEMA …"
_FIRST_RIGHTS = """
    SELECT NOT pg_is_in_recovery() AND has_schema_privilege(current_schema(), 'CREATE')
"""
_RIGHTS = """
    SELECT NOT pg_is_in_recovery() AND has_table_privilege('tick', 'INSERT')
"""
_HOLDER = """
    SELECT application_name, client_addr::text, to_char(backend_start, 'YYYY-MM-DD HH24:MI:SS TZ')
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((classid::bigint << 32) | objid::bigint) = %(key)s
"""


def _key(schema_name: str, of: str) -> int:
    """The number of an advisory lock (signed 64-bit integer), derived from the schema and the locked object."""
    digest = hashlib.sha256(f"load-watcher\0{schema_name}\0{of}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _given(url: sa.URL) -> dict[str, Any]:
    """Connection settings in the URL's query, which override the defaults."""
    return {name: value for name, value in url.query.items() if name in _CLIENT or name == "application_name"}


def _size_of_tables(connection: sa.Connection) -> int:
    sizes = [sa.func.pg_total_relation_size(sa.func.to_regclass(name)) for name in store_tables.metadata.tables]
    return sum(int(connection.execute(sa.select(size)).scalar_one()) for size in sizes)


@contextmanager
def _closed_on_failure(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Close the connection on failure: during setup it does not belong to the pool yet."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def _disposed(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()
