"""Add the column `watcher` as first part of every key, so that several watchers can share one database.

Existing rows of an SQLite file belong to the one watcher that wrote it, whose name is the empty string. A key cannot be
changed in place, so all rows are copied once. A PostgreSQL database has no rows yet.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0002"
down_revision = "0001"

BLOBS = ("node_list", "sample_block", "window_minute", "window_hour")
OLD_INDEXES = {
    "sample_block": ("ix_sample_block_metric_first_slot", "ix_sample_block_nodes"),
    "window_minute": ("ix_window_minute_nodes",),
}
INDEXES = {
    "sample_block": {
        "ix_sample_block_watcher_metric_first_slot": ["watcher", "metric", "first_slot"],
        "ix_sample_block_watcher_nodes": ["watcher", "nodes"],
    },
    "window_minute": {"ix_window_minute_watcher_nodes": ["watcher", "nodes"]},
}
# The columns that exist in both revisions.
COLUMNS = {
    "tick": ("timestamp", "end", "source", "resolution", "windows", "lost"),
    "provenance": ("metric", "source", "expression", "unit", "smoothing_s"),
    "node_list": ("id", "hash", "payload"),
    "sample_block": ("id", "metric", "first_slot", "slots", "nodes", "payload"),
    "window_minute": ("window", "time", "nodes", "columns", "payload"),
    "window_hour": ("window", "hour", "first_node", "payload"),
}


def _number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _whose(*, key: bool) -> sa.Column[str]:
    return sa.Column("watcher", sa.Text, primary_key=key, nullable=False)


def _tables() -> dict[str, Sequence[SchemaItem]]:
    return {
        "tick": (
            _whose(key=True),
            sa.Column("timestamp", sa.Double, nullable=False),
            sa.Column("end", sa.Double, nullable=False),
            sa.Column("source", sa.Text, nullable=False),
            sa.Column("resolution", sa.Integer, nullable=False),
            sa.Column("windows", sa.Text, nullable=False),
            sa.Column("lost", sa.Text, nullable=False),
            sa.Column("keep_until", sa.Double, nullable=False),
        ),
        "provenance": (
            _whose(key=True),
            sa.Column("metric", sa.Text, primary_key=True),
            sa.Column("source", sa.Text, nullable=False),
            sa.Column("expression", sa.Text, nullable=False),
            sa.Column("unit", sa.Text, nullable=False),
            sa.Column("smoothing_s", sa.Double, nullable=False),
        ),
        "node_list": (
            sa.Column("id", _number(), primary_key=True),
            _whose(key=False),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            sa.Column("payload", sa.LargeBinary, nullable=False),
            sa.UniqueConstraint("watcher", "hash", name="uq_node_list_watcher_hash"),
        ),
        "sample_block": (
            sa.Column("id", _number(), primary_key=True),
            _whose(key=False),
            sa.Column("metric", sa.Text, nullable=False),
            sa.Column("first_slot", sa.BigInteger, nullable=False),
            sa.Column("slots", sa.Integer, nullable=False),
            sa.Column("nodes", _number(), nullable=False),
            sa.Column("payload", sa.LargeBinary, nullable=False),
        ),
        "window_minute": (
            _whose(key=True),
            sa.Column("window", sa.Text, primary_key=True),
            sa.Column("time", sa.BigInteger, primary_key=True),
            sa.Column("nodes", _number(), nullable=False),
            sa.Column("columns", sa.Text, nullable=False),
            sa.Column("payload", sa.LargeBinary, nullable=False),
        ),
        "window_hour": (
            _whose(key=True),
            sa.Column("window", sa.Text, primary_key=True),
            sa.Column("hour", sa.BigInteger, primary_key=True),
            sa.Column("first_node", sa.LargeBinary, primary_key=True),
            sa.Column("payload", sa.LargeBinary, nullable=False),
        ),
    }


def _old_tables() -> dict[str, Sequence[SchemaItem]]:
    """The tables as created by revision 0001."""
    tables: dict[str, Sequence[SchemaItem]] = {
        name: [item for item in items if isinstance(item, sa.Column) and item.name != "watcher"]
        for name, items in _tables().items()
    }
    tables["tick"] = [sa.Column("id", sa.Integer, primary_key=True), *tables["tick"][:-1]]
    tables["node_list"] = [
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    ]
    return tables


def upgrade() -> None:
    on_postgresql = op.get_bind().dialect.name == "postgresql"
    for name, items in _tables().items():
        for index in OLD_INDEXES.get(name, ()):
            op.drop_index(index, name)
        added = {"watcher": "''"} | ({"keep_until": '"end" + 86400'} if name == "tick" else {})
        _exchange(name, items, added=added)
        for index, columns in INDEXES.get(name, {}).items():
            op.create_index(index, name, columns)
        if on_postgresql and name in BLOBS:  # payloads are compressed already
            op.execute(f"ALTER TABLE {name} ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Keep only the watcher without a name. On PostgreSQL all rows are deleted."""
    for name, items in _old_tables().items():
        for index in INDEXES.get(name, {}):
            op.drop_index(index, name)
        _exchange(name, items, added={"id": "1"} if name == "tick" else {}, where=" WHERE watcher = ''")
    op.create_index("ix_sample_block_metric_first_slot", "sample_block", ["metric", "first_slot"])
    op.create_index("ix_sample_block_nodes", "sample_block", ["nodes"])
    op.create_index("ix_window_minute_nodes", "window_minute", ["nodes"])


def _exchange(name: str, items: Sequence[SchemaItem], *, added: dict[str, str], where: str = "") -> None:
    """Replace a table by a new one and, except on PostgreSQL, copy its rows."""
    if op.get_bind().dialect.name == "postgresql":
        op.drop_table(name)
        op.create_table(name, *items)
        return
    op.rename_table(name, f"old_{name}")
    op.create_table(name, *items)
    both = ", ".join(f'"{column}"' for column in COLUMNS[name])
    into = "".join(f", {column}" for column in added)
    values = "".join(f", {value}" for value in added.values())
    op.execute(f"INSERT INTO {name} ({both}{into}) SELECT {both}{values} FROM old_{name}{where}")
    op.drop_table(f"old_{name}")
