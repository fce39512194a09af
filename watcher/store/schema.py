"""The statements that insert, query and delete rows, except those of the history (history/rows.py) and of decisions.

Each function runs in the caller's transaction and accesses the rows of one watcher (`Rows`). Invariants of the stored
data: samples have one resolution and one provenance per metric, no sample is newer than the last tick, and every node
list is referenced. codec.py encodes the payloads; migrations/ creates the tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import msgspec
import sqlalchemy as sa

from watcher.core.windows.records import MaximaHour, SampleBlock, StoredMaxima, TickRecord, WindowRecord
from watcher.decoding.json_text import decode_json
from watcher.model import LastSample, Provenance, Window
from watcher.store import codec
from watcher.store.codec import HOUR, CodecError
from watcher.store.tables import (
    Rows,
    decision,
    maxima_hour,
    metadata,
    node_list,
    provenance,
    sample_block,
    tick,
    window_hour,
    window_minute,
)


@contextmanager
def row_errors() -> Iterator[None]:
    """Convert to CodecError what values of other types than those of their columns raise while rows are decoded: a
    column of SQLite can have values of any type."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise CodecError(f"a stored row cannot be read ({error})") from error


# --- storing a tick --------------------------------------------------------------------------------------------------


def put_tick(
    mine: Rows,
    record: TickRecord,
    *,
    blocks: Iterable[tuple[SampleBlock, bytes]],
    minutes: Iterable[tuple[WindowRecord, bytes]],
    maxima: Iterable[tuple[MaximaHour, bytes]],
    nodes: Mapping[tuple[str, ...], int],
    keep_until: float,
) -> None:
    """Store a tick with its encoded samples, minutes and maxima, and delete samples that are no longer needed. `nodes`
    maps node lists to ids; `keep_until` is in unix seconds."""
    _forget_samples(mine, record)
    _put_blocks(mine, [_block_row(block, nodes[block.nodes], payload) for block, payload in blocks])
    put_minutes(mine, minutes, nodes=nodes)
    mine.upsert(maxima_hour, [_maxima_row(hour, record, nodes[hour.nodes], payload) for hour, payload in maxima])
    _put_provenance(mine, record)
    mine.upsert(tick, [_tick_row(record, keep_until)])


def put_minutes(
    mine: Rows, minutes: Iterable[tuple[WindowRecord, bytes]], *, nodes: Mapping[tuple[str, ...], int]
) -> None:
    """Store encoded minutes; `nodes` maps node lists to ids."""
    mine.upsert(window_minute, [_minute_row(minute, nodes[minute.nodes], payload) for minute, payload in minutes])


def _tick_row(record: TickRecord, keep_until: float) -> dict[str, Any]:
    windows = msgspec.json.encode([(window.label, window.seconds) for window in record.windows]).decode()
    return {
        "timestamp": record.timestamp,
        "end": record.end,
        "source": record.source,
        "resolution": record.resolution,
        "windows": windows,
        "lost": msgspec.json.encode(dict(record.lost)).decode(),
        "keep_until": keep_until,
        "silent": msgspec.json.encode({name: astuple(last) for name, last in record.silent.items()}).decode(),
    }


def _maxima_row(hour: MaximaHour, record: TickRecord, nodes: int, payload: bytes) -> dict[str, Any]:
    origin = msgspec.json.encode(astuple(record.provenance[hour.metric])).decode()
    return {"metric": hour.metric, "hour": hour.hour, "nodes": nodes, "origin": origin, "payload": payload}


def put_nodes(mine: Rows, names: tuple[str, ...]) -> int:
    """The id of a node list; a new list is stored."""
    packed = codec.pack_names(names)
    digest = hashlib.sha256(packed).digest()
    query = sa.select(node_list.c.id).where(mine.of_watcher(node_list), node_list.c.hash == digest)
    known = mine.execute(query).scalar_one_or_none()
    return add_nodes(mine, digest, codec.encode_names(packed)) if known is None else int(known)


def add_nodes(mine: Rows, digest: bytes, payload: bytes) -> int:
    """Store a new node list and return its id."""
    values = {"watcher": mine.watcher, "hash": digest, "payload": payload}
    added = mine.execute(sa.insert(node_list).values(values))
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


def forget_unused_nodes(mine: Rows) -> None:
    """Delete node lists that are not referenced."""
    users = (sample_block, window_minute, maxima_hour)
    used = sa.union_all(*(sa.select(table.c.nodes).where(mine.of_watcher(table)) for table in users))
    mine.execute(sa.delete(node_list).where(mine.of_watcher(node_list), node_list.c.id.not_in(used)))


def _forget_samples(mine: Rows, record: TickRecord) -> None:
    """Delete samples with another resolution or provenance, samples that have been too old for every window for the
    length of one block, and samples after the end of the tick (the clock was set back)."""
    ours = sa.delete(sample_block).where(mine.of_watcher(sample_block))
    before = mine.execute(sa.select(tick.c.resolution).where(mine.of_watcher(tick))).scalar_one_or_none()
    if before not in (None, record.resolution):
        mine.execute(ours)
    known = _provenance(mine)
    changed = [metric for metric, origin in record.provenance.items() if known.get(metric, origin) != origin]
    mine.execute(ours.where(sample_block.c.metric.in_(changed)))
    longest = max((window.seconds for window in record.windows), default=0)
    horizon = codec.horizon_slot(end=record.end, longest=longest, resolution=record.resolution)
    outdated = sample_block.c.first_slot + 2 * sample_block.c.slots - 1 <= horizon
    ahead = sample_block.c.first_slot > int(record.end // record.resolution)
    mine.execute(ours.where(outdated | ahead))


def _block_row(block: SampleBlock, nodes: int, payload: bytes) -> dict[str, Any]:
    slots = len(block.values)
    return {"metric": block.metric, "first_slot": block.first_slot, "slots": slots, "nodes": nodes, "payload": payload}


def _put_blocks(mine: Rows, rows: list[dict[str, Any]]) -> None:
    """Insert blocks and delete existing blocks whose slots they cover."""
    if not rows:
        return
    first, slots = sa.bindparam("from_slot", type_=sa.BigInteger), sa.bindparam("count", type_=sa.Integer)
    covered = (
        mine.of_watcher(sample_block)
        & (sample_block.c.metric == sa.bindparam("of_metric"))
        & (sample_block.c.first_slot >= first)
        & (sample_block.c.first_slot + sample_block.c.slots <= first + slots)
    )
    keys = [{"of_metric": row["metric"], "from_slot": row["first_slot"], "count": row["slots"]} for row in rows]
    mine.execute(sa.delete(sample_block).where(covered), keys)
    mine.execute(sa.insert(sample_block), [{"watcher": mine.watcher, **row} for row in rows])


def _minute_row(minute: WindowRecord, nodes: int, payload: bytes) -> dict[str, Any]:
    columns = codec.encode_columns(minute.columns)
    key = {"window": minute.window.label, "time": minute.time}
    return {**key, "nodes": nodes, "columns": columns, "payload": payload}


def _put_provenance(mine: Rows, record: TickRecord) -> None:
    """Store the provenance of the record; keep that of other metrics that still have samples."""
    with_samples = sa.select(sample_block.c.metric).where(mine.of_watcher(sample_block))
    mine.execute(sa.delete(provenance).where(mine.of_watcher(provenance), provenance.c.metric.not_in(with_samples)))
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
    mine.upsert(provenance, rows)


# --- loading the last tick -------------------------------------------------------------------------------------------


@row_errors()
def restored(mine: Rows) -> TickRecord | None:
    """The last stored tick with its blocks in write order; None if there is none. Raises CodecError on damage."""
    last = mine.execute(sa.select(tick).where(mine.of_watcher(tick))).one_or_none()
    if last is None:
        return None
    lists = NodeLists(mine)
    rows = mine.execute(sa.select(sample_block).where(mine.of_watcher(sample_block)).order_by(sample_block.c.id))
    return TickRecord(
        timestamp=last.timestamp,
        end=last.end,
        source=last.source,
        resolution=last.resolution,
        windows=_windows(last.windows),
        provenance=_provenance(mine),
        blocks=tuple(_block(row, names=lists[row.nodes]) for row in rows),
        lost=_lost(last.lost),
        silent=_silent(last.silent),
    )


def _lost(text: str) -> dict[str, float]:
    try:
        return decode_json(text, type=dict[str, float])
    except msgspec.DecodeError as error:
        raise CodecError(f"the lost nodes of the last tick cannot be read ({error})") from error


def _silent(text: str) -> dict[str, LastSample]:
    try:
        stored = decode_json(text, type=dict[str, tuple[float, float | None, float | None]])
    except msgspec.DecodeError as error:
        raise CodecError(f"the silent nodes of the last tick cannot be read ({error})") from error
    return {name: LastSample(*last) for name, last in stored.items()}


def _windows(text: str) -> tuple[Window, ...]:
    try:
        pairs = decode_json(text, type=list[tuple[str, int]])
    except msgspec.DecodeError as error:
        raise CodecError(f"the windows of the last tick cannot be read ({error})") from error
    return tuple(Window(label, seconds) for label, seconds in pairs)


def _provenance(mine: Rows) -> dict[str, Provenance]:
    rows = mine.execute(sa.select(provenance).where(mine.of_watcher(provenance)))
    return {row.metric: Provenance(row.source, row.expression, row.unit, row.smoothing_s) for row in rows}


def _block(row: sa.Row[Any], *, names: tuple[str, ...]) -> SampleBlock:
    values, offset_ms = codec.decode_samples(row.payload, slots=row.slots, nodes=len(names))
    return SampleBlock(row.metric, row.first_slot, names, values, offset_ms)


class NodeLists:
    """Node lists by id; each is read and decoded once."""

    def __init__(self, mine: Rows) -> None:
        self._mine = mine
        self._lists: dict[int, tuple[str, ...]] = {}

    def __getitem__(self, number: int) -> tuple[str, ...]:
        if number not in self._lists:
            query = sa.select(node_list.c.payload).where(self._mine.of_watcher(node_list), node_list.c.id == number)
            payload = self._mine.execute(query).scalar_one_or_none()
            if payload is None:
                raise CodecError(f"node list {number} is missing")
            self._lists[number] = codec.decode_names(payload)
        return self._lists[number]


# --- maxima ----------------------------------------------------------------------------------------------------------


@row_errors()
def stored_maxima(mine: Rows, *, hours: range | None) -> list[StoredMaxima]:
    """The consecutive `hours`, or all, of this watcher, and those that only other watchers of the cluster have. Raises
    CodecError."""
    wanted = sa.true() if hours is None else maxima_hour.c.hour.between(hours.start, hours.stop - 1)
    found: dict[tuple[str, int, str], StoredMaxima] = {}
    for rows in of_cluster(mine):
        lists, own = NodeLists(rows), rows.watcher == mine.watcher
        for row in rows.execute(sa.select(maxima_hour).where(rows.of_watcher(maxima_hour), wanted)):
            names = lists[row.nodes]
            hour = MaximaHour(row.metric, row.hour, names, codec.decode_maxima(row.payload, nodes=len(names)))
            found[row.metric, row.hour, row.origin] = StoredMaxima(hour, _origin(row.origin), own)
    return list(found.values())


def _origin(text: str) -> Provenance:
    try:
        return Provenance(*decode_json(text, type=tuple[str, str, str, float]))
    except msgspec.DecodeError as error:
        raise CodecError(f"the origin of an hour of maxima cannot be read ({error})") from error


def forget_maxima(mine: Rows, *, now: int, keep: float) -> None:
    """Delete hours of maxima more than `keep` seconds before `now` (unix seconds), and those after the hour of `now`:
    the clock was set back."""
    outside = (maxima_hour.c.hour < (now - keep) // HOUR) | (maxima_hour.c.hour > now // HOUR)
    mine.execute(sa.delete(maxima_hour).where(mine.of_watcher(maxima_hour), outside))


# --- watchers --------------------------------------------------------------------------------------------------------


@row_errors()
def watchers(connection: sa.Connection) -> list[str]:
    """The names of all watchers with a stored tick, sorted."""
    return list(connection.execute(sa.select(tick.c.watcher).order_by(tick.c.watcher)).scalars())


@row_errors()
def of_cluster(mine: Rows) -> list[Rows]:
    """The rows of all watchers in the same cluster, sorted by name, this watcher's last. A name has the form
    CLUSTER/WATCHER or WATCHER; WATCHER contains no slash."""
    cluster = mine.watcher.rpartition("/")[0]
    names = [name for name in watchers(mine.connection) if name.rpartition("/")[0] == cluster and name != mine.watcher]
    return [*(Rows(mine.connection, name) for name in names), mine]


def expired_watchers(mine: Rows, *, now: float) -> list[str]:
    """The other watchers whose `keep_until` has passed; `now` in unix seconds."""
    query = sa.select(tick.c.watcher).where(~mine.of_watcher(tick), tick.c.keep_until < now)
    return list(mine.execute(query.order_by(tick.c.watcher)).scalars())


def forget_all(mine: Rows) -> None:
    """Delete all rows of this watcher."""
    for table in metadata.tables.values():
        mine.execute(sa.delete(table).where(mine.of_watcher(table)))


def stored_bytes(mine: Rows) -> int:
    """Size of this watcher's payloads in bytes, which is nearly all of the space that it uses."""
    of_tables = [
        sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(table.c.payload)), 0)).where(mine.of_watcher(table))
        for table in (sample_block, window_minute, window_hour, maxima_hour, decision)
    ]
    return sum(int(mine.execute(query).scalar_one()) for query in of_tables)
