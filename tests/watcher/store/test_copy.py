"""`load-watcher db copy`: a watcher's rows from one database to another, all of them or none."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from load_watcher.main import main
from tests.real.parts import new_secret
from tests.waiting import eventually
from tests.watcher.store.ticks import START, block, cells_of, count, minute, opened, query, restored_at, save, tick
from watcher.store import copying
from watcher.store.commands import database_at
from watcher.store.errors import StoreError

TABLES = ("tick", "provenance", "node_list", "sample_block", "window_minute", "window_hour")
VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, in which settings are searched."""
    monkeypatch.chdir(tmp_path)


def copy(source: str, target: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["db", "copy", "--from", source, "--to", target, *arguments])


def as_watcher(name: str) -> tuple[str, str]:
    return "--set", f"store.watcher_id={name}"


def filled(place: str, *, watcher: str = "", offset: int = 0) -> None:
    """A closed hour and an open one, with two lists of nodes."""

    async def run() -> None:
        async with opened(place, watcher=watcher) as store:
            for k in (0, 1, 58, 59, 60, 61):
                when = START + 60 * k
                nodes = ("node-a", "node-b") if k < 59 else ("node-b", "node-c")
                value = float(k + offset)
                blocks = [block(value, slot=when // 15 - 3, nodes=nodes)]
                await save(store, tick(when, blocks=blocks, records=[minute(value, when=when, nodes=nodes)]))
            mine = f"watcher = '{watcher}'"
            await eventually(lambda: count(place, "window_hour", where=mine) == 1, what="the closed hour")
            await eventually(lambda: count(place, "window_minute", where=mine) == 2, what="the open hour")

    asyncio.run(run())


def content(place: str, *, watcher: str = "") -> Any:
    """The state for a start, and the history."""

    async def history() -> list[tuple[Any, ...]]:
        async with opened(place, watcher=watcher) as store:
            hosts = ("node-a", "node-b", "node-c")
            found = [await store.history(host=host, window="15m", start=0, end=2**40) for host in hosts]
        return [(one.metric, one.operator, one.time.tolist(), repr(one.value)) for series in found for one in series]

    restored = asyncio.run(restored_at(place, watcher=watcher))
    assert restored is not None
    return restored.end, restored.provenance, cells_of(restored.blocks), asyncio.run(history())


@pytest.mark.slow
@pytest.mark.real
def test_a_copy_to_a_server_and_back_equals_the_original(server_database: str, tmp_path: Path) -> None:
    """From a file to a server beside another watcher, and from there to another file; the printed counts are those of
    the tables."""
    file, other = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    filled(file)
    filled(server_database, watcher="neighbour", offset=100)
    expected, neighbour = content(file), content(server_database, watcher="neighbour")
    rows = sum(count(file, table) for table in TABLES)
    there = copy(file, server_database, *as_watcher("a"))
    assert 0 == there.exit_code, there.output
    assert re.search(rf"copied {rows} rows, 0\.\d MB .* from {tmp_path}/a\.db to postgresql://", there.stdout)
    assert '(watcher "a")' in there.stdout
    assert f"copying: {rows} of {rows} rows" in there.stderr
    back = copy(server_database, other, "--from-watcher", "a")
    assert 0 == back.exit_code, back.output
    assert expected == content(server_database, watcher="a") == content(other) == content(file)
    assert neighbour == content(server_database, watcher="neighbour")
    password = server_database.partition("://")[2].partition("@")[0].partition(":")[2]
    assert password not in there.output + back.output


@pytest.mark.slow
@pytest.mark.real
def test_the_service_continues_from_the_copy(server_database: str, tmp_path: Path) -> None:
    """New ticks, and the compaction of the copied hour."""
    file = f"sqlite:///{tmp_path / 'a.db'}"
    filled(file)
    assert 0 == copy(file, server_database, *as_watcher("a")).exit_code

    async def run() -> None:
        async with opened(server_database, watcher="a") as store:
            await save(store, tick(START + 7200))
            await eventually(lambda: count(server_database, "window_hour") == 2, what="the copied hour")
            (series, *_) = await store.history(host="node-b", window="15m", start=START, end=START + 3700)
            assert [START + 60 * k for k in (0, 1, 58, 59, 60, 61)] == series.time.tolist()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.real
def test_existing_rows_are_replaced_only_on_request(server_database: str, tmp_path: Path) -> None:
    """And of several watchers one must be named."""
    file = f"sqlite:///{tmp_path / 'a.db'}"
    filled(file)
    filled(server_database, watcher="a", offset=50)
    filled(server_database, watcher="b", offset=70)
    before = content(server_database, watcher="a")
    refused = copy(file, server_database, *as_watcher("a"))
    assert 1 == refused.exit_code
    assert 'already has rows (watcher "a")' in refused.stderr
    assert "--replace" in refused.stderr
    assert before == content(server_database, watcher="a")
    assert 0 == copy(file, server_database, *as_watcher("a"), "--replace").exit_code
    assert content(file) == content(server_database, watcher="a")
    unnamed = copy(server_database, f"sqlite:///{tmp_path / 'b.db'}")
    assert 1 == unnamed.exit_code
    assert 'has the rows of 2 watchers: "a", "b"' in unnamed.stderr
    assert "--from-watcher" in unnamed.stderr


@pytest.mark.slow
@pytest.mark.real
def test_a_copy_that_fails_in_the_middle_changes_nothing(server_database: str, tmp_path: Path) -> None:
    """The target refuses the last table: the rows before it are rolled back, and the replaced ones are kept."""
    file = f"sqlite:///{tmp_path / 'a.db'}"
    filled(file)
    filled(server_database, watcher="a", offset=50)
    before = content(server_database, watcher="a")
    query(server_database, "ALTER TABLE window_minute ADD CONSTRAINT full_disk CHECK (watcher <> 'a') NOT VALID")
    failed = copy(file, server_database, *as_watcher("a"), "--replace")
    assert 1 == failed.exit_code
    assert "cannot be written" in failed.stderr
    assert "full_disk" in failed.stderr
    assert before == content(server_database, watcher="a")


@pytest.mark.slow
def test_rows_of_another_file_are_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    """The report has the size of all payloads, also of tables without rows."""
    first, second, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db", "c.db"))
    filled(first)
    filled(second, offset=50)
    report = copying.copy(database_at(first), database_at(target))
    sizes = (
        query(first, f"SELECT coalesce(sum(length(payload)), 0) FROM {table}")[0][0]
        for table in ("sample_block", "window_minute", "window_hour", "maxima_hour", "decision")
    )
    assert (sum(count(first, table) for table in TABLES), sum(sizes)) == (report.rows, report.size)
    with pytest.raises(StoreError, match="already has rows") as refused:
        copying.copy(database_at(second), database_at(target))
    assert "--replace" in refused.value.hint
    assert content(first) == content(target)
    copying.copy(database_at(second), database_at(target), replace=True)
    assert content(second) == content(target)


def test_an_error_in_the_progress_output_causes_no_damage(tmp_path: Path) -> None:
    """Neither to the source nor to the target; the copy is rolled back."""
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    filled(source)

    def wrong(done: int, total: int) -> None:
        raise ValueError(f"{done} of {total} cannot be shown")

    with pytest.raises(ValueError, match="cannot be shown"):
        copying.copy(database_at(source), database_at(target), progress=wrong)
    assert 0 == count(target, "window_hour")


def test_a_database_in_use_is_not_copied(tmp_path: Path) -> None:
    """Neither as source nor as target."""
    file = f"sqlite:///{tmp_path / 'a.db'}"
    filled(file)

    async def run() -> None:
        async with opened(file):
            for source, target in ((file, "sqlite:///b.db"), ("sqlite:///b.db", file)):
                if target == file:
                    filled_elsewhere()
                refused = await asyncio.to_thread(copy, source, target)
                assert 1 == refused.exit_code
                assert "a.db is in use by process" in refused.stderr

    def filled_elsewhere() -> None:
        with closing(sqlite3.connect("b.db")) as connection:
            connection.executescript((VECTORS / "store_0001.sql").read_text())

    asyncio.run(run())


def test_a_missing_source_is_not_copied(tmp_path: Path) -> None:
    """And nothing is created."""
    failed = copy("sqlite:///none.db", "sqlite:///b.db")
    assert 1 == failed.exit_code
    assert "none.db has nothing to copy: the database does not exist" in failed.stderr
    assert [] == list(tmp_path.iterdir())


def test_a_source_of_an_older_schema_is_upgraded_as_by_serve(tmp_path: Path) -> None:
    """Unless upgrades are disabled."""
    with closing(sqlite3.connect("old.db")) as connection:
        connection.executescript((VECTORS / "store_0001.sql").read_text())
    refused = copy("sqlite:///old.db", "sqlite:///b.db", "--set", "store.upgrade=false")
    assert 1 == refused.exit_code
    assert "run load-watcher db upgrade" in refused.stderr
    assert 0 == copy("sqlite:///old.db", "sqlite:///b.db").exit_code
    assert content(f"sqlite:///{tmp_path}/old.db") == content(f"sqlite:///{tmp_path}/b.db")


@pytest.mark.slow
@pytest.mark.real
def test_a_wrong_password_is_not_shown(server_database: str, tmp_path: Path) -> None:
    """Neither that of the source nor that of the target."""
    secret = new_secret()
    wrong = re.sub(r":[^:@]*@", f":{secret}@", server_database)
    filled(f"sqlite:///{tmp_path / 'a.db'}")
    for source, target in (("sqlite:///a.db", wrong), (wrong, "sqlite:///b.db")):
        failed = copy(source, target)
        assert 1 == failed.exit_code
        assert "password authentication failed" in failed.stderr
        assert secret not in failed.output
