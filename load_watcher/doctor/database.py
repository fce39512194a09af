"""The database: can it be written, is it ours and up to date, who has it open, and how much room is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from load_watcher.doctor.listening import Serving
from watcher.platform.checks.examination import Examination, aside
from watcher.platform.checks.results import Result, fail, ok, warn
from watcher.platform.settings.addresses import is_server
from watcher.platform.settings.tables import Settings
from watcher.store.commands import database_at, look
from watcher.store.database import Database, Look
from watcher.store.errors import StoreError, StoreUnusable

MB = 1e6
LITTLE_ROOM = 256 * 2**20
"""Below this, in bytes, a disk is worth a warning, if the database may still grow by more."""


async def database(examination: Examination) -> Sequence[Result]:
    """Whether `serve` could keep its history, and go on with what it kept."""
    found = examination.the(Settings)
    serving = examination.the(Serving).url
    try:
        seen = await aside(lambda: look(_database_of(found)))
    except StoreError as error:
        if isinstance(error, StoreUnusable) and found.store.on_unusable == "set-aside":
            then = (
                "serve will go on without it"
                if is_server(found.store.url)
                else "it will be set aside, and a new one begun"
            )
            return [warn(f"{error}; {then}", error.hint)]
        return [fail(str(error), error.hint or "docs/store.md says what the database needs")]
    return list(_judge(seen, found, serving=bool(serving)))


def _database_of(found: Settings) -> Database:
    return database_at(found.store.url, watcher=found.watcher, password_file=found.store.password_file)


def _judge(seen: Look, found: Settings, *, serving: bool) -> Iterator[Result]:
    state = f"has schema {seen.revision}"
    if seen.revision is None:
        server = is_server(found.store.url)
        state = "has no tables yet, serve will make them" if server else "is not there yet, serve will make it"
    elif seen.revision != seen.newest:
        state += f", and {seen.newest} is needed"
    told = f"{seen.where} can be written and {state}"
    if seen.holder and not serving:
        yield fail(f"{seen.where} is in use by {seen.holder}", seen.cure)
    elif seen.revision in (None, seen.newest):
        yield ok(f"{told}; in use by {seen.holder}, as it should be" if seen.holder else told)
    elif found.store.upgrade:
        yield ok(f"{told}; serve will bring it up to date")
    else:
        yield fail(told, "run load-watcher db upgrade, or set store.upgrade = true")
    if seen.free is not None and seen.size is not None:
        yield _room(seen.free, may_grow=found.store.max_size - seen.size)


def _room(free: int, *, may_grow: int) -> Result:
    told = f"{free / MB:,.0f} MB are free, the database may grow by {max(0, may_grow) / MB:,.0f} MB"
    if free < LITTLE_ROOM and free < may_grow:
        return warn(told, "make room, or set store.max_size to what there is")
    return ok(told)
