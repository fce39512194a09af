"""Reads the complete history of a database file for replay, also while a service writes the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from watcher.arrays import F32, F64
from watcher.model import Operator
from watcher.store import codec, schema
from watcher.store.codec import CodecError, Grid, HourBuilder
from watcher.store.engines.sqlite import SqliteFile, open_engine
from watcher.store.errors import StoreError
from watcher.store.history import rows as history_rows
from watcher.store.schema import NodeLists
from watcher.store.tables import Rows, window_hour, window_minute

OLDEST = "0002"
"""The first schema with a watcher column."""


@dataclass(frozen=True, slots=True)
class WholeHistory:
    """Averages over the shortest stored window (`window_s` seconds): `time` [t] of the minutes in unix seconds, and
    `values` by metric name [t, n], NaN where unknown."""

    window_s: int
    nodes: tuple[str, ...]
    time: F64
    values: dict[str, F32]


def is_database(path: Path) -> bool:
    """Whether a file starts with the SQLite header. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def read_history(path: Path) -> WholeHistory:
    """The complete history of a file. Raises StoreError if it contains no readable history."""
    revision = SqliteFile(path, watcher="").revision()
    if revision is None or revision < OLDEST:
        hint = (
            f"run load-watcher db upgrade --store-url sqlite:///{path}"
            if revision
            else "specify the database file of a store"
        )
        raise StoreError(f"{path} has no readable history (schema {revision or 'none'})", hint=hint)
    engine = open_engine(path, writes=False)
    try:
        with engine.begin() as connection:
            return _read(connection, path)
    except (SQLAlchemyError, CodecError) as error:
        raise StoreError(f"{path} cannot be read: {getattr(error, 'orig', None) or error}") from error
    finally:
        engine.dispose()


def _read(connection: sa.Connection, path: Path) -> WholeHistory:
    watchers = schema.watchers(connection)
    if len(watchers) != 1:
        found = ", ".join(f'"{name}"' for name in watchers) or "none"
        hint = "copy one of them to a separate file: load-watcher db copy --from-watcher NAME"
        raise StoreError(f"{path} has the history of {len(watchers)} watchers: {found}", hint=hint if watchers else "")
    mine = Rows(connection, watchers[0])
    windows = _windows(mine)
    if not windows:
        raise StoreError(
            f"{path} has no history yet", hint="the first minute is stored one minute after the service starts"
        )
    seconds, label = min(windows)
    grids = [*_hours(mine, label), *_minutes(mine, label)]
    builder = HourBuilder(
        times=[int(time) for grid in grids for time in grid.times],
        columns=[grid.columns for grid in grids],
        names=[grid.names for grid in grids],
    )
    for grid in grids:
        builder.add(grid)
    values = {metric: builder.values[:, row, :] for row, (metric, _) in enumerate(builder.columns)}
    if not values or not builder.names:
        raise StoreError(f"{path} has no averages of any node", hint="specify another file")
    return WholeHistory(seconds, builder.names, builder.times.astype(np.float64), values)


def _windows(mine: Rows) -> set[tuple[int, str]]:
    """Length in seconds and label of the stored windows."""
    restored = schema.restored(mine)
    known = {} if restored is None else {window.label: window.seconds for window in restored.windows}
    labels = {
        label
        for table in (window_minute, window_hour)
        for label in mine.execute(sa.select(table.c.window).where(mine.of_watcher(table)).distinct()).scalars()
    }
    return {(known[label], label) for label in labels if label in known}


def _hours(mine: Rows, window: str) -> list[Grid]:
    hours = [hour for label, hour in history_rows.hours_rewritten(mine) if label == window]
    payloads = (payload for hour in hours for payload in history_rows.chunk_payloads(mine, window, hour))
    return [_averages(codec.decode_chunk(payload)) for payload in payloads]


def _minutes(mine: Rows, window: str) -> list[Grid]:
    lists = NodeLists(mine)
    grids = []
    for label, hour in history_rows.hours_with_minutes(mine):
        for time, columns, nodes in history_rows.minutes_of_hour(mine, window, hour) if label == window else ():
            names = lists[nodes]
            payload = history_rows.minute_payload(mine, window, time)
            values = codec.decode_minute(payload, columns=len(columns), nodes=len(names))
            grids.append(_averages(Grid(np.array([time]), columns, names, values[np.newaxis])))
    return grids


def _averages(grid: Grid) -> Grid:
    """The columns with operator AVG; other operators are not replayed."""
    rows = [row for row, (_, operator) in enumerate(grid.columns) if operator is Operator.AVG]
    return Grid(grid.times, tuple(grid.columns[row] for row in rows), grid.names, grid.values[:, rows, :])
