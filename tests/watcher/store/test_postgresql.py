"""The store on a real PostgreSQL: several watchers in one database, and restarts of the server.

test_store.py and test_faults.py test both databases.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.parts import PostgreSQL, free_port, new_secret
from tests.waiting import eventually
from tests.watcher.store.ticks import (
    CPU,
    START,
    block,
    cells_of,
    count,
    minute,
    opened,
    query,
    restored_at,
    save,
    save_beyond_the_cap,
    store_at,
    tick,
)
from watcher.core.windows.records import TickRecord
from watcher.model import Operator
from watcher.store.commands import current, database_at, upgrade
from watcher.store.errors import StoreError, StoreInUse, StoreUnreachable, StoreUnusable
from watcher.store.store import Store
from watcher.store.tables import REVISIONS

pytestmark = [pytest.mark.real, pytest.mark.slow]

EVERYTHING: dict[str, Any] = {"window": "15m", "start": 0, "end": 2**40}


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """A server that tests of this module stop and kill; it runs when a test begins."""
    with PostgreSQL(tmp_path_factory.mktemp("fragile")) as server:
        yield server


@pytest.fixture
def frail(fragile: PostgreSQL) -> Iterator[PostgreSQL]:
    """The same; it is started again after the test if necessary."""
    yield fragile
    if not fragile.is_running():
        fragile.start()


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about saving and tidying, up to the reason."""
    about = [message for message in caplog.messages if message.startswith(("saving to", "tidying"))]
    return [message.partition(":")[0].partition(" after")[0] for message in about]


async def untouched(store: Store) -> None:
    """Wait until the store does not use the database any more: it tidies after a tick."""
    await eventually(lambda: not store._tidy_again and store._slices is None, what="the tidying")


# --- several watchers ------------------------------------------------------------------------------------------------


async def test_watchers_of_two_clusters_do_not_see_each_other(server_database: str) -> None:
    """Samples, windows and their deletion are separate, over closed hours and a restart."""
    async with opened(server_database, watcher="one/a") as a, opened(server_database, watcher="two/a") as b:
        for k in (0, 1, 60):
            await save(a, tick(START + 60 * k))
        other = [tick(START + 60 * k, blocks=[block(7, slot=(START + 60 * k) // 15 - 3)]) for k in (30, 90)]
        await save(b, *other)
        await eventually(lambda: count(server_database, "window_hour") == 4, what="both to rewrite their hour")
        of_a = await a.history(host="node-a", **EVERYTHING)
        of_b = await b.history(host="node-a", **EVERYTHING)
        assert [START, START + 60, START + 3600] == of_a[0].time.tolist()
        assert [START + 1800, START + 5400] == of_b[0].time.tolist()
    for watcher, end in (("one/a", START + 3600.25), ("two/a", START + 5400.25), ("two/c", None)):
        restored = await restored_at(server_database, watcher=watcher)
        assert end == (None if restored is None else restored.end)
        if watcher == "two/a":
            assert restored is not None
            assert {7.0} == {float(value) for one in restored.blocks for value in one.values.flat}


async def test_replicas_share_their_history_and_not_their_samples(server_database: str) -> None:
    """A minute that one lacks, in closed and open hours, comes from another of the cluster; if both have it, its own
    counts. A new replica has the past, and loads no samples of others."""

    def minutes(value: float, *ks: int) -> list[TickRecord]:
        times = [START + 60 * k for k in ks]
        return [tick(when, records=[minute(value, when=when)]) for when in times]

    expected = {
        "one": [(0, 1.0), (1, 1.0), (2, 2.0), (60, 1.0), (61, 2.0)],
        "two": [(0, 1.0), (1, 2.0), (2, 2.0), (60, 2.0), (61, 2.0)],
        "new": [(0, 1.0), (1, 2.0), (2, 2.0), (60, 2.0), (61, 2.0)],
        "far": [],
    }
    found = {}
    async with opened(server_database, watcher="c/one") as one, opened(server_database, watcher="c/two") as two:
        await save(one, *minutes(1, 0, 1, 60))
        await save(two, *minutes(2, 1, 2, 60, 61))
        await eventually(lambda: count(server_database, "window_hour") == 2, what="both to rewrite their hour")
        async with opened(server_database, watcher="c/new") as new, opened(server_database, watcher="d/one") as far:
            assert new.status.last_saved is None
            stores = {"one": one, "two": two, "new": new, "far": far}
            for name, store in stores.items():
                series = await store.history(host="node-a", **EVERYTHING, operators=[Operator.AVG])
                points = [(one.time.tolist(), one.value.tolist()) for one in series]
                found[name] = [
                    ((t - START) // 60, v) for times, values in points for t, v in zip(times, values, strict=True)
                ]
    assert expected == found


async def test_a_second_watcher_with_the_same_name_is_refused_with_the_process_of_the_first(
    server_database: str,
) -> None:
    """While the first one runs; once it is closed, the name is free. `db` can read and upgrade beside it."""

    async with opened(server_database, watcher="a") as store:
        with pytest.raises(StoreInUse) as refused:
            await store_at(server_database, watcher="a").open()
        await save(store, tick(START))
        assert "newest" in current(database_at(server_database)).text
        assert "up to date" in upgrade(database_at(server_database)).text
    assert str(refused.value).startswith('the watcher "a" in postgresql://127.0.0.1:')
    assert "is in use by load-watcher on " in str(refused.value)
    assert "store.watcher_id" in refused.value.hint
    assert await restored_at(server_database, watcher="a") is not None


async def test_of_watchers_that_start_at_once_one_creates_the_tables(
    server_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And none fails."""
    caplog.set_level(logging.INFO)

    stores = [store_at(server_database, watcher=f"watcher-{number}") for number in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        store.save(tick(START))
    await eventually(lambda: all(store.status.last_saved for store in stores), what="all to store a tick")
    await asyncio.gather(*(store.close() for store in stores))
    made = [message for message in caplog.messages if f"to schema {REVISIONS[-1]} (before: none)" in message]
    assert 1 == len(made), made
    assert 6 == count(server_database, "tick")


async def test_rows_of_a_watcher_that_ended_are_removed_after_their_retention(server_database: str) -> None:
    """For example of a pod that was replaced by one with another name: an hour after its last tick it has no
    rows, unless it runs."""
    async with opened(server_database, watcher="gone", retention=3600.0, decisions=0.0) as store:
        await save(store, tick(START))
    async with (
        opened(server_database, watcher="silent", retention=3600.0, decisions=0.0) as silent,
        opened(server_database, watcher="here", retention=7200.0) as here,
    ):
        await save(silent, tick(START))
        await save(here, tick(START + 3000))
        before = query(server_database, "SELECT watcher FROM tick ORDER BY watcher")
        await save(here, tick(START + 3700))
        await eventually(lambda: count(server_database, "tick") == 2, what="the one that is gone to be forgotten")
    assert ["gone", "here", "silent"] == [name for (name,) in before]
    for table in ("tick", "provenance", "node_list", "sample_block", "window_minute"):
        assert [("here",), ("silent",)] == query(
            server_database, f"SELECT DISTINCT watcher FROM {table} ORDER BY watcher"
        )


async def test_the_limit_is_that_of_each_watcher(server_database: str) -> None:
    """A watcher with too large windows loses its own."""
    async with opened(server_database, watcher="other") as store:
        await save(store, tick(START))
    async with opened(server_database, watcher="noisy", max_size=2**19) as store:
        await save_beyond_the_cap(store, ticks=150)
        await eventually(lambda: store.status.size_bytes <= 2**19, what="the windows to go")
    assert 2 == count(server_database, "window_minute", where="watcher = 'other'")


# --- outages of the server -------------------------------------------------------------------------------------------


async def test_a_server_that_is_down_at_the_start_is_awaited(
    frail: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    """The start succeeds, and ticks are queued; when the server is back, the next tick stores all of them. One log line
    when it fails and one when it is back."""
    caplog.set_level(logging.INFO)
    url = frail.new_database()
    frail.stop()

    async with opened(url, watcher="a") as store:
        assert not store.status.ok
        assert "Connection refused" in store.status.error
        assert "check the server" in store.status.error
        for k in range(3):
            store.save(tick(START + 60 * k))
        await eventually(lambda: store.status.queued == 3, what="the ticks to wait")
        with pytest.raises(StoreUnreachable, match="cannot be read"):
            await store.history(host="node-a", **EVERYTHING)
        await asyncio.to_thread(frail.start)
        await save(store, tick(START + 180))
        assert (True, "", 0, 0) == (
            store.status.ok,
            store.status.error,
            store.status.queued,
            store.status.dropped,
        )
        found = await store.history(host="node-a", **EVERYTHING)
        assert [START + 60 * k for k in range(4)] == found[0].time.tolist()
    assert ["saving to the database fails", "saving to the database works again"] == reported(caplog)
    restored = await restored_at(url, watcher="a")
    assert restored is not None
    assert cells_of(one for k in range(4) for one in tick(START + 60 * k).blocks) == cells_of(restored.blocks)


async def test_ticks_survive_a_kill_of_the_server(frail: PostgreSQL, caplog: pytest.LogCaptureFixture) -> None:
    """None of the ticks before, during and after it is missing, and the watcher has its lock again."""
    caplog.set_level(logging.INFO)
    url = frail.new_database()

    async with opened(url, watcher="a") as store:
        await save(store, tick(START))
        await asyncio.to_thread(frail.kill)
        store.save(tick(START + 60))
        await eventually(lambda: not store.status.ok, what="the loss to be noticed")
        store.save(tick(START + 120))
        await asyncio.to_thread(frail.start)
        await save(store, tick(START + 180))
        found = await store.history(host="node-a", **EVERYTHING)
        assert [START + 60 * k for k in range(4)] == found[0].time.tolist()
        assert [(1,)] == query(url, LOCKS)
    assert ["saving to the database fails", "saving to the database works again"] == reported(caplog)


async def test_a_restart_of_the_server_between_two_ticks_is_not_logged(
    frail: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is tested before its use, and opened again with its lock."""
    caplog.set_level(logging.INFO)
    url = frail.new_database()

    async with opened(url, watcher="a") as store:
        await save(store, tick(START))
        await untouched(store)
        await asyncio.to_thread(frail.restart)
        await save(store, tick(START + 60))
        assert [(1,)] == query(url, LOCKS)
    assert [] == reported(caplog)


async def test_a_watcher_whose_name_was_taken_during_an_outage_waits_until_it_is_free(
    server_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not overwrite rows of the other: the lock belongs to the connection, and nothing is written without
    it."""
    caplog.set_level(logging.INFO)

    async with opened(server_database, watcher="a") as first:
        await save(first, tick(START))
        await untouched(first)
        query(server_database, CUT_OFF)
        async with opened(server_database, watcher="a") as second:
            first.save(tick(START + 60))
            await eventually(lambda: 'the watcher "a" in ' in first.status.error, what="the first to notice")
            await save(second, tick(START + 120))
            assert [(START + 120.25,)] == query(server_database, 'SELECT "end" FROM tick')
        await save(first, tick(START + 180))
        found = await first.history(host="node-a", **EVERYTHING)
        assert [START + 60 * k for k in range(4)] == found[0].time.tolist()
    assert ["saving to the database fails", "saving to the database works again"] == reported(caplog)


LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
CUT_OFF = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE application_name LIKE 'load-watcher on %' AND datname = current_database()"""


async def test_missing_tables_are_created_again(server_database: str) -> None:
    """A restored backup may not have them."""
    async with opened(server_database, watcher="a") as store:
        await save(store, tick(START))
        await untouched(store)
        query(server_database, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        store.save(tick(START + 60))
        await eventually(lambda: not store.status.ok, what="the loss to be noticed")
        await save(store, tick(START + 120))
        found = await store.history(host="node-a", **EVERYTHING)
        assert [START + 60, START + 120] == found[0].time.tolist()


# --- unusable databases ----------------------------------------------------------------------------------------------


def newer(url: str) -> None:
    upgrade(database_at(url))
    query(url, "UPDATE alembic_version SET version_num = '9999'")


def of_another_program(url: str) -> None:
    query(url, "CREATE TABLE tick (title text)")


def of_another_program_with_alembic(url: str) -> None:
    query(url, "CREATE TABLE alembic_version (version_num text)")


UNUSABLE = [
    (newer, "newer version of load-watcher: its schema is 9999, but the newest schema known to this version"),
    (of_another_program, "contains tables of another program with conflicting names .tick."),
    (of_another_program_with_alembic, "contains tables of another program with conflicting names .alembic_version."),
]


@pytest.mark.parametrize(("spoil", "message"), UNUSABLE, ids=[spoil.__name__ for spoil, _ in UNUSABLE])
async def test_an_unusable_database_is_refused_and_not_changed(spoil, message: str, server_database: str) -> None:
    """With "set-aside", the service runs without it: others use the database, so nothing is renamed."""
    spoil(server_database)
    tables = query(server_database, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    with pytest.raises(StoreUnusable, match=message) as refused:
        await restored_at(server_database, watcher="a")
    assert refused.value.hint

    async with opened(server_database, watcher="a", on_unusable="set-aside") as store:
        store.save(tick(START))
        await eventually(lambda: store.status.queued == 1, what="the tick to wait")
        assert not store.status.ok
    after = query(server_database, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    assert sorted(tables) == sorted(after)


async def test_a_separate_schema_is_sufficient(server_database: str) -> None:
    """Beside another program with tables of the same names."""
    of_another_program(server_database)
    query(server_database, "CREATE SCHEMA load_watcher")
    url = f"{server_database}?options=-csearch_path%3Dload_watcher"

    async with opened(url, watcher="a") as store:
        await save(store, tick(START))
    assert [(1,)] == query(server_database, "SELECT count(*) FROM load_watcher.tick")
    with pytest.raises(StoreError, match="no schema of the search path exists"):
        await restored_at(f"{server_database}?options=-csearch_path%3Dnone", watcher="a")


async def test_without_the_right_to_create_tables_the_start_fails_with_a_hint(
    server_database: str, postgresql: PostgreSQL
) -> None:
    """A retry would not help."""
    secret = new_secret()
    query(server_database, f"CREATE ROLE guest LOGIN PASSWORD '{secret}'")
    try:
        url = server_database.replace(f"{postgresql.user}:{postgresql.password}@", f"guest:{secret}@")
        with pytest.raises(StoreError, match="permission denied for schema public") as refused:
            await restored_at(url, watcher="a")
        assert "GRANT CREATE" in refused.value.hint
    finally:
        query(server_database, "DROP ROLE guest")


# --- secrets and drivers ---------------------------------------------------------------------------------------------


async def test_the_password_is_read_from_a_file_for_each_connection(
    server_database: str, postgresql: PostgreSQL, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may change while the service runs; a wrong one is retried like an unavailable server. No log, error or status
    has it."""
    caplog.set_level(logging.DEBUG)
    first, second, wrong = new_secret(), new_secret(), new_secret()
    query(server_database, f"CREATE ROLE owner LOGIN PASSWORD '{first}'; GRANT ALL ON SCHEMA public TO owner")
    url = server_database.replace(f"{postgresql.user}:{postgresql.password}@", "owner@")
    file = tmp_path / "password"
    file.write_text(f"{first}\n")
    errors = []

    try:
        async with opened(url, watcher="a", password_file=file) as store:
            await save(store, tick(START))
            query(server_database, f"ALTER ROLE owner PASSWORD '{second}'")
            file.write_text(wrong)
            query(server_database, CUT_OFF)
            store.save(tick(START + 60))
            refused = "password authentication failed"
            await eventually(lambda: refused in store.status.error, what="the refusal")
            errors.append(store.status.error)
            file.write_text(second)
            await save(store, tick(START + 120))
            found = await store.history(host="node-a", **EVERYTHING)
            assert [(CPU, Operator.AVG), (CPU, Operator.STD)] == [(one.metric, one.operator) for one in found]
    finally:
        query(server_database, "DROP OWNED BY owner; DROP ROLE owner")
    for secret in (first, second, wrong, postgresql.password):
        assert secret not in caplog.text + errors[0]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_all_spellings_of_the_scheme_are_accepted(server_database: str, scheme: str) -> None:
    """libpq has two, SQLAlchemy one more."""
    assert "does not exist yet" in current(database_at(server_database.replace("postgresql", scheme, 1))).text


@pytest.mark.parametrize("where", ["user:{}@", "user@"])
def test_no_error_shows_a_password(where: str) -> None:
    """For an unreachable URL, with the password in the usual place and among the parameters."""
    secret = new_secret()
    ending = "" if "{}" in where else f"?password={secret}"
    database = database_at(f"postgresql://{where.format(secret)}127.0.0.1:{free_port()}/load_watcher{ending}")
    with pytest.raises(StoreUnreachable, match=r"cannot be read: .*refused") as refused:
        current(database)
    shown = f"{refused.value} {refused.value.hint} {refused.value.__cause__} {database.name}"
    assert secret not in shown


def test_without_psycopg_the_error_names_the_extra() -> None:
    """SQLite does not need it."""
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from watcher.store.commands import database_at; from watcher.store.errors import StoreError\n"
        "database_at('sqlite:///a.db')\n"
        "try: database_at('postgresql://host/database')\n"
        "except StoreError as error: print(error, error.hint)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PostgreSQL requires the package psycopg" in answer.stdout
    assert "pip install '.[postgres]' in a clone" in answer.stdout
