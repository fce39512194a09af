"""Encodes a tick and writes it in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from watcher.core.windows.records import TickRecord, WindowRecord
from watcher.store import codec, schema
from watcher.store.engines.database import Database
from watcher.store.tables import Rows


class TickWriter:
    """Writes the ticks of one watcher, in the writer thread. Another watcher may delete the rows `keep` seconds after
    the last tick. The ids of that tick's node lists are remembered."""

    def __init__(self, database: Database, *, keep: float) -> None:
        self._database = database
        self._keep = keep
        self._ids: dict[tuple[str, ...], int] = {}

    def write(self, record: TickRecord) -> None:
        """Store a tick, and delete the node lists that no row refers to."""
        blocks = [(block, codec.encode_samples(block)) for block in record.blocks]
        minutes = [(minute, codec.encode_minute(minute)) for minute in record.records]
        maxima = [(hour, codec.encode_maxima(hour)) for hour in record.maxima if hour.metric in record.provenance]
        keep_until = record.end + self._keep
        with self._database.writing() as mine:
            nodes = {names: self._id_of(mine, names) for names in _lists_of_nodes(record)}
            schema.put_tick(
                mine, record, blocks=blocks, minutes=minutes, maxima=maxima, nodes=nodes, keep_until=keep_until
            )
            schema.forget_unused_nodes(mine)
        self._ids = nodes

    def write_history(self, records: Sequence[WindowRecord]) -> None:
        """Store windows of minutes. Raises StoreError."""
        minutes = [(minute, codec.encode_minute(minute)) for minute in records]
        with self._database.store_errors(doing="written"), self._database.writing() as mine:
            nodes = {names: schema.put_nodes(mine, names) for names in {minute.nodes for minute in records}}
            schema.put_minutes(mine, minutes, nodes=nodes)

    def forget_ids(self) -> None:
        """Forget the ids of node lists, after a failed write."""
        self._ids.clear()

    def _id_of(self, mine: Rows, names: tuple[str, ...]) -> int:
        known = self._ids.get(names)
        return schema.put_nodes(mine, names) if known is None else known


def _lists_of_nodes(record: TickRecord) -> set[tuple[str, ...]]:
    lists = {block.nodes for block in record.blocks} | {minute.nodes for minute in record.records}
    return lists | {hour.nodes for hour in record.maxima}
