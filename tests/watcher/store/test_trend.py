"""The load of the whole fleet over time, from stored windows."""

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import eventually
from tests.watcher.store.ticks import CPU, FIVE, MEMORY, START, count, is_stored, opened, save, store_at, tick
from watcher.core.koordinator.report import Capacity
from watcher.core.windows.fleet_trend import CapacityWeights, FleetTrend, TrendDocument
from watcher.core.windows.records import TickRecord, WindowRecord
from watcher.model import Operator
from watcher.store.errors import StoreError
from watcher.store.store import Store

COLUMNS = ((CPU, Operator.AVG), (CPU, Operator.STD), (MEMORY, Operator.AVG))
EQUAL = CapacityWeights({})
NAN = float("nan")


def loads(when: int, *, nodes: tuple[str, ...], cpu: list[float], memory: list[float] | None = None) -> TickRecord:
    """A tick with one minute of the 5-minute window; the deviation differs from all means."""
    values = [cpu, [77.0] * len(cpu), memory or [NAN] * len(cpu)]
    return tick(when, blocks=[], records=[WindowRecord(FIVE, when, nodes, COLUMNS, np.array(values, dtype=np.float32))])


async def trend_of(
    store: Store, *, weights: CapacityWeights = EQUAL, trend: FleetTrend | None = None
) -> tuple[FleetTrend, TrendDocument]:
    known = trend or FleetTrend("5m", seconds=300)
    grown = await store.extended_trend(known, weights, start=START, end=START + 86_400)
    return grown, grown.document(start=START, end=START + 86_400, weighted=weights.known, reason="none yet")


async def test_each_step_has_the_mean_of_its_last_minute_weighted_by_capacity(tmp_path: Path) -> None:
    """A node without a known capacity has the mean of the others, and one without a value does not count."""
    sizes = CapacityWeights({"a": Capacity(1000, 3), "b": Capacity(3000, 1)})
    nodes = ("a", "b", "c")
    async with opened(tmp_path / "db") as store:
        await save(
            store,
            loads(START + 60, nodes=nodes, cpu=[99.0] * 3),
            loads(START + 240, nodes=nodes, cpu=[10.0, 50.0, 30.0], memory=[20.0, 60.0, NAN]),
            loads(START + 300, nodes=("c",), cpu=[NAN]),
            loads(START + 600, nodes=("a", "b"), cpu=[10.0, NAN]),
        )
        _, weighted = await trend_of(store, weights=sizes)
        _, equal = await trend_of(store)
    assert ("5m", 300, True, "") == (weighted.window, weighted.step, weighted.weighted, weighted.reason)
    assert [START + 240, START + 600] == weighted.time
    assert [3, 1] == weighted.nodes
    assert [(1000 * 10 + 3000 * 50 + 2000 * 30) / 6000, 10.0] == pytest.approx(weighted.cpu, abs=1e-3)
    assert [30.0, None] == weighted.memory
    assert ([30.0, 10.0], [40.0, None], False) == (equal.cpu, equal.memory, equal.weighted)


async def test_compacted_hours_and_new_minutes_make_one_series(tmp_path: Path) -> None:
    """Read at once or in parts, with more nodes than a chunk has."""
    nodes = tuple(f"node-{number:03}" for number in range(300))
    path = tmp_path / "db"
    ticks = [loads(START + 60 * k, nodes=nodes, cpu=[float(k % 90)] * 299 + [NAN]) for k in range(130)]
    async with opened(path) as store:
        known = FleetTrend("5m", seconds=300)
        for some in (ticks[:68], ticks[68:]):  # the last step of the first part is incomplete
            for one in some:
                store.save(one)
                await asyncio.sleep(0)
            await eventually(partial(is_stored, store, some[-1]), what="the ticks")
            known, grown = await trend_of(store, trend=known)
        where = f"time < {START + 7200}"
        await eventually(lambda: count(str(f"sqlite:///{path}"), "window_minute", where=where) == 0, what="two hours")
        version = known.version
        known, again = await trend_of(store, trend=known)
        _, at_once = await trend_of(store)
    assert [START + 300 * k + 240 for k in range(26)] == at_once.time
    assert [float((5 * k + 4) % 90) for k in range(26)] == pytest.approx(at_once.cpu, rel=1e-5)
    assert {299} == set(at_once.nodes)
    assert shape_of(grown) == shape_of(again) == shape_of(at_once)
    assert version == known.version


def shape_of(document: TrendDocument) -> tuple[list[int], list[int], list[int]]:
    """The values that do not depend on the rounding of compacted hours."""
    return document.time, document.nodes, [round(value or 0.0) for value in document.cpu]


async def test_without_stored_windows_the_reason_is_given(tmp_path: Path) -> None:
    async with opened(tmp_path / "db") as store:
        _, document = await trend_of(store)
        assert ([], "none yet") == (document.time, document.reason)
    with pytest.raises(StoreError, match="not open"):
        await trend_of(store_at(tmp_path / "db"))


async def test_steps_that_are_too_old_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path / "db") as store:
        await save(store, *(loads(START + 300 * k, nodes=("a",), cpu=[50.0]) for k in range(4)))
        trend, _ = await trend_of(store)
    trend.forget(before=START + 600)
    document = trend.document(start=0, end=2**40, weighted=False, reason="")
    assert [START + 600, START + 900] == document.time
