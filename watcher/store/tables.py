"""The tables of the database, as created by migrations/ (a test compares both), and the rows of one watcher.

Times are in unix seconds. Payloads are encoded by codec.py.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

metadata = sa.MetaData()
# SQLite generates ids only for an INTEGER column.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _watcher() -> sa.Column[str]:
    """The owner of a row, first column of every key: several watchers may share a database."""
    return sa.Column("watcher", sa.Text, primary_key=True)


tick = sa.Table(
    "tick",  # one row per watcher: its last stored tick; after `keep_until` all rows of the watcher may be deleted
    metadata,
    _watcher(),
    sa.Column("timestamp", sa.Double, nullable=False),
    sa.Column("end", sa.Double, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("resolution", sa.Integer, nullable=False),
    sa.Column("windows", sa.Text, nullable=False),
    sa.Column("lost", sa.Text, nullable=False),
    sa.Column("keep_until", sa.Double, nullable=False),
    sa.Column("silent", sa.Text, nullable=False, server_default="{}"),
)
provenance = sa.Table(
    "provenance",  # source of the stored samples of a metric
    metadata,
    _watcher(),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("expression", sa.Text, nullable=False),
    sa.Column("unit", sa.Text, nullable=False),
    sa.Column("smoothing_s", sa.Double, nullable=False),
)
node_list = sa.Table(
    "node_list",  # node names, shared by all blocks and minutes of a watcher with the same nodes
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("watcher", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("watcher", "hash", name="uq_node_list_watcher_hash"),
)
sample_block = sa.Table(
    "sample_block",  # consecutive slots of one metric; ids increase in write order
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("watcher", sa.Text, nullable=False),
    sa.Column("metric", sa.Text, nullable=False),
    sa.Column("first_slot", sa.BigInteger, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("nodes", _NUMBER, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index("ix_sample_block_watcher_metric_first_slot", "watcher", "metric", "first_slot"),
    sa.Index("ix_sample_block_watcher_nodes", "watcher", "nodes"),
)
window_minute = sa.Table(
    "window_minute",  # one minute of a window for all nodes
    metadata,
    _watcher(),
    sa.Column("window", sa.Text, primary_key=True),
    sa.Column("time", sa.BigInteger, primary_key=True),
    sa.Column("nodes", _NUMBER, nullable=False),
    sa.Column("columns", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index("ix_window_minute_watcher_nodes", "watcher", "nodes"),
)
window_hour = sa.Table(
    "window_hour",  # chunk of nodes of a closed hour of a window; first_node of the first chunk is empty
    metadata,
    _watcher(),
    sa.Column("window", sa.Text, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("first_node", sa.LargeBinary, primary_key=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
maxima_hour = sa.Table(
    "maxima_hour",  # maxima of five minutes of one metric in an hour (number since the Unix epoch); `origin` as JSON
    metadata,
    _watcher(),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("nodes", _NUMBER, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index("ix_maxima_hour_watcher_nodes", "watcher", "nodes"),
)
decision = sa.Table(
    "decision",  # decision about a pod; `time` is in microseconds and unique per watcher
    metadata,
    _watcher(),
    sa.Column("time", sa.BigInteger, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("pod", sa.Text, nullable=False),
    sa.Column("uid", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Column("kind", sa.Text, nullable=False, server_default="placement"),
    sa.Index("ix_decision_watcher_namespace_pod_time", "watcher", "namespace", "pod", "time"),
    sa.Index("ix_decision_watcher_kind_time", "watcher", "kind", "time"),
)
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Revisions of the schema, oldest first. Duplicated from migrations/, because importing Alembic takes 0.1 s."""


class Rows:
    """Access to the rows of one watcher inside a transaction."""

    def __init__(self, connection: sa.Connection, watcher: str) -> None:
        self.connection = connection
        self.watcher = watcher

    def of_watcher(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """The condition for rows of this watcher; part of every WHERE clause."""
        return table.c.watcher == self.watcher

    def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[Any]:
        """Run a statement with one set of parameters or a list of sets."""
        return self.connection.execute(statement, parameters)

    def upsert(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        """Insert rows of this watcher; a row with an existing key replaces the old row."""
        if not rows:
            return
        dialect = postgresql if self.connection.dialect.name == "postgresql" else sqlite
        insert = dialect.insert(table)
        keys = [column.name for column in table.primary_key]
        others = {column.name: insert.excluded[column.name] for column in table.c if column.name not in keys}
        statement = insert.on_conflict_do_update(index_elements=keys, set_=others)
        self.execute(statement, [{"watcher": self.watcher, **row} for row in rows])
