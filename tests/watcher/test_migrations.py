"""The schema: what migrations make is what the store expects, all of it or nothing."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.watcher.ticks import START, opened, restored_at, save, tick, url_of
from watcher.store import StoreError, StoreUnusable, current, database, upgrade, vacuum
from watcher.store.schema import REVISIONS, metadata


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = database.open_engine(tmp_path / "a.db")
    yield engine
    engine.dispose()


def tables_of(engine: sa.Engine) -> set[str]:
    with engine.connect() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_the_revisions_that_the_store_knows_are_those_of_the_migrations() -> None:
    """One line of descent, oldest first."""
    scripts = ScriptDirectory(str(database.migrations_folder()))
    assert list(REVISIONS) == [script.revision for script in scripts.walk_revisions()][::-1]


def test_migrations_make_the_tables_that_the_store_expects(engine: sa.Engine) -> None:
    """Alembic finds no difference."""
    database.migrate(engine)
    with engine.connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), metadata)


def test_a_failing_migration_leaves_nothing_behind(engine: sa.Engine, tmp_path: Path) -> None:
    """Neither its first statements nor those of the migrations before it in the same run; without the BEGIN of our
    own, SQLite's driver would have committed each DDL statement by itself."""
    database.migrate(engine)
    before = tables_of(engine)
    folder = tmp_path / "migrations"
    shutil.copytree(database.migrations_folder(), folder)
    for number, last in (("0002", "op.execute('INSERT INTO good VALUES (1)')"), ("0003", "op.execute('no SQL')")):
        previous = f"{int(number) - 1:04}"
        (folder / "versions" / f"{number}.py").write_text(
            f"import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = '{number}', '{previous}'\n"
            f"def upgrade():\n"
            f"    op.create_table('{'good' if number == '0002' else 'bad'}', sa.Column('a', sa.Integer))\n"
            f"    op.execute(\"UPDATE tick SET source = 'touched'\")\n    {last}\n"
        )
    with pytest.raises(sa.exc.OperationalError):
        database.migrate(engine, folder=folder)
    assert before == tables_of(engine)
    assert "schema 0001, the newest" in current(url_of(tmp_path / "a.db"))


def test_an_old_database_is_brought_up_to_date_with_what_is_in_it(tmp_path: Path) -> None:
    """A file made by the first migration alone opens, keeps its rows, and has the newest schema afterwards."""
    path = tmp_path / "a.db"
    engine = database.open_engine(path)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(database.migrations_folder()))
        config.attributes["connection"] = connection
        command.upgrade(config, REVISIONS[0])
        connection.exec_driver_sql("INSERT INTO tick VALUES (1, 2.5, 1.5, 'Prometheus', 15, '[[\"5m\",300]]', '{}')")
    engine.dispose()
    restored = asyncio.run(restored_at(path))
    assert restored is not None
    assert (2.5, 1.5) == (restored.timestamp, restored.end)
    assert f"schema {REVISIONS[-1]}, the newest" in current(url_of(path))


def test_migrations_go_down_and_up_again(engine: sa.Engine) -> None:
    """Every one undoes what it did."""
    config = Config()
    config.set_main_option("script_location", str(database.migrations_folder()))
    database.migrate(engine)
    before = tables_of(engine)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert {"alembic_version"} == tables_of(engine)
    database.migrate(engine)
    assert before == tables_of(engine)


def test_upgrade_makes_a_database_and_then_changes_nothing(tmp_path: Path) -> None:
    """`load-watcher db upgrade` twice, and `db current` before and after."""
    path = tmp_path / "a.db"
    assert "does not exist yet" in current(url_of(path))
    assert "does not exist yet" in vacuum(url_of(path))
    assert [] == [one.name for one in tmp_path.iterdir() if one.suffix != ".lock"]
    assert f"{path} was made, with schema {REVISIONS[-1]}" == upgrade(url_of(path))
    before = path.read_bytes()
    assert f"{path} is up to date (schema {REVISIONS[-1]})" == upgrade(url_of(path))
    assert before == path.read_bytes()
    assert f"{path} has schema {REVISIONS[-1]}, the newest this version knows" == current(url_of(path))


def test_an_older_schema_is_refused_where_upgrades_are_not_wanted(tmp_path: Path) -> None:
    """With the command that does it; where they are wanted, and for a new file, it is not."""
    with pytest.raises(StoreError, match=f"has schema 0000, and {REVISIONS[-1]} is needed") as refused:
        database.check_age(tmp_path / "a.db", "0000", upgrade=False)
    assert not isinstance(refused.value, StoreUnusable)
    assert "run load-watcher db upgrade" == refused.value.hint
    database.check_age(tmp_path / "a.db", "0000", upgrade=True)
    database.check_age(tmp_path / "a.db", None, upgrade=False)
    database.check_age(tmp_path / "a.db", REVISIONS[-1], upgrade=False)


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """As `touch` leaves it, or SQLite itself when nothing was ever written."""
    path = tmp_path / "a.db"

    async def run() -> None:
        async with opened(path, upgrade=False) as store:
            await save(store, tick(START))

    path.touch()
    asyncio.run(run())
    assert asyncio.run(restored_at(path)) is not None
    with closing(sqlite3.connect(path)) as connection:
        assert ("wal",) == connection.execute("PRAGMA journal_mode").fetchone()
        assert (2,) == connection.execute("PRAGMA auto_vacuum").fetchone()
