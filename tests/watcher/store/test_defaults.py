"""Defaults and limits of the store that docs/ states."""

from __future__ import annotations

from tests.defaults import defaults
from watcher.store import compaction, status, store
from watcher.store.decisions import queue
from watcher.store.engines import postgresql, sqlite
from watcher.store.settings import StoreSettings

DAY, MIB = 86_400.0, 2**20


def test_default_settings() -> None:
    assert {"retention": DAY, "decisions": DAY, "max_decisions": 100_000, "upgrade": True} == defaults(StoreSettings)


def test_waiting_data_is_bounded() -> None:
    assert (64 * MIB, 20_000, 16 * MIB) == (store.WAITING_BYTES, queue.MOST_WAITING, queue.MOST_BYTES)


def test_times_in_seconds() -> None:
    assert (10.0, 5.0, 15.0, 30.0) == (
        store.OPEN_SECONDS,
        store.CLOSE_SECONDS,
        store.READ_SECONDS,
        store.REOPEN_SECONDS,
    )
    assert (30.0, 5, 5.0) == (status.STALLED_SECONDS, postgresql.CONNECT_SECONDS, postgresql.POOL_SECONDS)
    assert 7 * DAY == compaction.MAXIMA_S


def test_sizes() -> None:
    assert (2048 * MIB, 2.4, 4) == (
        compaction.DEFAULT_MAX_SIZE,
        compaction.STORED_BYTES_PER_VALUE,
        compaction.LIMIT_BYTES_PER_VALUE,
    )
    assert (100, 64 * MIB) == (compaction.POD_SHARE, sqlite.SMALL_BYTES)
