"""The schema: migrations create what the store expects, completely or not at all."""

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.watcher.store.ticks import CPU, FIFTEEN, START, cells_of, opened, query, restored_at, save, store_at, tick
from watcher.core.decisions import DecisionQuery, StoredDecision
from watcher.model import Operator
from watcher.store.commands import current, database_at, upgrade, vacuum
from watcher.store.decisions.store import StoreDecisions
from watcher.store.engines import database, sqlite
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.tables import REVISIONS, metadata

VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.fixture
def engine(place: str) -> Iterator[sa.Engine]:
    if place.startswith("sqlite"):
        engine = sqlite.open_engine(Path(place.removeprefix("sqlite:///")))
    else:
        engine = sa.create_engine(place)
    yield engine
    engine.dispose()


def migrate(engine: sa.Engine, **options: Path) -> None:
    with engine.begin() as connection:
        database.migrate(connection, **options)


def tables_of(engine: sa.Engine) -> set[str]:
    with engine.connect() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_the_revisions_that_the_store_knows_are_those_of_the_migrations() -> None:
    """In one line, oldest first."""
    scripts = ScriptDirectory(str(database.migrations_folder()))
    assert list(REVISIONS) == [script.revision for script in scripts.walk_revisions()][::-1]


@pytest.mark.parametrize("new", [True, False])
def test_migrations_create_the_tables_that_the_store_expects(engine: sa.Engine, new: bool) -> None:
    """Alembic finds no difference, and a new database has the newest revision without the migrations."""
    if new:
        with engine.begin() as connection:
            database.create_or_migrate(connection, revision=None)
            assert REVISIONS[-1] == MigrationContext.configure(connection).get_current_revision()
    else:
        migrate(engine)
    with engine.connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), metadata)


def test_a_failing_migration_changes_nothing(engine: sa.Engine, place: str, tmp_path: Path) -> None:
    """Neither its first statements nor those of earlier migrations in the same run. Without the store's own BEGIN,
    SQLite's driver would commit each DDL statement."""
    migrate(engine)
    before = tables_of(engine)
    folder = tmp_path / "migrations"
    shutil.copytree(database.migrations_folder(), folder)
    newest = int(REVISIONS[-1])
    good, bad = f"{newest + 1:04}", f"{newest + 2:04}"
    for number, last in ((good, "op.execute('INSERT INTO good VALUES (1)')"), (bad, "op.execute('no SQL')")):
        previous = f"{int(number) - 1:04}"
        (folder / "versions" / f"{number}.py").write_text(
            f"import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = '{number}', '{previous}'\n"
            f"def upgrade():\n"
            f"    op.create_table('{'good' if number == good else 'bad'}', sa.Column('a', sa.Integer))\n"
            f"    op.execute(\"UPDATE tick SET source = 'touched'\")\n    {last}\n"
        )
    with pytest.raises(sa.exc.DBAPIError):
        migrate(engine, folder=folder)
    assert before == tables_of(engine)
    assert f"schema {REVISIONS[-1]}, the newest" in current(database_at(place)).text


async def test_a_file_of_the_first_schema_is_upgraded_in_place_without_loss(tmp_path: Path) -> None:
    """A file of an earlier version: its samples, its open hour and its closed one remain, for the same watcher, and the
    service continues."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((VECTORS / "store_0001.sql").read_text())
    assert "has schema 0001; load-watcher db upgrade migrates it to" in current(database_at(f"sqlite:///{path}")).text
    minutes = (0, 1, 2, 60, 61, 62)

    store = store_at(path)
    restored = await store.open()
    assert restored is not None
    assert (START + 62 * 60 + 0.5, "Prometheus") == (restored.timestamp, restored.source)
    kept = [one for k in (60, 61, 62) for one in tick(START + 60 * k).blocks]
    assert cells_of(kept) == cells_of(restored.blocks)
    await save(store, tick(START + 63 * 60))
    found = await store.history(host="node-b", window=FIFTEEN.label, start=START, end=START + 86400)
    assert [(CPU, Operator.AVG), (CPU, Operator.STD)] == [(series.metric, series.operator) for series in found]
    assert [START + 60 * k for k in (*minutes, 63)] == found[0].time.tolist()
    expected = [(START + 60 * k) % 8192 + 0.0625 for k in (*minutes, 63)]
    assert expected == pytest.approx(found[0].value, rel=1e-6)
    await store.close()
    assert f"schema {REVISIONS[-1]}, the newest" in current(database_at(f"sqlite:///{path}")).text
    assert [("",)] == query(path, "SELECT DISTINCT watcher FROM window_hour")
    assert [("ok",)] == query(path, "PRAGMA integrity_check")


def test_migrations_can_be_reverted_and_repeated(engine: sa.Engine) -> None:
    """Each revert removes all changes of its migration."""
    config = Config()
    config.set_main_option("script_location", str(database.migrations_folder()))
    migrate(engine)
    before = tables_of(engine)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert {"alembic_version"} == tables_of(engine)
    migrate(engine)
    assert before == tables_of(engine)


async def test_decisions_of_two_tables_are_merged_into_one(engine: sa.Engine, place: str) -> None:
    """Schema 0005 had two tables: rows of both with equal times, and of two watchers."""
    now = int(time.time()) * 1_000_000
    placement = {
        "watcher": "",
        "time": now,
        "namespace": "default",
        "pod": "web",
        "uid": "u",
        "node": "n",
        "outcome": "o",
    }
    config = Config()
    config.set_main_option("script_location", str(database.migrations_folder()))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
        insert = (
            "INSERT INTO decision (watcher, time, namespace, pod, uid, node, outcome, payload)"
            " VALUES (:watcher, :time, :namespace, :pod, :uid, :node, :outcome, :payload)"
        )
        connection.execute(sa.text(insert), placement | {"payload": b"p"})
        connection.execute(sa.text(insert), placement | {"payload": b"other", "watcher": "else"})
        insert = "INSERT INTO shadow_binding (watcher, time, payload) VALUES (:watcher, :time, :payload)"
        for watcher, at in (("", now), ("", now + 1), ("else", now - 1)):
            connection.execute(sa.text(insert), {"watcher": watcher, "time": at, "payload": b"s"})
    async with opened(place, watcher="") as store:
        stored = StoreDecisions(store)
        expected = StoredDecision(now, "default", "web", "u", b"p", "n", "o")
        assert [expected] == await stored.decisions(DecisionQuery(kind="placement", pod=("default", "web"), limit=9))
        shadows = [StoredDecision(at, "", "", "", b"s", kind="shadow") for at in (now + 2, now + 1)]
        assert shadows == await stored.decisions(DecisionQuery(kind="shadow", limit=9))
        stored.keep_decisions([replace(shadows[0], payload=b"later")])  # as when the load is read again
        assert b"later" == (await stored.decisions(DecisionQuery(kind="shadow", limit=1)))[0].payload
    everything = "SELECT watcher, kind, time, pod, payload FROM decision ORDER BY watcher, kind, time"
    assert [
        ("", "placement", now, "web", b"p"),
        ("", "shadow", now + 1, "", b"s"),
        ("", "shadow", now + 2, "", b"later"),
        ("else", "placement", now, "web", b"other"),
        ("else", "shadow", now - 1, "", b"s"),
    ] == query(place, everything)


def test_upgrade_creates_a_database_and_the_second_one_changes_nothing(place: str) -> None:
    """`load-watcher db upgrade` twice, and `db current` before and after."""
    one = database_at(place)
    assert "does not exist yet" in current(one).text
    assert "does not exist yet" in vacuum(one).text
    assert f"{one.name} was created with schema {REVISIONS[-1]}" == upgrade(one).text
    assert f"{one.name} is up to date (schema {REVISIONS[-1]})" == upgrade(one).text
    assert f"{one.name} has schema {REVISIONS[-1]}, the newest known to this version" == current(one).text


def test_the_version_is_read_without_a_change(tmp_path: Path) -> None:
    """Neither for a missing file, nor for one that is up to date."""
    path = tmp_path / "a.db"
    one = database_at(f"sqlite:///{path}")
    current(one)
    vacuum(one)
    assert ["a.db.lock"] == [left.name for left in tmp_path.iterdir()]
    upgrade(one)
    before = path.read_bytes()
    upgrade(one)
    current(one)
    assert before == path.read_bytes()


def test_an_older_schema_is_refused_if_upgrades_are_disabled(place: str) -> None:
    """With the command for the upgrade. With upgrades, and for a new database, it is not refused."""
    one = database_at(place)
    with pytest.raises(StoreError, match=f"has schema 0001, but {REVISIONS[-1]} is needed") as refused:
        one.check_age("0001", upgrade=False)
    assert not isinstance(refused.value, StoreUnusable)
    assert "run load-watcher db upgrade" == refused.value.hint
    one.check_age("0001", upgrade=True)
    one.check_age(None, upgrade=False)
    one.check_age(REVISIONS[-1], upgrade=False)


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """From `touch`, or from SQLite if nothing was written."""
    path = tmp_path / "a.db"

    path.touch()
    async with opened(path, upgrade=False) as store:
        await save(store, tick(START))
    assert await restored_at(path) is not None
    with closing(sqlite3.connect(path)) as connection:
        assert ("wal",) == connection.execute("PRAGMA journal_mode").fetchone()
        assert (2,) == connection.execute("PRAGMA auto_vacuum").fetchone()
