"""The size limit of the database: fixed, or growing with the fleet."""

from pathlib import Path
from typing import Any

import pytest

from tests.watcher.store.ticks import COLUMNS, FIFTEEN, FIVE, START, minute, opened, save, tick
from watcher.store.commands import database_at
from watcher.store.compaction import Compactor, default_max_size
from watcher.store.engines.database import Database
from watcher.store.settings import StoreSettings

GIB = 1 << 30
DAY = 86400.0


def test_the_default_limit_holds_the_retention_of_any_fleet() -> None:
    """At least 2 GiB; 50,000 nodes with three windows of four columns take 2.04 GB a day (docs/reference/store.md)."""
    assert 2 * GIB == default_max_size(0, retention=DAY) == default_max_size(12 * 5_000, retention=DAY)
    assert 2.04e9 < default_max_size(12 * 50_000, retention=DAY) == 3_456_000_000
    assert 2 * 3_456_000_000 == default_max_size(12 * 50_000, retention=2 * DAY)


class FullDatabase:
    """A database with this number of used bytes."""

    def __init__(self, database: Database, used: int) -> None:
        self._database = database
        self._used = used

    def used_bytes(self, _: object) -> int:
        return self._used

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def large_tick(nodes: int) -> Any:
    names = tuple(f"node-{number}" for number in range(nodes))
    return tick(START, blocks=[], records=[minute(1, when=START, window=each, nodes=names) for each in (FIVE, FIFTEEN)])


@pytest.mark.parametrize(
    ("max_size", "opened_with", "used", "cut"),
    [
        (None, 0, 2 * GIB, False),
        (None, 0, 2 * GIB + 1, True),
        (2 * GIB, 3 * GIB, 2 * GIB + 1, True),
        (None, 3 * GIB, 3 * GIB, False),  # written by a larger fleet, before the start
        (None, 3 * GIB, 3 * GIB + 1, True),
    ],
)
async def test_a_growing_limit_keeps_the_stored_history(
    tmp_path: Path, max_size: int | None, opened_with: int, used: int, cut: bool
) -> None:
    """A configured limit does not."""
    assert cut == await is_cut(tmp_path / "a.db", max_size=max_size, opened_with=opened_with, used=used, nodes=2)


async def test_a_limit_grows_with_the_largest_fleet_since_the_start(tmp_path: Path) -> None:
    """100 days of 4,000 nodes with two windows of two columns."""
    limit = 4 * 4_000 * 2 * len(COLUMNS) * 144_000
    assert not await is_cut(tmp_path / "a.db", used=limit, nodes=4_000, retention=100 * DAY)
    assert await is_cut(tmp_path / "b.db", used=limit + 1, nodes=4_000, retention=100 * DAY)


async def is_cut(
    path: Path, *, used: int, nodes: int, max_size: int | None = None, opened_with: int = 0, retention: float = DAY
) -> bool:
    """Whether a database with this number of bytes is shortened after a tick with this number of nodes."""
    async with opened(path) as store:
        await save(store, tick(START))
    compactor = Compactor(StoreSettings(retention=retention, max_size=max_size, max_decisions=100))
    compactor.opened(opened_with)
    compactor.stored(large_tick(nodes))
    compactor.stored(large_tick(1))
    with database_at(f"sqlite:///{path}") as database:
        database.acquire(owner="a test")
        database.prepare(upgrade=True)
        for _ in compactor.slices(FullDatabase(database, used)):  # type: ignore[arg-type]  # a Database but for its size
            if compactor.findings:
                return True
    return False
