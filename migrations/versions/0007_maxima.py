"""Add the maxima of five minutes that forecasts are computed from."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

# SQLite generates ids only for an INTEGER column; node lists have one.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "maxima_hour",
        sa.Column("watcher", sa.Text, primary_key=True),
        sa.Column("metric", sa.Text, primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("nodes", _NUMBER, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_maxima_hour_watcher_nodes", "maxima_hour", ["watcher", "nodes"])


def downgrade() -> None:
    op.drop_table("maxima_hour")
