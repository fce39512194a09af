"""Create the tables for the samples of the last tick and the history of the windows."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tick",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("timestamp", sa.Double, nullable=False),
        sa.Column("end", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("resolution", sa.Integer, nullable=False),
        sa.Column("windows", sa.Text, nullable=False),
        sa.Column("lost", sa.Text, nullable=False),
    )
    op.create_table(
        "provenance",
        sa.Column("metric", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("expression", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("smoothing_s", sa.Double, nullable=False),
    )
    op.create_table(
        "node_list",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "sample_block",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("first_slot", sa.BigInteger, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_sample_block_metric_first_slot", "sample_block", ["metric", "first_slot"])
    op.create_index("ix_sample_block_nodes", "sample_block", ["nodes"])
    op.create_table(
        "window_minute",
        sa.Column("window", sa.Text, primary_key=True),
        sa.Column("time", sa.BigInteger, primary_key=True),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("columns", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_window_minute_nodes", "window_minute", ["nodes"])
    op.create_table(
        "window_hour",
        sa.Column("window", sa.Text, primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("first_node", sa.LargeBinary, primary_key=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    for table in ("window_hour", "window_minute", "sample_block", "node_list", "provenance", "tick"):
        op.drop_table(table)
