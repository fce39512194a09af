"""The tables of the store, and every statement on them: what goes in, what comes out, and what is forgotten when.

Each function does its part of a transaction that its caller holds. What is on disk must always be one consistent whole:
samples of one resolution and one origin per metric, not newer than the last tick, and no list of nodes that nothing
refers to. What makes the payloads is codec.py; migrations/ makes the tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from watcher.model import Provenance, Restored, SampleBlock, TickRecord, Window, WindowRecord
from watcher.store import codec
from watcher.store.codec import HOUR, CodecError, Grid

# --- tables ----------------------------------------------------------------------------------------------------------
# What migrations/ makes; a test holds that both agree. Times are unix seconds. How the payloads are made: codec.py.

metadata = sa.MetaData()
Engine = sa.Engine

tick = sa.Table(
    "tick",  # one row: the last tick that was stored
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("timestamp", sa.Double, nullable=False),
    sa.Column("end", sa.Double, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("resolution", sa.Integer, nullable=False),
    sa.Column("windows", sa.Text, nullable=False),
    sa.Column("lost", sa.Text, nullable=False),
)
provenance = sa.Table(
    "provenance",  # where the stored samples of a metric come from
    metadata,
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("expression", sa.Text, nullable=False),
    sa.Column("unit", sa.Text, nullable=False),
    sa.Column("smoothing_s", sa.Double, nullable=False),
)
node_list = sa.Table(
    "node_list",  # names, once for all blocks that have the same
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
sample_block = sa.Table(
    "sample_block",  # some slots of one metric; a higher id was written later
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("metric", sa.Text, nullable=False),
    sa.Column("first_slot", sa.BigInteger, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False, index=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index("ix_sample_block_metric_first_slot", "metric", "first_slot"),
)
window_minute = sa.Table(
    "window_minute",  # one minute of a window, all nodes
    metadata,
    sa.Column("window", sa.Text, primary_key=True),
    sa.Column("time", sa.BigInteger, primary_key=True),
    sa.Column("nodes", sa.Integer, nullable=False, index=True),
    sa.Column("columns", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
window_hour = sa.Table(
    "window_hour",  # a closed hour of a window, some nodes; the first chunk's first node is empty
    metadata,
    sa.Column("window", sa.Text, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("first_node", sa.LargeBinary, primary_key=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)

REVISIONS = ("0001",)
"""Of the schema, oldest first. Here as well as in migrations/, because asking Alembic costs a start 0.1 s."""


# --- a tick goes in --------------------------------------------------------------------------------------------------


def put_tick(
    connection: sa.Connection,
    record: TickRecord,
    *,
    blocks: Iterable[tuple[SampleBlock, bytes]],
    minutes: Iterable[tuple[WindowRecord, bytes]],
    nodes: Mapping[tuple[str, ...], int],
) -> None:
    """Store a tick whose samples and minutes are encoded, and forget the samples that it leaves without use."""
    _forget_samples(connection, record)
    _put_blocks(connection, [_block_row(block, nodes[block.nodes], payload) for block, payload in blocks])
    _put_minutes(connection, [_minute_row(minute, nodes[minute.nodes], payload) for minute, payload in minutes])
    _put_provenance(connection, record)
    connection.execute(sa.delete(tick))
    windows = msgspec.json.encode([(window.label, window.seconds) for window in record.windows]).decode()
    row = {"timestamp": record.timestamp, "end": record.end, "source": record.source, "resolution": record.resolution}
    lost = msgspec.json.encode(dict(record.lost)).decode()
    connection.execute(sa.insert(tick).values(id=1, windows=windows, lost=lost, **row))


def put_nodes(connection: sa.Connection, names: tuple[str, ...]) -> int:
    """The id of a list of nodes, stored if it is new."""
    packed = codec.pack_names(names)
    digest = hashlib.sha256(packed).digest()
    known = connection.execute(sa.select(node_list.c.id).where(node_list.c.hash == digest)).scalar_one_or_none()
    if known is not None:
        return int(known)
    added = connection.execute(sa.insert(node_list).values(hash=digest, payload=codec.encode_names(packed)))
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


def forget_unused_nodes(connection: sa.Connection) -> None:
    """Remove the lists of nodes that nothing refers to."""
    used = sa.union_all(sa.select(sample_block.c.nodes), sa.select(window_minute.c.nodes))
    connection.execute(sa.delete(node_list).where(node_list.c.id.not_in(used)))


def _forget_samples(connection: sa.Connection, record: TickRecord) -> None:
    """Those on another grid of slots or from another origin, those that no window reaches any more, by the length of
    one block, and those after the newest accepted sample: a clock has stepped back."""
    if connection.execute(sa.select(tick.c.resolution)).scalar_one_or_none() not in (None, record.resolution):
        connection.execute(sa.delete(sample_block))
    known = _provenance(connection)
    changed = [metric for metric, origin in record.provenance.items() if known.get(metric, origin) != origin]
    connection.execute(sa.delete(sample_block).where(sample_block.c.metric.in_(changed)))
    longest = max((window.seconds for window in record.windows), default=0)
    horizon = codec.needless_before(end=record.end, longest=longest, resolution=record.resolution)
    outdated = sample_block.c.first_slot + 2 * sample_block.c.slots - 1 <= horizon
    ahead = sample_block.c.first_slot > int(record.end // record.resolution)
    connection.execute(sa.delete(sample_block).where(outdated | ahead))


def _block_row(block: SampleBlock, nodes: int, payload: bytes) -> dict[str, Any]:
    slots = len(block.values)
    return {"metric": block.metric, "first_slot": block.first_slot, "slots": slots, "nodes": nodes, "payload": payload}


def _put_blocks(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    """Add blocks in the place of those whose slots they have."""
    if not rows:
        return
    first, slots = sa.bindparam("from_slot", type_=sa.BigInteger), sa.bindparam("count", type_=sa.Integer)
    covered = (
        (sample_block.c.metric == sa.bindparam("of_metric"))
        & (sample_block.c.first_slot >= first)
        & (sample_block.c.first_slot + sample_block.c.slots <= first + slots)
    )
    keys = [{"of_metric": row["metric"], "from_slot": row["first_slot"], "count": row["slots"]} for row in rows]
    connection.execute(sa.delete(sample_block).where(covered), keys)
    connection.execute(sa.insert(sample_block), rows)


def _minute_row(minute: WindowRecord, nodes: int, payload: bytes) -> dict[str, Any]:
    columns = codec.encode_columns(minute.columns)
    key = {"window": minute.window.label, "time": minute.time}
    return {**key, "nodes": nodes, "columns": columns, "payload": payload}


def _put_minutes(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    this = (window_minute.c.window == sa.bindparam("label")) & (window_minute.c.time == sa.bindparam("at"))
    connection.execute(
        sa.delete(window_minute).where(this), [{"label": row["window"], "at": row["time"]} for row in rows]
    )
    connection.execute(sa.insert(window_minute), rows)


def _put_provenance(connection: sa.Connection, record: TickRecord) -> None:
    """That of the record, beside that of metrics which are not in it but still have samples."""
    with_samples = sa.select(sample_block.c.metric)
    given = provenance.c.metric.in_(list(record.provenance))
    connection.execute(sa.delete(provenance).where(given | provenance.c.metric.not_in(with_samples)))
    rows = [
        {
            "metric": metric,
            "source": origin.source,
            "expression": origin.expression,
            "unit": origin.unit,
            "smoothing_s": origin.smoothing_s,
        }
        for metric, origin in record.provenance.items()
    ]
    if rows:
        connection.execute(sa.insert(provenance), rows)


# --- the last tick comes out -----------------------------------------------------------------------------------------


def restored(connection: sa.Connection) -> Restored | None:
    """The last tick, its blocks in the order in which they were written; None if none was. CodecError on damage."""
    last = connection.execute(sa.select(tick)).one_or_none()
    if last is None:
        return None
    lists = NodeLists(connection)
    rows = connection.execute(sa.select(sample_block).order_by(sample_block.c.id))
    return Restored(
        timestamp=last.timestamp,
        end=last.end,
        source=last.source,
        resolution=last.resolution,
        windows=_windows(last.windows),
        provenance=_provenance(connection),
        blocks=tuple(_block(row, names=lists[row.nodes]) for row in rows),
        lost=_lost(last.lost),
    )


def _lost(text: str) -> dict[str, float]:
    try:
        return msgspec.json.decode(text, type=dict[str, float])
    except msgspec.DecodeError as error:
        raise CodecError(f"the lost nodes of the last tick cannot be read ({error})") from error


def _windows(text: str) -> tuple[Window, ...]:
    try:
        pairs = msgspec.json.decode(text, type=list[tuple[str, int]])
    except msgspec.DecodeError as error:
        raise CodecError(f"the windows of the last tick cannot be read ({error})") from error
    return tuple(Window(label, seconds) for label, seconds in pairs)


def _provenance(connection: sa.Connection) -> dict[str, Provenance]:
    rows = connection.execute(sa.select(provenance))
    return {row.metric: Provenance(row.source, row.expression, row.unit, row.smoothing_s) for row in rows}


def _block(row: sa.Row[Any], *, names: tuple[str, ...]) -> SampleBlock:
    values, offset_ms = codec.decode_samples(row.payload, slots=row.slots, nodes=len(names))
    return SampleBlock(row.metric, row.first_slot, names, values, offset_ms)


class NodeLists:
    """Lists of nodes by id, each read and decoded once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._lists: dict[int, tuple[str, ...]] = {}

    def __getitem__(self, number: int) -> tuple[str, ...]:
        if number not in self._lists:
            query = sa.select(node_list.c.payload).where(node_list.c.id == number)
            payload = self._connection.execute(query).scalar_one_or_none()
            if payload is None:
                raise CodecError(f"the list of nodes {number} is missing")
            self._lists[number] = codec.decode_names(payload)
        return self._lists[number]


# --- the history of one node -----------------------------------------------------------------------------------------


def hours_of_node(connection: sa.Connection, *, host: str, window: str, start: int, end: int) -> list[Grid]:
    """One grid an hour that was rewritten, of this node alone, or of none where the hour does not know it."""
    key = codec.node_key(host)
    last_before = (
        sa.select(window_hour.c.hour, sa.func.max(window_hour.c.first_node).label("first_node"))
        .where(window_hour.c.window == window, window_hour.c.hour.between(hour_of(start), end))
        .where(window_hour.c.first_node <= key)
        .group_by(window_hour.c.hour)
        .subquery()
    )
    query = (
        sa.select(window_hour.c.payload)
        .join(
            last_before,
            (window_hour.c.hour == last_before.c.hour) & (window_hour.c.first_node == last_before.c.first_node),
        )
        .where(window_hour.c.window == window)
        .order_by(window_hour.c.hour)
    )
    return [_only(codec.decode_chunk(row.payload), host) for row in connection.execute(query)]


def minutes_of_node(connection: sa.Connection, *, host: str, window: str, start: int, end: int) -> list[Grid]:
    """One grid a minute that is not yet rewritten, of this node alone, or of none where the minute does not know it."""
    query = (
        sa.select(window_minute)
        .where(window_minute.c.window == window, window_minute.c.time.between(start, end))
        .order_by(window_minute.c.time)
    )
    lists = NodeLists(connection)
    positions: dict[int, tuple[int, int | None]] = {}  # list of nodes -> its length, where the host stands in it
    grids: list[Grid] = []
    for row in connection.execute(query):
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


# --- hours -----------------------------------------------------------------------------------------------------------


def hour_of(time: int) -> int:
    """The beginning of the hour that a time belongs to, unix seconds."""
    return time - time % HOUR


_MINUTE_HOUR = (window_minute.c.time - window_minute.c.time % HOUR).label("hour")


def hours_with_minutes(connection: sa.Connection) -> list[tuple[str, int]]:
    """(window, hour) of all minutes that are not rewritten, oldest first."""
    query = sa.select(window_minute.c.window, _MINUTE_HOUR).distinct().order_by(_MINUTE_HOUR)
    return [(row.window, row.hour) for row in connection.execute(query)]


def hours_rewritten(connection: sa.Connection) -> list[tuple[str, int]]:
    """(window, hour) of all that were rewritten, oldest first."""
    query = sa.select(window_hour.c.window, window_hour.c.hour).distinct().order_by(window_hour.c.hour)
    return [(row.window, row.hour) for row in connection.execute(query)]


def minutes_of_hour(connection: sa.Connection, window: str, hour: int) -> list[tuple[int, codec.Columns, int]]:
    """(time, columns, list of nodes) of the minutes of an hour that are not yet rewritten."""
    query = sa.select(window_minute.c.time, window_minute.c.columns, window_minute.c.nodes).where(
        window_minute.c.window == window, window_minute.c.time.between(hour, hour + HOUR - 1)
    )
    rows = connection.execute(query.order_by(window_minute.c.time))
    return [(row.time, codec.decode_columns(row.columns), row.nodes) for row in rows]


def minute_payload(connection: sa.Connection, window: str, time: int) -> bytes:
    """The encoded values of a minute."""
    query = sa.select(window_minute.c.payload).where(window_minute.c.window == window, window_minute.c.time == time)
    payload: bytes = connection.execute(query).scalar_one()
    return payload


def chunk_payloads(connection: sa.Connection, window: str, hour: int) -> list[bytes]:
    """The encoded chunks of an hour."""
    query = sa.select(window_hour.c.payload).where(window_hour.c.window == window, window_hour.c.hour == hour)
    return list(connection.execute(query.order_by(window_hour.c.first_node)).scalars())


def put_hour(connection: sa.Connection, window: str, hour: int, payloads: Mapping[bytes, bytes]) -> None:
    """Put an hour's chunks, by first node, in the place of all that is stored of it."""
    forget_hour(connection, window, hour)
    rows = [
        {"window": window, "hour": hour, "first_node": first, "payload": payload} for first, payload in payloads.items()
    ]
    if rows:
        connection.execute(sa.insert(window_hour), rows)


def forget_hour(connection: sa.Connection, window: str, hour: int) -> None:
    """Remove all that is stored of an hour of a window."""
    connection.execute(sa.delete(window_hour).where(window_hour.c.window == window, window_hour.c.hour == hour))
    within = window_minute.c.time.between(hour, hour + HOUR - 1)
    connection.execute(sa.delete(window_minute).where(window_minute.c.window == window, within))


def forget_windows(connection: sa.Connection, *, now: int, retention: float) -> None:
    """Remove what is further than `retention` from now, to either side: after a clock has stepped back there are hours
    to come, which are kept as long, and must not stay for ever."""
    oldest, newest = now - retention, now + retention
    outside = (window_minute.c.time < oldest) | (window_minute.c.time > newest)
    connection.execute(sa.delete(window_minute).where(outside))
    for window, hour in hours_rewritten(connection):
        if hour + HOUR <= oldest or hour > newest:
            forget_hour(connection, window, hour)


# --- pages -----------------------------------------------------------------------------------------------------------


def pages(connection: sa.Connection) -> tuple[int, int, int]:
    """Pages of the file, those of them that are free, and bytes of one page."""
    count, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return count, free, size
