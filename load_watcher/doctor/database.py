"""Database checks: whether it is writable, of this product, up to date and not in use, the free disk space, and whether
its limit suffices for the fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from load_watcher.doctor.listening import detected_url
from load_watcher.doctor.source import TickResult
from watcher.core.config.addresses import is_server
from watcher.core.config.settings import Settings
from watcher.model import DEFAULT_OPERATORS
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.results import CheckResult, count, fail, ok, skipped, warn
from watcher.platform.logs import ClusterSettings
from watcher.store.commands import database_at, look
from watcher.store.compaction import DEFAULT_MAX_SIZE, STORED_BYTES_PER_VALUE, default_max_size
from watcher.store.engines.database import Database, DatabaseCheck
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.settings import StoreSettings

MB = 1e6
LITTLE_ROOM = 256 * 2**20
"""Free disk space in bytes below which there is a warning, if the database may grow by more."""


async def database(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that `serve` can store its history and continue with the stored one."""
    found = examination.get(Settings)
    serving = await detected_url(examination)
    try:
        seen = await in_thread(lambda: look(_database_of(found)))
    except StoreError as error:
        if isinstance(error, StoreUnusable) and found[StoreSettings].on_unusable == "set-aside":
            then = (
                "serve will run without it"
                if is_server(found[StoreSettings].url)
                else "serve will rename it and create a new one"
            )
            return [warn(f"{error}; {then}", error.hint)]
        return [fail(str(error), error.hint or "see docs/reference/store.md for the requirements of the database")]
    return list(_judge(seen, found, serving=bool(serving)))


def _database_of(found: Settings) -> Database:
    return database_at(
        found[StoreSettings].url,
        watcher=found[StoreSettings].watcher_name(found[ClusterSettings].name),
        password_file=found[StoreSettings].password_file,
    )


def _judge(seen: DatabaseCheck, found: Settings, *, serving: bool) -> Iterator[CheckResult]:
    state = f"has schema {seen.revision}"
    if seen.revision is None:
        server = is_server(found[StoreSettings].url)
        state = "has no tables yet; serve will create them" if server else "does not exist yet; serve will create it"
    elif seen.revision != seen.newest:
        state += f", but {seen.newest} is needed"
    message = f"{seen.where} is writable and {state}"
    if seen.holder and not serving:
        yield fail(f"{seen.where} is in use by {seen.holder}", seen.hint)
    elif seen.revision in (None, seen.newest):
        yield ok(f"{message}; in use by {seen.holder}, as expected" if seen.holder else message)
    elif found[StoreSettings].upgrade:
        yield ok(f"{message}; serve will upgrade it")
    else:
        yield fail(message, "run load-watcher db upgrade, or set store.upgrade = true")
    if seen.free is not None and seen.size is not None:
        most = found[StoreSettings].max_size
        yield _room(seen.free, may_grow=(DEFAULT_MAX_SIZE if most is None else most) - seen.size)


def _room(free: int, *, may_grow: int) -> CheckResult:
    message = f"{free / MB:,.0f} MB are free; the database may grow by {max(0, may_grow) / MB:,.0f} MB"
    if free < LITTLE_ROOM and free < may_grow:
        return warn(message, "free disk space, or lower store.max_size")
    return ok(message)


async def retention(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the windows of all nodes fit into the limit of the database for as long as they are to be stored."""
    store, snapshot = examination.get(Settings)[StoreSettings], examination.get(TickResult).snapshot
    if snapshot is None:
        return [skipped("not checked: the number of nodes is unknown")]
    columns = sum(windows.metric.type in store.keep for windows in snapshot.metrics) * len(DEFAULT_OPERATORS)
    values = len(snapshot.nodes) * len(snapshot.windows) * columns
    needed = STORED_BYTES_PER_VALUE * values * store.retention / 60
    limit = store.max_size or default_max_size(values, retention=store.retention)
    hours = store.retention / 3600
    message = (
        f"the windows of {count(len(snapshot.nodes), 'node')} take about {needed / MB:,.0f} MB in {hours:g} h; "
        f"the database may have {limit / MB:,.0f} MB"
    )
    if limit < needed:
        message += f", enough for {hours * limit / needed:.0f} h"
        return [warn(message, "remove store.max_size, so that it grows with the fleet, or lower store.retention")]
    return [ok(message)]
