"""The store without faults: stored values are returned exactly, for the time of their retention."""

import asyncio
import os
import sqlite3
import tempfile
import uuid
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import eventually
from tests.watcher.store.ticks import (
    COLUMNS,
    CPU,
    FIFTEEN,
    FIVE,
    MEMORY,
    NODES,
    ORIGIN,
    RESOLUTION,
    START,
    block,
    cells_of,
    count,
    is_stored,
    locked,
    minute,
    opened,
    query,
    restored_at,
    save,
    save_beyond_the_cap,
    store_at,
    tick,
    url_of,
)
from watcher.core.windows.records import CARRIED, SampleBlock, TickRecord, WindowRecord
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import FindingKind, Operator
from watcher.store.commands import current, database_at, vacuum
from watcher.store.errors import StoreError, StoreInUse
from watcher.store.store import Store
from watcher.store.tables import REVISIONS

pytestmark = pytest.mark.slow

# --- samples ---------------------------------------------------------------------------------------------------------

names = st.lists(st.text(max_size=6), min_size=1, max_size=5, unique=True).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def random_block(metric: str, slot: int, nodes: tuple[str, ...], seed: int) -> SampleBlock:
    """Values with any bits, including all kinds of NaN and infinities."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 2**64, (4, len(nodes)), dtype=np.uint64).view(np.float64)
    values = np.where(random.random(values.shape) < 0.3, np.nan, values)
    offsets = random.integers(0, 2**16, values.shape).astype(np.uint16)
    return SampleBlock(metric, slot, nodes, values, np.where(random.random(values.shape) < 0.1, CARRIED, offsets))


several_ticks = st.lists(
    st.tuples(names, st.sets(st.sampled_from((CPU, MEMORY)), min_size=1), seeds), min_size=1, max_size=5
)


@settings(max_examples=12, deadline=None)
@given(several_ticks)
async def test_a_start_restores_the_samples_of_the_longest_window_exactly(ticks) -> None:
    """For any values, times and node names of a sequence of ticks, in which each block replaces the previous one."""
    with tempfile.TemporaryDirectory() as folder:
        await check_samples(Path(folder) / "a.db", ticks)


@pytest.mark.real
@settings(max_examples=4, deadline=None)
@given(several_ticks)
async def test_a_start_restores_the_samples_from_a_server_too(shared_database, ticks) -> None:
    """The same, with a separate watcher for each sequence."""
    await check_samples(shared_database, ticks, watcher=f"{uuid.uuid4()}")


async def check_samples(place: Path | str, ticks: Any, **options: str) -> None:
    saved: dict[tuple[str, int], SampleBlock] = {}
    async with opened(place, **options) as store:
        for number, (nodes, metrics, seed) in enumerate(ticks, start=1):
            slot = START // RESOLUTION + 4 * number
            blocks = [random_block(metric, s, nodes, seed + s) for metric in metrics for s in (slot - 4, slot)]
            saved |= {(one.metric, one.first_slot): one for one in blocks}
            last = tick((slot + 3) * RESOLUTION, blocks=blocks)
            await save(store, last)
    found = await restored_at(place, **options)
    assert found is not None
    assert cells_of(saved.values()) == cells_of(found.blocks)
    assert (last.timestamp, last.end, last.source, last.resolution, last.windows) == (
        found.timestamp,
        found.end,
        found.source,
        found.resolution,
        found.windows,
    )
    assert {metric: ORIGIN for metric, _ in saved} == found.provenance


async def kept_after(place: str, *ticks: TickRecord) -> set[tuple[str, int]]:
    """(metric, first slot) of the blocks after these ticks and a restart."""
    async with opened(place) as store:
        await save(store, *ticks)
    found = await restored_at(place)
    assert found is not None
    return {(one.metric, one.first_slot) for one in found.blocks}


SLOT = START // RESOLUTION


async def test_samples_before_the_longest_window_are_removed(place: str) -> None:
    """With a longest window of 15 minutes and 4 slots a block, one block before the window stays."""
    ticks = [tick(START + 60 * k, blocks=[block(k, slot=SLOT + 4 * k - 3)]) for k in range(20)]
    kept = await kept_after(place, *ticks)
    assert {(CPU, SLOT + 4 * k - 3) for k in range(4, 20)} == kept


async def test_samples_of_another_source_are_removed_per_metric(place: str) -> None:
    """A changed expression must not share a window with the earlier one; samples of the other metric stay."""
    both = tick(START, blocks=[block(1, slot=SLOT - 3), block(1, slot=SLOT - 3, metric=MEMORY)])
    changed = tick(START + 60, blocks=[block(2, slot=SLOT + 1)], origin=replace(ORIGIN, expression="another"))
    kept = await kept_after(place, both, changed)
    assert {(MEMORY, SLOT - 3), (CPU, SLOT + 1)} == kept


async def test_samples_of_another_resolution_are_removed(place: str) -> None:
    """Their slot numbers mean other times."""
    coarse = tick(START + 60, blocks=[block(2, slot=(START + 60) // 30)], resolution=30)
    kept = await kept_after(place, tick(START), coarse)
    assert {(CPU, (START + 60) // 30)} == kept


async def test_samples_after_the_newest_one_are_removed(place: str) -> None:
    """After the clock was set back by an hour, a start must not restore samples from the future."""
    kept = await kept_after(place, tick(START + 3600), tick(START))
    assert {(CPU, SLOT - 3)} == kept


async def test_lists_of_nodes_are_stored_once_and_removed_with_their_last_use(place: str) -> None:
    """Equal lists are one row."""

    counts = []
    async with opened(place, retention=60.0) as store:
        for step, nodes in ((0, NODES), (1, NODES), (2, (*NODES, "node-d")), (40, NODES[:1])):
            when = START + 60 * step
            blocks = [block(step, slot=when // RESOLUTION - 3, nodes=nodes)]
            await save(store, tick(when, blocks=blocks, records=[minute(step, when=when, nodes=nodes)]))
            counts.append(count(place, "node_list"))
        await save(store, tick(START + 41 * 60, blocks=[], records=[]))
        await eventually(lambda: count(place, "window_minute") == 1, what="the old minutes to go")
        await save(store, tick(START + 42 * 60, blocks=[], records=[]))
        found = [*counts, count(place, "node_list")]
    assert [1, 1, 2, 3, 1] == found


# --- windows ---------------------------------------------------------------------------------------------------------

Reference = dict[tuple[str, int], WindowRecord]


def expected_history(reference: Reference, window: str, host: str, column: object) -> dict[int, float]:
    """time -> value (None if unknown) of each minute of a window."""
    points = {}
    for (label, when), record in reference.items():
        if label == window:
            known = host in record.nodes and column in record.columns
            at = (record.columns.index(column), record.nodes.index(host)) if known else None
            points[when] = float(record.values[at]) if at else np.nan
    return dict(sorted(points.items()))


def assert_history_is(found: list[StoredSeries], reference: Reference, window: str, host: str) -> None:
    columns = {column for record in reference.values() for column in record.columns}
    expected = {column: expected_history(reference, window, host, column) for column in columns}
    known = {column: points for column, points in expected.items() if not np.isnan(list(points.values())).all()}
    assert known.keys() == {(series.metric, series.operator) for series in found}
    for series in found:
        points = known[series.metric, series.operator]
        assert list(points) == series.time.tolist()
        np.testing.assert_allclose(series.value, list(points.values()), rtol=1e-6, atol=0)
        assert window == series.window


def changing_day(seed: int) -> list[TickRecord]:
    """Four hours of ticks two minutes apart, in which nodes and columns appear and disappear, minutes are missed, and
    once the clock is set back over a closed hour."""
    random = np.random.default_rng(seed)
    pool = [f"node-{i:03}" for i in range(300)]
    times = [START + 120 * k for k in range(75)] + [START + 120 * k + 60 for k in range(20, 120)]
    nodes, columns, ticks = tuple(pool), COLUMNS, []
    for when in times:
        if random.random() < 0.1:
            nodes = tuple(random.permutation([name for name in pool if random.random() < 0.9]).tolist())
            columns = ((CPU, Operator.AVG), (MEMORY, Operator.AVG)) if random.random() < 0.5 else COLUMNS
        if random.random() < 0.1:
            continue
        values = random.uniform(0, 100, (len(columns), len(nodes))).astype(np.float32)
        values[random.random(values.shape) < 0.05] = np.nan
        ticks.append(tick(when, blocks=[], records=[WindowRecord(FIFTEEN, when, nodes, columns, values)]))
    return ticks


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_history_equals_the_saved_values_in_open_and_closed_hours(place: str, seed: int) -> None:
    """Minute by minute, with nodes and columns that change within the hour: for a node that always exists, some that do
    not, and unknown names."""
    ticks = changing_day(seed)
    reference: Reference = {(record.window.label, record.time): record for one in ticks for record in one.records}

    async def check(store: Store) -> None:
        for host in ("node-000", "node-127", "node-128", "node-299", "a", "zzz"):
            found = await store.history(host=host, window="15m", start=START, end=START + 86400)
            assert_history_is(found, reference, "15m", host)

    async with opened(place) as store:
        before_the_step = next(k for k, one in enumerate(ticks) if one.end > ticks[k + 1].end) + 1
        await save_all(store, place, ticks[:before_the_step])
        await save_all(store, place, ticks[before_the_step:])
        await check(store)
    async with opened(place) as store:
        await check(store)


async def save_all(store: Store, place: str, ticks: list[TickRecord]) -> None:
    """Save as fast as the store accepts ticks, and wait until all hours except the last one are compacted."""
    for one in ticks:
        store.save(one)
        await asyncio.sleep(0)
    await eventually(lambda: is_stored(store, ticks[-1]), what="all ticks")
    await eventually(lambda: minutes_of_closed_hours(place, ticks[-1]) == 0, what="the hours to be rewritten")


def minutes_of_closed_hours(place: str, last: TickRecord) -> int:
    hour = last.records[0].time // 3600 * 3600
    return count(place, "window_minute", where=f"time NOT BETWEEN {hour} AND {hour + 3599}")


async def test_a_minute_that_is_stored_again_replaces_the_earlier_one_completely(place: str) -> None:
    """Also after its hour was compacted, and if its node is missing in the new one; before and after that hour is
    compacted again."""
    again = tick(START, blocks=[], records=[minute(5, when=START, nodes=("node-b",))])

    expected = float((START + 60) % 8192)
    a, b = [np.nan, expected], [5.0, expected + 0.0625]
    values = []
    async with opened(place) as store:
        await save_all(store, place, [tick(START), tick(START + 60), tick(START + 3600)])
        await save(store, again)
        for last in (again, tick(START + 7200)):
            await save_all(store, place, [last])
            for host in ("node-a", "node-b"):
                (series, *_) = await store.history(host=host, window="15m", start=START, end=START + 60)
                values.append(series.value.tolist())
    np.testing.assert_array_equal([a, b, a, b], values)


async def test_a_new_node_has_gaps_for_the_time_before_it(place: str) -> None:
    """The response has the times of earlier hours, also for a name that sorts before all others."""
    late = tick(START + 3600, blocks=[], records=[minute(7, when=START + 3600, nodes=("a", *NODES, "z"))])

    async with opened(place) as store:
        await save_all(store, place, [tick(START), late, tick(START + 7200)])
        answers = [await store.history(host=host, window="15m", start=START, end=START + 3600) for host in "az"]
        found = [answer[0].value.tolist() for answer in answers]
    np.testing.assert_array_equal([[np.nan, 7.0], [np.nan, 7.25]], found)


async def test_windows_from_before_the_start_are_added_and_compacted(place: str) -> None:
    """They change neither the last tick nor its samples, and the next tick compacts their hours."""
    past = [minute(3, when=START - 60 * back) for back in range(1, 121)]
    async with opened(place) as store:
        await save(store, tick(START))
        await store.add_history(past)
        (series, *_) = await store.history(host="node-a", window="15m", start=START - 7200, end=START - 60)
        assert [START - 60 * back for back in range(120, 0, -1)] == series.time.tolist()
        assert set(series.value.tolist()) == {3.0}
        assert store.status.last_saved == START + 0.25
        await save_all(store, place, [tick(START + 3600)])
        (again, *_) = await store.history(host="node-a", window="15m", start=START - 7200, end=START - 60)
        np.testing.assert_array_equal(series.value, again.value)
    restored = await restored_at(place)
    assert restored is not None
    assert restored.end == START + 3600.25
    with pytest.raises(StoreError, match="not open"):
        await store.add_history(past)


async def test_the_history_has_only_the_requested_values(place: str) -> None:
    """Inclusive range, one window, selected metrics and operators; nothing for unknown ones."""

    async with opened(place) as store:
        await save(store, *(tick(START + 60 * k) for k in range(5)))
        all_of_it: dict[str, Any] = {"host": "node-b", "window": "15m", "start": START, "end": START + 600}
        answers = {
            "range": await store.history(**(all_of_it | {"start": START + 60, "end": START + 180})),
            "operator": await store.history(**all_of_it, operators=[Operator.STD]),
            "metric": await store.history(**all_of_it, metrics=[MEMORY]),
            "window": await store.history(**(all_of_it | {"window": "10m"})),
            "host": await store.history(**(all_of_it | {"host": "node-x"})),
        }
    assert [START + 60, START + 120, START + 180] == answers["range"][0].time.tolist()
    assert [(CPU, Operator.STD)] == [(series.metric, series.operator) for series in answers["operator"]]
    expected = [float((START + 60 * k) % 8192) + 0.1875 for k in range(5)]
    assert expected == answers["operator"][0].value.tolist()
    assert answers["metric"] == answers["window"] == answers["host"] == []


async def test_windows_are_removed_after_their_retention(place: str) -> None:
    """Single minutes exactly, compacted hours when all of their minutes are too old; samples of the longest window
    stay."""
    async with opened(place, retention=7200.0) as store:
        await save(store, *(tick(START + 600 * k) for k in range(36)))
        last = START + 600 * 35
        await eventually(lambda: minutes_of_closed_hours(place, tick(last)) == 0, what="the hours to be rewritten")
        found = await store.history(host="node-a", window="5m", start=0, end=2**40)
        assert (last - 7200) // 3600 * 3600 == found[0].time[0]
        assert last == found[0].time[-1]
    restored = await restored_at(place)
    assert restored is not None
    assert restored.blocks


async def test_a_clock_that_is_set_back_neither_stops_the_store_nor_keeps_hours_forever(place: str) -> None:
    """Hours in the future are kept for the retention, and then removed."""

    async with opened(place, retention=7200.0) as store:
        await save_all(store, place, [tick(START + 90 * 86400), tick(START + 90 * 86400 + 3600)])
        assert 2 == count(place, "window_hour")
        await save_all(store, place, [tick(START + 3600), tick(START)])
        await save(store, tick(START + 60))
        found = await store.history(host="node-a", window="5m", start=0, end=2**40)
        result = found[0].time.tolist()
    assert [START, START + 60, START + 3600] == result


async def test_minutes_that_arrive_while_their_hour_is_compacted_are_kept(place: str) -> None:
    """A clock that alternates between two hours closes each of them at each tick."""
    nodes = tuple(f"node-{i}" for i in range(1500))
    times = [START + 60 * k + 3600 * (k % 2) for k in range(30)]

    async with opened(place) as store:
        for when in times:
            records = [minute(when % 97, when=when, window=window, nodes=nodes) for window in (FIVE, FIFTEEN)]
            one = tick(when, blocks=[], records=records)
            store.save(one)
            while not is_stored(store, one):  # noqa: ASYNC110  (a longer pause would let the rewriting finish)
                await asyncio.sleep(0.0005)
        await save_all(store, place, [tick(START + 7200)])
        (series, *_) = await store.history(host="node-1499", window="15m", start=START, end=START + 7199)
        np.testing.assert_allclose([when % 97 + 1499 / 16 for when in sorted(times)], series.value, rtol=1e-6)
        found = series.time.tolist()
    assert sorted(times) == found


async def test_the_database_stays_within_its_limit_and_loses_the_oldest_windows(place: str) -> None:
    """Incompressible values beyond the limit: the database becomes smaller than the limit, the newest minutes and all
    samples remain, and a finding states that the history is shorter than the retention."""
    cap = 2**20
    file = Path(place.removeprefix("sqlite:///"))

    async with opened(place, max_size=cap) as store:
        await save_beyond_the_cap(store, ticks=250)
        size = (lambda: file.stat().st_size) if place.startswith("sqlite") else (lambda: store.status.size_bytes)
        await eventually(lambda: size() <= cap, what="the database to shrink")
        (series, *_) = await store.history(host="node-7", window="15m", start=0, end=2**40)
        assert store.status.ok
        assert [FindingKind.STORE] == [finding.kind for finding in store.findings]
    assert START + 120 * 249 == series.time[-1]
    assert START < series.time[0]
    assert np.array_equal(np.diff(series.time), np.full(len(series.time) - 1, 120))
    restored = await restored_at(place)
    assert restored is not None
    assert len(restored.blocks) >= 15 // 2


# --- saving ----------------------------------------------------------------------------------------------------------


async def test_save_returns_at_once_while_the_database_is_locked_and_loses_nothing(place: str) -> None:
    """Ticks are queued as one while another program locks the database, and stored when it releases the lock."""
    async with opened(place) as store:
        with locked(place):
            store.save(tick(START))
            await eventually(lambda: store.status.queued == 0, what="the writer to take the first tick")
            for k in range(1, 10):
                store.save(tick(START + 60 * k))
            assert (None, 9) == (store.status.last_saved, store.status.queued)
        await eventually(lambda: store.status.last_saved == START + 540.25, what="the last tick")
        assert (0, 0) == (store.status.queued, store.status.dropped)
        (series, *_) = await store.history(host="node-a", window="5m", start=START, end=START + 600)
        assert [START + 60 * k for k in range(10)] == series.time.tolist()
    found = await restored_at(place)
    assert found is not None
    expected = cells_of(one for k in range(10) for one in tick(START + 60 * k).blocks)
    assert expected == cells_of(found.blocks)


async def test_a_tick_that_failed_is_stored_before_later_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The database is locked for longer than the five seconds that SQLite waits. Afterwards the newest tick is the last
    one, and no window or sample of the failed one is missing."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.save(tick(START))
            await eventually(lambda: store.status.queued == 0, what="the writer to take the first tick")
            store.save(tick(START + 60))
            await eventually(lambda: not store.status.ok, what="the first to fail", timeout=60)
            other.execute("ROLLBACK")
        await eventually(lambda: store.status.last_saved == START + 60.25, what="both to be stored")
        (series, *_) = await store.history(host="node-a", window="5m", start=START, end=START + 600)
        assert [START, START + 60] == series.time.tolist()
    found = await restored_at(path)
    assert found is not None
    assert (START + 60.25, 2) == (found.end, len(found.blocks))
    assert "saving to the database fails: database is locked" in caplog.messages


async def test_a_tick_that_cannot_be_stored_is_dropped_and_the_next_is_stored(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the fault is in the record and not in the disk, there is no endless retry."""
    async with opened(place) as store:
        store.save(tick(START, records=[replace(minute(1, when=START), time=2**70)]))
        await eventually(lambda: store.status.dropped == 1, what="the tick to be given up")
        await save(store, tick(START + 60))
        assert store.status.ok
    assert ["cannot store a tick; its data is dropped"] == [r.message for r in caplog.records if r.levelname == "ERROR"]


async def test_close_stores_the_queued_tick(place: str) -> None:
    """SIGTERM right after a tick loses nothing. Afterwards the store accepts no ticks, and a second close does
    nothing."""
    store = store_at(place)
    await store.open()
    for k in range(5):
        store.save(tick(START + 60 * k))
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        store.save(tick(START))
    with pytest.raises(StoreError, match="not open"):
        await store.history(host="node-a", window="5m", start=0, end=1)
    found = await restored_at(place)
    assert found is not None
    assert START + 240.25 == found.end


async def test_a_store_that_was_not_opened_can_be_closed(tmp_path: Path) -> None:
    """As after a failed start."""
    await store_at(tmp_path / "a.db").close()
    assert [] == list(tmp_path.iterdir())


async def test_the_status_has_the_stored_times_and_the_size(tmp_path: Path) -> None:
    """Before the first tick, after it, and after a restart."""
    path = tmp_path / "a.db"

    async with opened(path) as store:
        assert (True, "", None, None) == (
            store.status.ok,
            store.status.error,
            store.status.since,
            store.status.last_saved,
        )
        await save(store, tick(START))
        assert store.status.size_bytes >= path.stat().st_size > 0
    async with opened(path) as store:
        assert START + 0.25 == store.status.last_saved


# --- the lock --------------------------------------------------------------------------------------------------------


async def test_a_second_service_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    """With its address and the file. The first one continues, and the file is free when it is closed."""
    path = tmp_path / "a.db"

    async with opened(path, owner="load-watcher on 127.0.0.1:2020") as store:
        with pytest.raises(StoreInUse) as refused:
            await store_at(path).open()
        await save(store, tick(START))
        with pytest.raises(StoreInUse):
            vacuum(database_at(url_of(path)))
        assert f"schema {REVISIONS[-1]}" in current(database_at(url_of(path))).text
    assert f"{path} is in use by process {os.getpid()} (load-watcher on 127.0.0.1:2020)" == str(refused.value)
    assert refused.value.hint
    assert await restored_at(path) is not None


async def test_vacuum_releases_free_space(place: str) -> None:
    """It prints the amount; the ticks remain. A file must be closed for it; on a server, it runs beside a watcher."""
    nodes = tuple(f"node-{i}" for i in range(3000))
    noise = np.random.default_rng(1).random((2, len(nodes))).astype(np.float32)
    times = [START + 60 * k for k in range(20)]
    async with opened(place) as store:
        await save(store, *(tick(when, records=[WindowRecord(FIFTEEN, when, nodes, COLUMNS, noise)]) for when in times))
    query(place, "DELETE FROM window_minute")
    async with nullcontext() if place.startswith("sqlite") else opened(place, watcher="another") as beside:
        said = await asyncio.to_thread(vacuum, database_at(place))
        if beside is not None:
            await save(beside, tick(START + 3600))
    before, after = (float(word) for word in said.text.split() if word[0].isdigit())
    assert after < before - 0.3
    assert await restored_at(place) is not None
