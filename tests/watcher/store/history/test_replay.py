"""The whole history of a file, for replay."""

from pathlib import Path

import numpy as np
import pytest

from tests.waiting import eventually
from tests.watcher.store.ticks import CPU, FIFTEEN, FIVE, NODES, START, count, minute, opened, save, tick
from watcher.store.errors import StoreError
from watcher.store.history.replay import is_database, read_history


async def test_the_history_has_the_averages_of_the_shortest_window(tmp_path: Path) -> None:
    """From closed and from open hours."""
    path, minutes = tmp_path / "a.db", (0, 1, 59, 60, 61)
    async with opened(path) as store:
        for number in minutes:
            when = START + 60 * number
            records = [minute(number, when=when, window=FIVE), minute(77.0, when=when, window=FIFTEEN)]
            await save(store, tick(when, blocks=[], records=records))
        await eventually(lambda: count(path, "window_hour") == 2, what="the closed hours of both windows")
        found = read_history(path)
    assert is_database(path)
    assert (found.window_s, found.nodes, list(found.values)) == (300, NODES, [CPU])
    assert found.time.tolist() == [START + 60.0 * number for number in minutes]
    expected = np.array(minutes)[:, np.newaxis] + 0.0625 * np.arange(len(NODES))
    np.testing.assert_allclose(found.values[CPU], expected, rtol=1e-6)


async def test_a_file_without_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path) as store:
        await save(store, tick(START, records=[]))
    with pytest.raises(StoreError, match="has no history yet"):
        read_history(path)
    other = tmp_path / "text"
    other.write_text("time,load")
    assert not is_database(other)


async def test_a_file_of_two_watchers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for name in ("x", "y"):
        async with opened(path, watcher=name) as store:
            await save(store, tick(START))
    with pytest.raises(StoreError, match="has the history of 2 watchers") as error:
        read_history(path)
    assert "--from-watcher" in error.value.hint
