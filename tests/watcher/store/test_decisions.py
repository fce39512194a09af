"""Stored decisions: kept for a while, found at once, bounded in number and size, and without delay for their
callers."""

import asyncio
import logging
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from click.testing import CliRunner

from load_watcher.main import main
from tests.conftest import enlarge
from tests.waiting import eventually
from tests.watcher.store.ticks import START, cells_of, count, opened, query, restored_at, save, store_at, tick, url_of
from watcher.core.decisions import (
    DecisionKind,
    DecisionOutcome,
    DecisionQuery,
    DecisionsExtent,
    DecisionsUnavailable,
    StoredDecision,
)
from watcher.store.decisions.queue import DecisionQueue
from watcher.store.decisions.store import StoreDecisions
from watcher.store.engines import database, sqlite
from watcher.store.store import Store

pytestmark = pytest.mark.slow

SECOND = 1_000_000


def some(
    number: int,
    *,
    ago: float = 60.0,
    pod: str = "web",
    payload: bytes = b"why",
    kind: DecisionKind = "placement",
) -> StoredDecision:
    """A decision, `number` microseconds after a moment that is the same for a whole run of the tests."""
    return StoredDecision(BEGUN - int(ago * SECOND) + number, "default", pod, f"uid-{pod}", payload, kind=kind)


BEGUN = int(time.time() * SECOND)


async def written(place: Path | str, number: int) -> None:
    await eventually(lambda: count(place, "decision") == number, what=f"{number} decisions in the table")


async def all_of(store: Store, pod: str = "web", limit: int = 10_000) -> list[StoredDecision]:
    return await found_in(store, pod=("default", pod), limit=limit)


async def found_in(store: Store, *, kind: DecisionKind = "placement", **query: Any) -> list[StoredDecision]:
    return await StoreDecisions(store).decisions(DecisionQuery(kind=kind, **query))


# --- stored decisions ------------------------------------------------------------------------------------------------


async def test_decisions_are_found_by_pod_and_time_also_after_a_restart(place: str) -> None:
    """The newest or the oldest first; of a range; a limited number; and the number of all."""
    web = [some(number) for number in range(5)]
    other = [some(100, pod="db"), StoredDecision(BEGUN - 5 * SECOND, "kube-system", "web", "u", b"\0\xff")]

    async def check(store: Store) -> None:
        assert web[::-1] == await all_of(store)
        pod = ("default", "web")
        assert web[3:1:-1] == await found_in(store, pod=pod, start=web[1].time, end=web[4].time, limit=2)
        assert web[1:3] == await found_in(store, pod=pod, start=web[1].time, limit=2, newest=False)
        assert [other[1]] == await found_in(store, pod=("kube-system", "web"), limit=9)
        assert [] == await found_in(store, pod=("default", "nobody"), limit=9)
        assert DecisionsExtent(7, web[0].time, other[1].time) == await StoreDecisions(store).placements_held()

    async with opened(place) as store:
        assert DecisionsExtent(0) == await StoreDecisions(store).placements_held()
        StoreDecisions(store).keep_decisions([*web, *other])
        await check(store)  # written or queued
        await written(place, 7)
        await check(store)
        StoreDecisions(store).keep_decisions([*web, *other])  # again, while they are queued and in the table
        assert 7 == (await StoreDecisions(store).placements_held()).count
        await check(store)
    async with opened(place) as store:
        await check(store)


async def test_decisions_are_found_by_namespace_part_of_the_name_and_node(place: str) -> None:
    """Wildcards of SQL are plain text; a written outcome counts."""
    odd = StoredDecision(BEGUN - 5 * SECOND, "kube-system", "a%b_c", "u", b"")
    async with opened(place) as store:
        StoreDecisions(store).keep_decisions([some(1), some(2, pod="web-1"), odd])
        await written(place, 3)
        StoreDecisions(store).keep_decisions([], [DecisionOutcome(some(2).time, "node-1", "bound")])
        await eventually(lambda: query(place, "SELECT node FROM decision WHERE node <> ''"), what="the outcome")

        async def names(**wanted: Any) -> list[str]:
            return [each.pod for each in await found_in(store, limit=9, **wanted)]

        assert ["web-1", "web"] == await names(part="eb")
        assert ["a%b_c"] == await names(part="%b")
        assert [] == await names(part="a_b")
        assert ["a%b_c"] == await names(namespace="kube-system")
        assert ["web-1"] == await names(node="node-1", namespace="default")
        assert [] == await names(node="node-2")
        assert [odd] == await found_in(store, part="%", limit=1)


async def test_the_outcome_of_a_decision_may_come_later(place: str) -> None:
    """With the decision, while it is queued, or after it was written; the outcome of an unknown one changes nothing."""
    first, second = some(1), some(2)

    async with opened(place) as store:
        StoreDecisions(store).keep_decisions([first], [DecisionOutcome(first.time, "node-1", "bound")])
        found = await all_of(store)
        assert [("node-1", "bound")] == [(each.node, each.outcome) for each in found]
        StoreDecisions(store).keep_decisions([second])
        await written(place, 2)
        StoreDecisions(store).keep_decisions(
            [], [DecisionOutcome(second.time, "", "gone"), DecisionOutcome(7, "x", "y")]
        )
        expected = [("", "gone"), ("node-1", "bound")]
        await eventually(
            lambda: query(place, "SELECT node, outcome FROM decision ORDER BY time DESC") == expected,
            what="the outcomes in the table",
        )
        assert expected == [(each.node, each.outcome) for each in await all_of(store)]
        StoreDecisions(store).keep_decisions([some(1, payload=b"more is known")])
        assert b"more is known" == (await all_of(store))[1].payload


async def test_a_file_of_schema_0002_keeps_its_rows(tmp_path: Path) -> None:
    """And stores decisions afterwards."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        await save(store, tick(START))
    config = Config()
    config.set_main_option("script_location", str(database.migrations_folder()))
    engine = sqlite.open_engine(path)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
    engine.dispose()
    assert [] == query(path, "SELECT name FROM sqlite_master WHERE name LIKE '%decision%'")
    async with opened(path) as store:
        StoreDecisions(store).keep_decisions([some(1)])
        await written(path, 1)
    found = await restored_at(path)
    assert found is not None
    assert cells_of(tick(START).blocks) == cells_of(found.blocks)


async def test_a_copy_has_the_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """load-watcher db copy counts them."""
    monkeypatch.chdir(tmp_path)
    there, here = tmp_path / "a.db", tmp_path / "b.db"

    async with opened(there) as store:
        await save(store, tick(START))
        StoreDecisions(store).keep_decisions(
            [some(number) for number in range(250)], [DecisionOutcome(some(3).time, "n", "o")]
        )
        await written(there, 250)
    copied = CliRunner().invoke(main, ["db", "copy", "--from", url_of(there), "--to", url_of(here)])
    assert 0 == copied.exit_code, copied.output
    everything = "SELECT * FROM decision ORDER BY time"
    assert query(there, everything) == query(here, everything)


@pytest.mark.real
async def test_replicas_find_decisions_of_each_other(server_database: str) -> None:
    """The scheduler may have asked any of them, in one cluster; watchers of other clusters are excluded."""
    async with (
        opened(server_database, watcher="one/a") as a,
        opened(server_database, watcher="one/b") as b,
        opened(server_database, watcher="two/a") as other,
    ):
        for number, store in enumerate((a, b, other)):
            await save(store, tick(START))
            StoreDecisions(store).keep_decisions([some(number)])
        await written(server_database, 3)
        for store in (a, b):
            assert [some(1), some(0)] == await all_of(store)
            assert 2 == (await StoreDecisions(store).placements_held()).count
        assert [some(2)] == await all_of(other)


# --- kinds -----------------------------------------------------------------------------------------------------------


async def test_each_kind_is_found_and_counted_separately(place: str) -> None:
    """For all pods, newest or oldest first, queued or written."""
    shadows = [some(number, kind="shadow") for number in range(5)]
    placement = some(5)
    again = some(3, kind="shadow", payload=b"observed")

    async def check(store: Store, fourth: StoredDecision) -> None:
        expected = [shadows[4], fourth, *shadows[2::-1]]
        assert expected == await found_in(store, kind="shadow", limit=9)
        assert expected[:2] == await found_in(store, kind="shadow", limit=2)
        assert expected[::-1] == await found_in(store, kind="shadow", limit=9, newest=False)
        within = {"start": shadows[1].time, "end": shadows[4].time, "limit": 2}
        assert expected[1:3] == await found_in(store, kind="shadow", **within)
        assert [placement] == await all_of(store)
        assert 1 == (await StoreDecisions(store).placements_held()).count

    async with opened(place) as store:
        StoreDecisions(store).keep_decisions([*shadows, placement])
        await check(store, shadows[3])
        await written(place, 6)
        await check(store, shadows[3])
        StoreDecisions(store).keep_decisions([again])
        await check(store, again)
    async with opened(place) as store:
        await check(store, again)


async def test_each_kind_has_the_same_retention_and_limit(place: str) -> None:
    async with opened(place, max_decisions=100) as store:
        StoreDecisions(store).keep_decisions([some(number, ago=7200, kind="shadow") for number in range(150)])
        StoreDecisions(store).keep_decisions([some(number, ago=7100) for number in range(100)])
        await written(place, 200)
        await eventually(lambda: not store.decision_queue.batch(), what="an empty queue")  # it is read, too
        assert some(50, ago=7200, kind="shadow") == (await found_in(store, kind="shadow", limit=1000))[-1]
    async with opened(place, decisions=3600.0) as store:
        assert [] == await found_in(store, kind="shadow", limit=1000)
        StoreDecisions(store).keep_decisions([some(1, kind="shadow")])
        await written(place, 1)
        assert [some(1, kind="shadow")] == await found_in(store, kind="shadow", limit=1000)


# --- retention -------------------------------------------------------------------------------------------------------


async def test_decisions_are_removed_after_their_retention(place: str) -> None:
    """They are not returned from that moment on, and deleted with the next tick or the next decision."""
    old, new = some(1, ago=7200), some(2, ago=60)

    async with opened(place) as store:
        StoreDecisions(store).keep_decisions([old, new])
        await written(place, 2)
    async with opened(place, decisions=3600.0) as store:
        assert [new] == await all_of(store)
        assert DecisionsExtent(1, new.time, new.time) == await StoreDecisions(store).placements_held()
        await save(store, tick(BEGUN // SECOND))
        await written(place, 1)
        StoreDecisions(store).keep_decisions([some(3, ago=8000), some(4, ago=0)])
        await written(place, 2)
        assert [some(4, ago=0), new] == await all_of(store)


async def test_of_too_many_decisions_the_oldest_are_removed(place: str) -> None:
    """With each new decision, so that the table is bounded without ticks too."""
    async with opened(place, max_decisions=100) as store:
        for first in range(0, 300, 50):
            StoreDecisions(store).keep_decisions([some(number) for number in range(first, first + 50)])
            await eventually(lambda: not store.decision_queue.batch(), what="them to be written")
        await written(place, 100)
        assert [some(number) for number in range(299, 199, -1)] == await all_of(store)


async def test_a_pod_with_many_decisions_displaces_no_others(place: str) -> None:
    """Its share is at most a hundredth, so its own oldest ones are removed first."""
    others = [some(number, ago=600, pod=f"other-{number}") for number in range(80)]
    async with opened(place, max_decisions=100) as store:
        StoreDecisions(store).keep_decisions(others)
        for first in range(0, 300, 50):
            StoreDecisions(store).keep_decisions([some(number) for number in range(first, first + 50)])
            await eventually(lambda: not store.decision_queue.batch(), what="them to be written")
        await written(place, 100)
        assert others[::-1] == [each for each in await found_in(store, limit=200) if each.pod != "web"]
        assert [some(number) for number in range(299, 279, -1)] == await all_of(store)


async def test_decisions_count_in_the_size_of_the_database(tmp_path: Path) -> None:
    """The oldest hour is removed first, with all its contents."""
    path = tmp_path / "a.db"
    half_a_megabyte = [bytes(10_000)] * 50

    async with opened(path, max_size=2**20) as store:
        for hours in (7, 5, 3):
            numbered = enumerate(half_a_megabyte)
            StoreDecisions(store).keep_decisions(
                [some(n, ago=3600.0 * hours, payload=payload) for n, payload in numbered]
            )
        await written(path, 150)
        await save(store, tick(BEGUN // SECOND))
        await written(path, 50)
    assert 50 == count(path, "decision", where=f"time >= {some(0, ago=10800.0).time}")


async def test_the_rows_of_a_removed_watcher_stay_for_the_retention_of_decisions(tmp_path: Path) -> None:
    """If it is longer than that of its windows."""
    path = tmp_path / "a.db"

    async with opened(path, retention=3600.0, decisions=86400.0) as store:
        await save(store, tick(START))
    assert [(START + 0.25 + 86400.0,)] == query(path, "SELECT keep_until FROM tick")


# --- failures --------------------------------------------------------------------------------------------------------


def test_the_queue_is_bounded_and_drops_its_oldest_decisions() -> None:
    """In number and in bytes. A replaced decision counts once, and one that replaces a decision in a batch stays in the
    queue."""
    waiting = DecisionQueue(most=3, most_bytes=100)
    decisions = [some(n, kind="shadow" if n % 2 else "placement") for n in range(5)]
    waiting.add(decisions, [DecisionOutcome(each.time, "n", "o") for each in decisions], lost=7)
    batch = waiting.batch()
    assert decisions[2:] == list(batch.decisions)
    assert [some(n).time for n in (2, 3, 4)] == [outcome.time for outcome in batch.outcomes]
    assert 9 == waiting.lost
    waiting.add([some(4, payload=b"x" * 99), some(5)], ())
    assert [some(5)] == list(waiting.batch().decisions)
    assert 12 == waiting.lost
    waiting.add([some(4)], ())
    waiting.remove(waiting.batch(), written=True)
    assert not waiting.batch()
    waiting.add([some(6)], ())
    batch = waiting.batch()
    waiting.add([some(6, payload=b"newer")], ())
    waiting.remove(batch, written=True)
    assert [some(6, payload=b"newer")] == list(waiting.batch().decisions)


async def test_decisions_are_found_while_they_cannot_be_written(tmp_path: Path) -> None:
    """Another program locks the database: keep_decisions returns at once, queries are answered, and nothing is lost."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        StoreDecisions(store).keep_decisions([some(1)])
        await written(path, 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            StoreDecisions(store).keep_decisions([some(2)], [DecisionOutcome(some(1).time, "node-1", "bound")])
            found = await all_of(store)
            assert [(some(2).time, ""), (some(1).time, "node-1")] == [(each.time, each.node) for each in found]
            assert 2 <= (await StoreDecisions(store).placements_held()).count <= 3
            other.execute("ROLLBACK")
        await written(path, 2)
        assert 0 == store.status.lost_decisions


@pytest.mark.real
async def test_a_full_disk_drops_the_oldest_with_a_count_and_one_log_line(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """keep_decisions still returns at once; with free space, the newest are written."""
    caplog.set_level(logging.INFO)
    path = small_disk / "a.db"
    half_a_megabyte = bytes(range(256)) * 2048

    async with opened(path) as store:
        for number in range(50):
            StoreDecisions(store).keep_decisions([some(number, payload=half_a_megabyte)])
        await eventually(lambda: not store.status.ok, what="the disk to be full")
        assert "full" in store.status.error
        await eventually(lambda: store.status.lost_decisions >= 15, what="the oldest to be lost")
        await asyncio.to_thread(enlarge, small_disk)
        StoreDecisions(store).keep_decisions([some(50)])
        await eventually(lambda: store.status.ok, what="the disk to take them")
        assert [some(50)] == await all_of(store, limit=1)
        await eventually(lambda: not store.decision_queue.batch(), what="the rest")
    assert 30 <= count(path, "decision") <= 36
    reported = [record.message for record in caplog.records if "storing decisions" in record.message]
    assert 2 == len(reported), reported
    assert "storing decisions in the database fails: database or disk is full" == reported[0]


async def test_decisions_that_cannot_be_stored_are_dropped_and_the_next_are_stored(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the fault is in the decisions and not in the disk, there is no endless retry."""
    async with opened(place) as store:
        StoreDecisions(store).keep_decisions([StoredDecision(2**70, "default", "web", "u", b"")])
        await eventually(partial(lost, store, 1), what="it to be given up")
        StoreDecisions(store).keep_decisions([some(1)])
        await written(place, 1)
        assert store.status.ok
    assert ["cannot store decisions; they are dropped"] == [r.message for r in caplog.records if r.levelname == "ERROR"]


def lost(store: Store, number: int) -> bool:
    return store.status.lost_decisions == number


async def test_close_tries_to_write_again(tmp_path: Path) -> None:
    """Decisions that another program blocked for longer than SQLite waits."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            StoreDecisions(store).keep_decisions([some(1)])
            await eventually(lambda: not store.status.ok, what="it to fail")
            other.execute("ROLLBACK")
    assert 1 == count(path, "decision")


async def test_close_writes_the_queue(place: str) -> None:
    """Afterwards, queries fail."""
    store = store_at(place)
    await store.open()
    StoreDecisions(store).keep_decisions([some(number) for number in range(20)])
    await store.close()
    assert 20 == count(place, "decision")
    StoreDecisions(store).keep_decisions([some(21)])  # a request that is still running
    with pytest.raises(DecisionsUnavailable, match="not open"):
        await all_of(store)


def stand_still() -> None:
    time.sleep(0.5)


async def test_a_query_that_is_cancelled_when_its_result_arrives_ends(tmp_path: Path) -> None:
    """Otherwise a task with repeated queries, such as shadow mode, would run forever, and the service would never
    end."""
    async with opened(tmp_path / "store.db") as store:
        asking = asyncio.create_task(all_of(store))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stand_still()  # then the result exists, and the waiting task is not scheduled yet
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
