"""Rows of the history of windows: minutes, and compacted hours in chunks of nodes.

Each function runs in the caller's transaction and accesses the rows of one watcher (`Rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index

import numpy as np
import sqlalchemy as sa

from watcher.model import Operator
from watcher.store import codec
from watcher.store.codec import HOUR, Grid
from watcher.store.schema import NodeLists, row_errors
from watcher.store.tables import Rows, window_hour, window_minute

# --- the history of one node -----------------------------------------------------------------------------------------


@row_errors()
def hours_of_node(mine: Rows, *, host: str, window: str, start: int, end: int) -> list[Grid]:
    """One grid per compacted hour with this node only; a grid without nodes if the hour does not contain the node.
    `start` and `end` are unix seconds."""
    chunk = window_hour.alias()
    of_the_node = (  # the last chunk that starts at or before the node; not every database supports max() of bytes
        sa.select(chunk.c.first_node)
        .where(chunk.c.watcher == mine.watcher, chunk.c.window == window, chunk.c.hour == window_hour.c.hour)
        .where(chunk.c.first_node <= codec.node_key(host))
        .order_by(chunk.c.first_node.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        sa.select(window_hour.c.payload)
        .where(mine.of_watcher(window_hour), window_hour.c.window == window)
        .where(window_hour.c.hour.between(hour_of(start), end), window_hour.c.first_node == of_the_node)
        .order_by(window_hour.c.hour)
    )
    return [_only(codec.decode_chunk(row.payload), host) for row in mine.execute(query)]


@row_errors()
def minutes_of_node(mine: Rows, *, host: str, window: str, start: int, end: int) -> list[Grid]:
    """One grid per minute that is not yet compacted, with this node only; a grid without nodes if the minute does not
    contain the node. `start` and `end` are unix seconds."""
    query = (
        sa.select(window_minute)
        .where(
            mine.of_watcher(window_minute), window_minute.c.window == window, window_minute.c.time.between(start, end)
        )
        .order_by(window_minute.c.time)
    )
    lists = NodeLists(mine)
    positions: dict[int, tuple[int, int | None]] = {}  # node list -> its length, index of the host
    grids: list[Grid] = []
    for row in mine.execute(query):
        if row.nodes not in positions:
            names = lists[row.nodes]
            positions[row.nodes] = len(names), names.index(host) if host in names else None
        nodes, position = positions[row.nodes]
        columns = codec.decode_columns(row.columns)
        time = np.array([row.time], dtype=np.int64)
        if position is None:
            grids.append(Grid(time, columns, (), np.empty((1, len(columns), 0), dtype=np.float32)))
        else:
            values = codec.decode_minute_of(row.payload, columns=len(columns), nodes=nodes, node=position)
            grids.append(Grid(time, columns, (host,), values.reshape(1, -1, 1)))
    return grids


def _only(grid: Grid, host: str) -> Grid:
    rows = [row for row, name in enumerate(grid.names) if name == host]
    return Grid(grid.times, grid.columns, tuple(grid.names[row] for row in rows), grid.values[:, :, rows])


# --- the history of all nodes ----------------------------------------------------------------------------------------


@row_errors()
def hours_of_window(mine: Rows, *, window: str, start: int, end: int) -> list[int]:
    """The compacted hours of a window that overlap a range, newest first; all in unix seconds."""
    this = (mine.of_watcher(window_hour), window_hour.c.window == window)
    query = sa.select(window_hour.c.hour).where(*this, window_hour.c.hour.between(hour_of(start), end))
    return [index(hour) for hour in mine.execute(query.distinct().order_by(window_hour.c.hour.desc())).scalars()]


@row_errors()
def minutes_of_window(mine: Rows, *, window: str, start: int, end: int) -> list[int]:
    """The times (unix seconds) of the minutes of a window that are not yet compacted."""
    this = (mine.of_watcher(window_minute), window_minute.c.window == window)
    query = sa.select(window_minute.c.time).where(*this, window_minute.c.time.between(start, end))
    return [index(time) for time in mine.execute(query.order_by(window_minute.c.time)).scalars()]


def averages_of_hour(mine: Rows, *, window: str, hour: int) -> Iterator[Grid]:
    """The averages of a compacted hour, decoded one chunk at a time."""
    for payload in chunk_payloads(mine, window, hour):
        with row_errors():
            grid = codec.decode_chunk(payload, operator=Operator.AVG)
        yield grid


def grids_of_minutes(mine: Rows, *, window: str, times: Iterable[int]) -> Iterator[Grid]:
    """These minutes with all nodes, decoded one at a time."""
    lists = NodeLists(mine)
    this = (mine.of_watcher(window_minute), window_minute.c.window == window)
    for time in times:
        row = mine.execute(sa.select(window_minute).where(*this, window_minute.c.time == time)).one_or_none()
        if row is None:  # compacted or deleted in the meantime
            continue
        with row_errors():
            columns, names = codec.decode_columns(row.columns), lists[row.nodes]
            values = codec.decode_minute(row.payload, columns=len(columns), nodes=len(names))
        yield Grid(np.array([time], dtype=np.int64), columns, names, values[np.newaxis])


# --- hours -----------------------------------------------------------------------------------------------------------


def hour_of(time: int) -> int:
    """The beginning of the hour that contains a time; both in unix seconds."""
    return time - time % HOUR


_MINUTE_HOUR = (window_minute.c.time - window_minute.c.time % HOUR).label("hour")


@row_errors()
def hours_with_minutes(mine: Rows) -> list[tuple[str, int]]:
    """(window, hour) of all minutes that are not yet compacted, oldest first."""
    query = sa.select(window_minute.c.window, _MINUTE_HOUR).where(mine.of_watcher(window_minute))
    return [(row.window, row.hour) for row in mine.execute(query.distinct().order_by(_MINUTE_HOUR))]


@row_errors()
def hours_rewritten(mine: Rows) -> list[tuple[str, int]]:
    """(window, hour) of all compacted hours, oldest first."""
    query = sa.select(window_hour.c.window, window_hour.c.hour).where(mine.of_watcher(window_hour)).distinct()
    return [(row.window, row.hour) for row in mine.execute(query.order_by(window_hour.c.hour))]


@row_errors()
def minutes_of_hour(mine: Rows, window: str, hour: int) -> list[tuple[int, codec.Columns, int]]:
    """(time, columns, id of the node list) of the minutes of an hour that are not yet compacted."""
    query = sa.select(window_minute.c.time, window_minute.c.columns, window_minute.c.nodes).where(
        mine.of_watcher(window_minute), *_minutes_within(window, hour)
    )
    rows = mine.execute(query.order_by(window_minute.c.time))
    return [(row.time, codec.decode_columns(row.columns), row.nodes) for row in rows]


def minute_payload(mine: Rows, window: str, time: int) -> bytes:
    """The encoded values of a minute; `time` in unix seconds."""
    this = (mine.of_watcher(window_minute), window_minute.c.window == window, window_minute.c.time == time)
    query = sa.select(window_minute.c.payload).where(*this)
    payload: bytes = mine.execute(query).scalar_one()
    return payload


def chunk_payloads(mine: Rows, window: str, hour: int) -> list[bytes]:
    """The encoded chunks of an hour, in order of their first node."""
    this = (mine.of_watcher(window_hour), window_hour.c.window == window, window_hour.c.hour == hour)
    query = sa.select(window_hour.c.payload).where(*this)
    return list(mine.execute(query.order_by(window_hour.c.first_node)).scalars())


def put_hour(mine: Rows, window: str, hour: int, payloads: Mapping[bytes, bytes]) -> None:
    """Replace all stored minutes and chunks of an hour by these chunks (key: first node)."""
    forget_hour(mine, window, hour)
    rows = [
        {"window": window, "hour": hour, "first_node": first, "payload": payload} for first, payload in payloads.items()
    ]
    mine.upsert(window_hour, rows)


def forget_hour(mine: Rows, window: str, hour: int) -> None:
    """Delete all minutes and chunks of an hour of a window."""
    this = (mine.of_watcher(window_hour), window_hour.c.window == window, window_hour.c.hour == hour)
    mine.execute(sa.delete(window_hour).where(*this))
    mine.execute(sa.delete(window_minute).where(mine.of_watcher(window_minute), *_minutes_within(window, hour)))


def _minutes_within(window: str, hour: int) -> tuple[sa.ColumnElement[bool], ...]:
    return window_minute.c.window == window, window_minute.c.time.between(hour, hour + HOUR - 1)


def forget_windows(mine: Rows, *, now: int, retention: float) -> None:
    """Delete minutes and hours more than `retention` seconds before or after `now` (unix seconds). Hours in the future
    exist if the clock was set back; without an upper limit they would never be deleted."""
    oldest, newest = now - retention, now + retention
    outside = (window_minute.c.time < oldest) | (window_minute.c.time > newest)
    mine.execute(sa.delete(window_minute).where(mine.of_watcher(window_minute), outside))
    for window, hour in hours_rewritten(mine):
        if hour + HOUR <= oldest or hour > newest:
            forget_hour(mine, window, hour)
