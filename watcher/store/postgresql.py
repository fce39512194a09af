"""The database on a PostgreSQL server, shared by several watchers, each with rows of its own.

Whoever writes a watcher's rows holds an advisory lock on its name, on the very connection that it writes with: if that
is lost, so is the lock, and nothing is written until both are back. So two processes of one name never write at the
same time, whatever the network does, and a process that died leaves nothing locked. Migrations run in one transaction
under another such lock: of several watchers that start against an empty database one makes the tables, the others wait.

The connections go straight to the server, or through a pooler in session mode: in others a lock has no owner.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from watcher.store import schema
from watcher.store import tables as store_tables
from watcher.store.database import READERS, Database, Look, migrate, reason_of
from watcher.store.errors import StoreAway, StoreError, StoreInUse, StoreUnusable
from watcher.store.tables import REVISIONS, Rows

if TYPE_CHECKING:
    from types import ModuleType

    import psycopg

CONNECT_SECONDS = 5
POOL_SECONDS = 5.0
LOCK_TIMEOUT = "5s"  # the session of a process that was killed ends with the statement that it was at
# A server that went without a word is noticed after these, on both ends, and not after the hours of the defaults. The
# other end's matter too: until it notices, it keeps the lock for a client that is gone.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_CLIENT = {**_KEEPALIVE, "keepalives": 1, "tcp_user_timeout": 25_000, "connect_timeout": CONNECT_SECONDS}
_SESSION = {f"tcp_{name}": str(value) for name, value in _KEEPALIVE.items()} | {
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
_WRITER = {**_SESSION, "statement_timeout": "60s"}
_READER = {**_SESSION, "statement_timeout": "10s"}


def server_of(url: sa.URL, *, watcher: str, password_file: Path | None) -> PostgresqlServer:
    """The database that a postgresql:// URL names; StoreError where psycopg is not installed, or not what is wanted."""
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(
            f"{url.drivername} is no way to PostgreSQL that load-watcher knows",
            hint="write postgresql://user@host/database; it is spoken to through psycopg 3",
        )
    try:
        import psycopg
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL needs the library psycopg: {error}", hint='run pip install "load-watcher[postgres]"'
        ) from error
    return PostgresqlServer(
        url.set(drivername="postgresql+psycopg"), watcher=watcher, password_file=password_file, driver=psycopg
    )


class PostgresqlServer(Database):
    """The tables in the first schema of the search path, and the rows of one watcher in them."""

    waits = True

    def __init__(self, url: sa.URL, *, watcher: str, password_file: Path | None, driver: ModuleType) -> None:
        port = f":{url.port}" if url.port else ""
        self.name = f"postgresql://{url.host or ''}{port}/{url.database or ''}"
        self.watcher = watcher
        self._url = url
        self._password_file = password_file
        self._driver = driver
        # Tells our own sessions from those of another process.
        self._session = f"load-watcher on {socket.gethostname()[:30]} {secrets.token_hex(4)}"
        self._writer = self._engine(connections=1, settings=_WRITER)
        self._reader = self._engine(connections=READERS, settings=_READER, writes=False)
        sa.event.listen(self._writer, "connect", self._lock_on_connect)

    # --- life --------------------------------------------------------------------------------------------------------

    def acquire(self, *, owner: str) -> None:
        """Connect, which takes the lock."""
        with self.translated(doing="reached"), self._writer.connect():
            pass

    def prepare(self, *, upgrade: bool) -> tuple[str | None, str]:
        with self.translated(doing="opened"):
            with self._writer.begin() as connection:
                before = self._revision(connection)
            self.check_age(before, upgrade=upgrade)
            if before != REVISIONS[-1]:
                before = self._migrate(self._writer)
        return before, REVISIONS[-1]

    def _migrate(self, engine: sa.Engine) -> str | None:
        """Wait for whoever migrates, and do what is then still to be done; the revision before that."""
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            key = _key(self._schema(connection), "migration")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
            before = self._revision(connection)
            if before != REVISIONS[-1]:
                migrate(connection)
            return before

    def release(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    def set_aside(self, *, now: float) -> str | None:
        """Not here: the database is not ours alone."""
        return None

    # --- connections -------------------------------------------------------------------------------------------------

    def _engine(self, *, connections: int, settings: Mapping[str, str], writes: bool = True) -> sa.Engine:
        engine = sa.create_engine(
            self._url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            pool_pre_ping=True,  # a server that was restarted between two ticks is no trouble worth telling
            hide_parameters=True,
            # A reader's transaction asks twice, for hours and for minutes, and an hour may be rewritten in between.
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
        """Read anew for each connection: it may have been changed meanwhile, on the server too."""
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreAway(
                f"the password file {path} cannot be read: {error}", hint="see store.password_file"
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
            return "an earlier connection of this process, which the server still has to give up"
        who = session.rpartition(" ")[0] if session.startswith("load-watcher on ") else "another process"
        return f"{who} ({address}, connected since {since})"

    @staticmethod
    def _schema(connection: sa.Connection) -> str:
        name = connection.execute(sa.select(sa.func.current_schema())).scalar_one()
        if name is None:
            raise StoreError(
                "the search path names no schema that exists", hint="create the schema, or change options= in store.url"
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
        """Bytes of this watcher's payloads: what the tables take is shared with others, and with what was deleted."""
        with self.writing() as mine:
            return schema.stored_bytes(mine)

    def used_bytes(self, mine: Rows) -> int:
        return schema.stored_bytes(mine)

    def give_space_back(self, *, most: int) -> bool:
        """Autovacuum does."""
        return False

    def may_forget(self, mine: Rows, watcher: str) -> bool:
        key = _key(self._schema(mine.connection), f"watcher {watcher}")
        return bool(mine.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar_one())

    # --- commands: beside watchers that run, so without a watcher's lock ---------------------------------------------

    def revision(self) -> str | None:
        with self.translated(doing="read"), self._reader.begin() as connection:
            return self._revision(connection)

    def look(self) -> Look:
        with self.translated(doing="read"), self._reader.begin() as connection:
            revision = self._revision(connection)
            writable = _FIRST_RIGHTS if revision is None else _RIGHTS
            if not connection.exec_driver_sql(writable).scalar_one():
                raise StoreError(f"{self.name} cannot be written: it is a standby, or this user may not", hint=_GRANT)
            key = _key(self._schema(connection), f"watcher {self.watcher}")
            holder = connection.exec_driver_sql(_HOLDER, {"key": key}).one_or_none()
            return Look(
                where=self.name,
                revision=revision,
                newest=REVISIONS[-1],
                holder="" if holder is None else self._in_words(holder),
                cure=_OTHER_NAME,
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
            f"{self.name} has tables of another program by our names ({', '.join(sorted(tables))})",
            hint="give load-watcher a database of its own, or a schema: ?options=-csearch_path%3Dload_watcher",
        )

    def upgrade(self, *, owner: str) -> str | None:
        engine = self._engine(connections=1, settings=_WRITER)
        with self.translated(doing="upgraded"), _disposed(engine):
            return self._migrate(engine)

    def vacuum(self, *, owner: str) -> tuple[int, int] | None:
        if self.revision() is None:
            return None
        tables = ", ".join(store_tables.metadata.tables)
        engine = self._engine(connections=1, settings={**_WRITER, "statement_timeout": "0", "lock_timeout": "60s"})
        with self.translated(doing="vacuumed"), _disposed(engine), engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            before = _size_of_tables(connection)
            connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {tables}")
            return before, _size_of_tables(connection)

    # --- errors ------------------------------------------------------------------------------------------------------

    def is_trouble(self, error: BaseException) -> bool:
        if isinstance(error, (StoreError, OSError, PoolTimeout)) or self.is_damage(error):
            return True
        said = error.orig if isinstance(error, DBAPIError) else error
        driver = self._driver
        if isinstance(said, (driver.OperationalError, driver.InterfaceError, driver.InternalError)):
            return True
        # That a table is gone or may not be written, the server says; what psycopg itself refuses is our mistake.
        return isinstance(said, driver.ProgrammingError) and said.sqlstate is not None

    @property
    def way_out(self) -> str:
        return "name another database in store.url, or restore this one; only the history of the windows would be lost"

    def translate(self, error: BaseException, *, doing: str) -> StoreError:
        said = error.orig if isinstance(error, DBAPIError) else error
        message = f"{self.name} cannot be {doing}: {reason_of(error)}"
        if isinstance(said, (self._driver.OperationalError, self._driver.InterfaceError, PoolTimeout, OSError)):
            return StoreAway(message, hint="look at the server, the network, and user and password in store.url")
        if getattr(said, "sqlstate", None) == "42501":  # insufficient_privilege
            return StoreError(message, hint=_GRANT)
        return StoreError(message, hint=_PAGE)

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        error: type[Exception] = self._driver.Error
        return (error,)


_OTHER_NAME = "stop that one, or give this one a store.watcher_id of its own"
_PAGE = "docs/store.md says what store.url may have in it, and what the database must have"
_GRANT = "let the user of store.url make tables in its schema and write them: GRANT CREATE, USAGE ON SCHEMA …"
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
    """An advisory lock's number, which is a signed 64-bit integer, out of what it is on."""
    digest = hashlib.sha256(f"load-watcher\0{schema_name}\0{of}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _given(url: sa.URL) -> dict[str, Any]:
    """What the URL says of the connection goes before what we would."""
    return {name: value for name, value in url.query.items() if name in _CLIENT or name == "application_name"}


def _size_of_tables(connection: sa.Connection) -> int:
    sizes = [sa.func.pg_total_relation_size(sa.func.to_regclass(name)) for name in store_tables.metadata.tables]
    return sum(int(connection.execute(sa.select(size)).scalar_one()) for size in sizes)


@contextmanager
def _closed_on_failure(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """The pool does not yet know a connection that is being set up."""
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
