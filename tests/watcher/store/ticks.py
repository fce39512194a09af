"""Ticks for tests of the store: small, and all different."""

import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.waiting import eventually
from watcher.core.windows.records import SampleBlock, TickRecord, WindowRecord
from watcher.model import Operator, Provenance, Window
from watcher.store.settings import StoreSettings
from watcher.store.store import Store

FIVE, FIFTEEN = Window("5m", 300), Window("15m", 900)
RESOLUTION = 15
START = 1_700_000_000 // 3600 * 3600
CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"
COLUMNS = ((CPU, Operator.AVG), (CPU, Operator.STD))
ORIGIN = Provenance("Prometheus", "1 - idle", "ratio", 300.0)
NODES = ("node-a", "node-b", "node-c")

Cells = dict[tuple[str, int, str], tuple[bytes, int]]


def url_of(place: Path | str) -> str:
    """The URL of a file, or the given URL."""
    return f"sqlite:///{place}" if isinstance(place, Path) else place


def store_at(place: Path | str, **settings: Any) -> Store:
    """A store that is not open yet, in a file or at a URL."""
    more = {name: settings.pop(name) for name in ("owner", "watcher", "maxima") if name in settings}
    section = StoreSettings(**{"url": url_of(place), "max_size": 2**30, **settings})
    return Store(section, **{"owner": "a test", **more})


@asynccontextmanager
async def opened(place: Path | str, **settings: Any) -> AsyncIterator[Store]:
    store = store_at(place, **settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def restored_at(place: Path | str, **settings: Any) -> TickRecord | None:
    """The state that a start restores."""
    store = store_at(place, **settings)
    try:
        return await store.open()
    finally:
        await store.close()


def block(value: float, *, slot: int, metric: str = CPU, nodes: tuple[str, ...] = NODES, slots: int = 4) -> SampleBlock:
    """All cells have the same value, one second after the start of the slot."""
    shape = (slots, len(nodes))
    return SampleBlock(metric, slot, nodes, np.full(shape, float(value)), np.full(shape, 1000, dtype=np.uint16))


def minute(
    value: float, *, when: int, window: Window = FIFTEEN, nodes: tuple[str, ...] = NODES, columns: Any = COLUMNS
) -> WindowRecord:
    """Column j of node i is value + 0.125 j + 0.0625 i: exact in single precision."""
    values = value + 0.125 * np.arange(len(columns))[:, np.newaxis] + 0.0625 * np.arange(len(nodes))
    return WindowRecord(window, when, nodes, columns, values.astype(np.float32))


def tick(
    when: int,
    *,
    blocks: Iterable[SampleBlock] | None = None,
    records: Iterable[WindowRecord] | None = None,
    resolution: int = RESOLUTION,
    origin: Provenance = ORIGIN,
) -> TickRecord:
    """A tick at `when`: by default with the samples of its last minute and one minute of both windows."""
    value = float(when % 8192)
    if blocks is None:
        blocks = [block(value, slot=when // RESOLUTION - 3)]
    if records is None:
        records = [minute(value, when=when, window=window) for window in (FIVE, FIFTEEN)]
    blocks = tuple(blocks)
    return TickRecord(
        timestamp=when + 0.5,
        end=when + 0.25,
        source="Prometheus",
        resolution=resolution,
        windows=(FIVE, FIFTEEN),
        provenance={one.metric: origin for one in blocks},
        blocks=blocks,
        records=tuple(records),
    )


async def save(store: Store, *ticks: TickRecord) -> None:
    """Save ticks one after the other, each when the previous one is stored."""
    for one in ticks:
        store.save(one)
        await eventually(partial(is_stored, store, one), what=f"the tick {one.timestamp}")


async def save_beyond_the_cap(store: Store, *, ticks: int) -> None:
    """Save windows of 1,000 nodes that cannot be compressed, one every two minutes, until the store reports its
    limit."""
    nodes = tuple(f"node-{i}" for i in range(1000))
    random = np.random.default_rng(5)
    for when in range(START, START + 120 * ticks, 120):
        values = random.uniform(0, 100, (2, len(nodes))).astype(np.float32)
        store.save(tick(when, records=[WindowRecord(FIFTEEN, when, nodes, COLUMNS, values)]))
    last = START + 120 * (ticks - 1)
    await eventually(lambda: store.status.last_saved == last + 0.25, what="the last tick")
    await eventually(lambda: store.findings, what="the cap to be noticed")


@contextmanager
def locked(place: str) -> Iterator[None]:
    """Another program blocks the store: it locks the file, or dumps or alters a table of the server."""
    if place.startswith("sqlite:///"):
        with closing(sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield
            file.execute("ROLLBACK")
        return
    import psycopg

    with psycopg.connect(place) as server:
        server.execute("LOCK TABLE tick")
        yield


def is_stored(store: Store, one: TickRecord) -> bool:
    """Whether this tick was stored last."""
    return store.status.last_saved == one.end


def count(place: Path | str, table: str, *, where: str = "true") -> int:
    """Rows of a table, read with another connection."""
    return int(query(place, f"SELECT count(*) FROM {table} WHERE {where}")[0][0])


def query(place: Path | str, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, or the number of changed ones, with another connection."""
    url = url_of(place)
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            return connection.execute(statement).fetchall()
    import psycopg

    with psycopg.connect(url) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def cells_of(blocks: Iterable[SampleBlock]) -> Cells:
    """The cells of the blocks, a later block over an earlier one; values as bytes, so that NaN equals itself."""
    cells: Cells = {}
    for one in blocks:
        for row in range(len(one.values)):
            for column, node in enumerate(one.nodes):
                value = one.values[row, column].tobytes()
                cells[one.metric, one.first_slot + row, node] = value, int(one.offset_ms[row, column])
    return cells
