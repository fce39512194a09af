"""The store under faults: SIGKILL, a full disk, and files that are damaged, newer, or of other programs."""

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import enlarge
from tests.waiting import eventually
from tests.watcher.store.store_writer import NODES, number_of, numbered
from tests.watcher.store.ticks import (
    FIFTEEN,
    RESOLUTION,
    START,
    block,
    count,
    is_stored,
    minute,
    opened,
    query,
    restored_at,
    save,
    store_at,
    tick,
    url_of,
)
from watcher.core.windows.records import TickRecord
from watcher.model import FindingKind, Remedy
from watcher.store.commands import current, database_at, upgrade
from watcher.store.engines import sqlite
from watcher.store.errors import StoreError, StoreInUse, StoreUnusable
from watcher.store.settings import StoreSettings
from watcher.store.store import Store
from watcher.store.tables import REVISIONS, Rows

pytestmark = pytest.mark.slow

# --- kill -9 ---------------------------------------------------------------------------------------------------------


class Writer:
    """The process of store_writer.py; `round` lets a child write for a while, and kills it."""

    def __init__(self, place: str) -> None:
        command = [sys.executable, "-m", "tests.watcher.store.store_writer", place]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self, *, seconds: float) -> list[int]:
        """The ticks that were acknowledged before the kill, at least one. The pause determines the moment of the
        kill."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        child = int(self._line().removeprefix("pid "))
        stored = [int(self._line())]
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        while (line := self._line()) != "ended":
            stored.append(int(line))
        return stored

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the writer ended before the kill"
        return line.strip()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def assert_one_whole_tick(found: TickRecord | None) -> int:
    """All of the newest tick exists, and no part of a later one; returns its number."""
    assert found is not None
    number = number_of(found.end)
    expected = {(one.metric, one.first_slot): one for one in numbered(number).blocks}
    for one in found.blocks:
        if one.first_slot * RESOLUTION > found.end - 300:
            wanted = expected.pop((one.metric, one.first_slot))
            assert one.values.tobytes() == wanted.values.tobytes()
            assert one.nodes == NODES
    assert not expected
    return number


async def check_after_kill(place: str, acknowledged: int) -> None:
    """The database is intact, the lock is free, and no acknowledged tick is missing in the samples or in the
    history."""
    store = store_at(place)
    number = assert_one_whole_tick(await store.open())
    assert number >= acknowledged
    times = [START + 420 * k for k in range(number + 1) if 420 * k >= 420 * number - 86400]
    for window in ("5m", "15m"):
        found = await store.history(host="node-0123", window=window, start=times[0], end=times[-1])
        assert times == found[0].time.tolist()
        expected = [(when - START) // 420 + 0.0625 * 123 for when in times]
        np.testing.assert_allclose(found[0].value, expected, rtol=1e-6)
    await store.close()
    if place.startswith("sqlite"):
        assert [("ok",)] == query(place, "PRAGMA integrity_check")


async def test_a_kill_at_any_moment_loses_no_stored_tick(place: str) -> None:
    """While ticks are written and hours compacted: stored ticks are complete, and the next start continues."""
    moments = random.Random(20260101)
    least, longest = (25, 0.06) if place.startswith("sqlite") else (5, 0.15)
    done = 0
    with Writer(place) as writer:
        # On a machine that is so slow that no hour was compacted yet: with longer and longer rounds.
        while done < least or not count(place, "window_hour"):
            stored = writer.round(seconds=moments.uniform(0, longest * (1 + done // least)))
            await check_after_kill(place, stored[-1])
            done += 1


# --- a full disk -----------------------------------------------------------------------------------------------------


MANY = tuple(f"node-{i}" for i in range(2000))


def large(number: int) -> TickRecord:
    when = START + 60 * number
    values = np.random.default_rng(number).random((4, len(MANY)))
    one = replace(block(0.0, slot=when // RESOLUTION - 3, nodes=MANY), values=values)
    return tick(when, blocks=[one], records=[minute(number, when=when, nodes=MANY)])


async def save_until_full(store: Store) -> int:
    """The number of saved ticks, including the one that did not fit."""
    for number in range(60):
        one = large(number)
        store.save(one)

        def settled(one: TickRecord = one) -> bool:
            return is_stored(store, one) or not store.status.ok

        await eventually(settled, what="a tick")
        if not store.status.ok:
            return number + 1
    pytest.fail("the disk was never full")


@pytest.mark.real
async def test_a_full_disk_is_reported_once_and_nothing_is_lost_once_there_is_space(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """save still returns at once; the status has the error and its begin. With more space, all queued ticks are stored
    without a gap."""
    caplog.set_level(logging.INFO)
    path = small_disk / "a.db"

    async with opened(path) as store:
        number = await save_until_full(store)
        assert "full" in store.status.error
        assert store.status.since is not None
        for more in range(number, number + 5):
            store.save(large(more))
        await eventually(lambda: store.status.queued == 6, what="the ticks to wait")
        await asyncio.to_thread(enlarge, small_disk)
        await save(store, large(number + 5))
        status = store.status
        assert (True, "", None, 0, 0) == (status.ok, status.error, status.since, status.queued, status.dropped)
        found = await store.history(host="node-7", window="15m", start=START, end=2**40)
        assert [START + 60 * k for k in range(number + 6)] == found[0].time.tolist()
    reported = [record.message for record in caplog.records if "saving to the database" in record.message]
    assert 2 == len(reported), reported
    assert "saving to the database fails: database or disk is full" == reported[0]
    restored = await restored_at(path)
    assert restored is not None
    assert 15 <= len(restored.blocks)


@pytest.mark.real
async def test_close_tries_to_write_again_and_reports_unstored_ticks(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is reported once, although two attempts failed; with space, the queued tick is stored."""
    path = small_disk / "a.db"

    async def run(*, room: bool) -> int:
        async with opened(path) as store:
            number = await save_until_full(store)
            if room:
                await asyncio.to_thread(enlarge, small_disk)
        return number

    number = await run(room=False)
    assert ["saving to the database fails: database or disk is full", "1 ticks were not stored"] == [
        message.partition(":")[0] if "not stored" in message else message for message in caplog.messages
    ]
    restored = await restored_at(path)
    assert restored is not None
    assert START + 60 * (number - 2) + 0.25 == restored.end
    number = await run(room=True)
    restored = await restored_at(path)
    assert restored is not None
    assert START + 60 * (number - 1) + 0.25 == restored.end


@pytest.mark.real
async def test_a_disk_that_is_full_at_the_start_does_not_set_the_database_aside(small_disk: Path) -> None:
    """The start fails with a remedy; with space, it opens the same file."""
    path = small_disk / "a.db"

    async with opened(path) as store:
        await save(store, tick(START))
    before = path.read_bytes()
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(StoreError, match=f"{path} cannot be opened") as refused:
        await store_at(path, on_unusable="set-aside").open()
    assert not isinstance(refused.value, StoreUnusable)
    assert "free space" in refused.value.hint
    assert before == path.read_bytes()
    (small_disk / "filler").unlink()
    restored = await restored_at(path)
    assert restored is not None
    assert START + 0.25 == restored.end


# --- unusable files --------------------------------------------------------------------------------------------------


def filled(path: Path) -> None:
    """A database with an hour and a half of ticks, closed."""

    async def run() -> None:
        async with opened(path) as store:
            for number in range(13):
                store.save(numbered(number))
            await save(store, numbered(13))
            await eventually(lambda: count(path, "window_hour") >= 2, what="an hour to be rewritten")

    asyncio.run(run())


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("healthy") / "a.db"
    filled(path)
    return path


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(random.Random(7).randbytes(size // 2))


def not_a_database(path: Path) -> None:
    path.write_text("[server]\nport = 2020\n" * 400)


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE dashboard (title TEXT)")
        connection.commit()


def of_another_program_with_alembic(path: Path) -> None:
    of_another_program(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
        connection.commit()


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()


def newer_and_killed(path: Path) -> None:
    """Only the log has the newer version, as after the kill of a newer service right after its upgrade."""
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute(\"UPDATE alembic_version SET version_num = '9999'\"); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.with_name("a.db-wal").stat().st_size


UNUSABLE = [
    (truncated, "is damaged"),
    (overwritten, "is damaged"),
    (not_a_database, "is not an SQLite database"),
    (of_another_program, "is a database of another program .tables dashboard"),
    (of_another_program_with_alembic, "is a database of another program .tables alembic_version, dashboard"),
    (newer, f"newer version of load-watcher: its schema is 9999, but .* known to this version is {REVISIONS[-1]}"),
    (newer_and_killed, "newer version of load-watcher"),
]


@pytest.fixture
def spoilt(tmp_path: Path, healthy: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "a.db"
    shutil.copy(healthy, path)
    request.param(path)
    return path


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files except the lock and the index of the log, whose content is in the log."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix != ".lock" and "-shm" not in one.name}


@pytest.mark.parametrize(("spoilt", "message"), UNUSABLE, indirect=["spoilt"], ids=[s.__name__ for s, _ in UNUSABLE])
async def test_an_unusable_file_is_refused_with_a_remedy_and_not_changed(spoilt: Path, message: str) -> None:
    """The error names the file; no byte changes, and the lock is free again."""
    before = bytes_of(spoilt.parent)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=message) as refused:
            await restored_at(spoilt)
        assert str(spoilt) in str(refused.value)
        assert refused.value.hint
    assert before == bytes_of(spoilt.parent)


@pytest.mark.parametrize(("spoilt", "message"), UNUSABLE, indirect=["spoilt"], ids=[s.__name__ for s, _ in UNUSABLE])
async def test_an_unusable_file_is_set_aside_with_all_its_files_if_configured(spoilt: Path, message: str) -> None:
    """It is renamed with its log, a finding reports it, and a new database stores ticks."""
    before = bytes_of(spoilt.parent)

    async with opened(spoilt, on_unusable="set-aside") as store:
        await save(store, tick(START))
    (finding,) = store.findings
    assert (FindingKind.STORE, Remedy.SET_ASIDE) == (finding.kind, finding.remedy)
    aside = {
        name.replace(prefix, "a.db"): content
        for name, content in bytes_of(spoilt.parent).items()
        if ".unusable-" in name
        for prefix in [name.removesuffix("-wal")]
    }
    assert before == aside
    assert await restored_at(spoilt) is not None


def test_two_files_set_aside_in_one_second_have_different_names(tmp_path: Path) -> None:
    """No file is overwritten by a rename."""
    targets = []
    for content in ("first", "second", "third"):
        path = tmp_path / "a.db"
        path.write_text(content)
        targets.append(sqlite.set_aside(path, now=START))
    assert ["first", "second", "third"] == [target.read_text() for target in targets]
    assert "a.db.unusable-20231114T220000Z" == targets[0].name


async def test_damage_that_is_detected_while_running_is_a_status(tmp_path: Path, healthy: Path) -> None:
    """Pages are overwritten under a running service: status and history report the damage, the process continues, and
    the next start checks all pages."""
    path = tmp_path / "a.db"
    shutil.copy(healthy, path)
    with closing(sqlite3.connect(path)) as connection:  # far beyond the retention, and larger than any cache
        connection.execute("INSERT INTO window_hour VALUES ('', '5m', 0, x'', zeroblob(8388608))")
        connection.commit()

    async with opened(path) as store:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        store.save(numbered(14))
        await eventually(lambda: not store.status.ok, what="the damage to be met")
        with pytest.raises(StoreUnusable, match="is damaged"):
            await store.history(host=NODES[0], window="5m", start=START, end=START + 86400)
        error = store.status.error
    assert "is damaged" in error
    assert json.loads(path.with_name("a.db.lock").read_text())["damaged"]
    with pytest.raises(StoreUnusable, match="is damaged"):
        await restored_at(path)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_moved_while_the_service_runs_is_detected(tmp_path: Path, replaced: bool) -> None:
    """Or replaced: SQLite itself would continue to write into a file that is never opened again."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        await save(store, tick(START))
        path.rename(tmp_path / "elsewhere.db")
        if replaced:
            path.touch()
        store.save(tick(START + 60))
        await eventually(lambda: not store.status.ok, what="the move to be noticed")
        error = store.status.error
    assert f"{path} was moved or replaced while it was open; restart the service" == error


async def test_a_large_file_is_checked_completely_after_damage(tmp_path: Path, healthy: Path) -> None:
    """A file that is too large for a check at each start is checked after a run has detected damage."""
    path = tmp_path / "a.db"
    shutil.copy(healthy, path)
    with closing(sqlite3.connect(path)) as connection:
        for hour in range(9):
            connection.execute("INSERT INTO window_hour VALUES ('', '15m', ?, x'', zeroblob(8388608))", (hour,))
        connection.commit()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 2**20)
        file.write(b"\xa5" * 2**19)
    assert await restored_at(path) is not None
    path.with_name("a.db.lock").write_text('{"pid": 1, "owner": "the run before", "damaged": true}')
    with pytest.raises(StoreUnusable, match="is damaged"):
        await restored_at(path)


async def test_a_lost_chunk_does_not_keep_an_hour_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A minute with damaged bytes is left out with a warning when its hour is compacted."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        await save(store, tick(START), tick(START + 60))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE window_minute SET payload = x'00' WHERE time = ?", (START,))
        connection.commit()
    async with opened(path) as store:
        with pytest.raises(StoreError, match="is damaged"):
            await store.history(host="node-a", window=FIFTEEN.label, start=START, end=START + 86400)
        await save(store, tick(START + 7200))
        await eventually(lambda: count(path, "window_minute") == 2, what="the hour to be rewritten")
        found = await store.history(host="node-a", window=FIFTEEN.label, start=START, end=START + 86400)
        assert [START + 60, START + 7200] == found[0].time[~np.isnan(found[0].value)].tolist()
    assert [r for r in caplog.records if r.levelname == "WARNING" and "is lost" in r.message]


# --- paths and locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///:memory:", "does not contain a file name"),
        ("sqlite://", "does not contain a file name"),
        ("sqlite:///file:a.db?mode=memory&uri=true", "does not contain a file name"),
        ("sqlite://host/a.db", "does not contain a file name"),
        ("mysql://watcher:secret@db/watcher", "kind mysql are not supported"),
        ("postgresql+asyncpg://watcher:secret@db/watcher", "unsupported PostgreSQL driver postgresql.asyncpg"),
        ("load-watcher.db", "invalid database URL"),
        ("nonsense://x:secret@y", "kind nonsense are not supported"),
        ("postgresql://x:secret@y:port/z", "invalid database URL"),
    ],
)
def test_a_url_without_a_file_is_an_error_without_the_password(url: str, message: str) -> None:
    """Before anything is opened."""
    with pytest.raises(StoreError, match=message) as refused:
        Store(StoreSettings(url=url))
    assert refused.value.hint
    assert "secret" not in str(refused.value) + refused.value.hint


def test_a_relative_url_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes for a relative path, four for an absolute one."""
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}/a.db was created" in upgrade(database_at("sqlite:///a.db")).text
    assert f"{tmp_path}/a.db has schema" in current(database_at(f"sqlite:///{tmp_path}/a.db")).text


async def test_the_error_of_a_missing_directory_names_it(tmp_path: Path) -> None:
    """And how to create it."""
    with pytest.raises(StoreError, match=f"the directory {tmp_path}/no/such of the database does not exist") as refused:
        await restored_at(tmp_path / "no/such/a.db")
    assert f"mkdir -p {tmp_path}/no/such" == refused.value.hint


async def test_a_directory_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    """Also with set-aside: a directory is not renamed."""
    with pytest.raises(StoreError, match="is a directory"):
        await store_at(tmp_path, on_unusable="set-aside").open()
    assert tmp_path.is_dir()


async def test_a_device_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    device = tmp_path / "null"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(StoreError, match="is a device"):
        await store_at(device, on_unusable="set-aside").open()
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_directory_without_the_right_to_write_is_an_error() -> None:
    """For an unprivileged user; root may write to any directory."""
    code = (
        "import os, sys\n"
        "from watcher.store.commands import upgrade, database_at; from watcher.store.errors import StoreError\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try: upgrade(database_at(sys.argv[1]))\n"
        "except StoreError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", code, url_of(Path(folder) / "a.db")]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith(f"{folder} is not writable for user")


async def test_two_paths_of_one_file_have_one_lock(tmp_path: Path) -> None:
    """For example a symbolic link."""
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")

    async with opened(tmp_path / "a.db"):
        with pytest.raises(StoreInUse):
            await store_at(tmp_path / "link.db").open()


@pytest.mark.slow
async def test_a_hard_link_to_the_file_has_the_same_lock(tmp_path: Path) -> None:
    """In another process. A killed process holds no lock, and the database of the first one is unchanged."""
    first, second = tmp_path / "a.db", tmp_path / "elsewhere" / "b.db"
    second.parent.mkdir()
    hold = (
        "import asyncio, sys\n"
        "from tests.watcher.store.ticks import store_at\n"
        "async def run():\n"
        "    await store_at(__import__('pathlib').Path(sys.argv[1])).open()\n"
        "    print('open', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.readline)\n"
        "asyncio.run(run())\n"
    )
    command = [sys.executable, "-c", hold, str(first)]

    for _ in range(2):  # a new file, and one that exists
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:  # noqa: ASYNC220
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            if not second.exists():
                os.link(first, second)
            before = first.read_bytes()
            with pytest.raises(StoreInUse, match="in use by another process under another name"):
                await store_at(second).open()
            assert first.read_bytes() == before
            holder.kill()
        async with opened(second):
            pass


async def test_the_lock_file_of_a_killed_process_does_not_prevent_a_start(tmp_path: Path) -> None:
    """For any content."""
    path = tmp_path / "a.db"
    for left in ('{"pid": 1, "owner": "killed"}', "garbage", ""):
        path.with_name("a.db.lock").write_text(left)
        await restored_at(path)


async def test_a_lock_without_content_is_still_respected(tmp_path: Path) -> None:
    """A process on a full disk holds the lock and could not write its id."""
    path = tmp_path / "a.db"

    async with opened(path):
        path.with_name("a.db.lock").write_text("")
        with pytest.raises(StoreInUse, match="is in use by another process"):
            await store_at(path).open()


async def test_an_error_in_a_query_is_not_damage(tmp_path: Path) -> None:
    """It stays the same error, and the next start does not check the whole file."""

    def wrong(_: Rows) -> None:
        raise ValueError("a value that the caller computed")

    path = tmp_path / "a.db"
    async with opened(path) as store:
        await save(store, tick(START))
        with pytest.raises(ValueError, match="a value that the caller computed"):
            await store.read(wrong)
        assert store.status.ok
        assert not json.loads(path.with_name("a.db.lock").read_text()).get("damaged")
