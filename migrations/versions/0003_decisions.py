"""Create the table of scheduling decisions, so that `load-watcher why` can explain past decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "decision",
        sa.Column("watcher", sa.Text, primary_key=True),
        sa.Column("time", sa.BigInteger, primary_key=True),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_decision_watcher_namespace_pod_time", "decision", ["watcher", "namespace", "pod", "time"])
    if op.get_bind().dialect.name == "postgresql":  # payloads are compressed already
        op.execute("ALTER TABLE decision ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_index("ix_decision_watcher_namespace_pod_time", "decision")
    op.drop_table("decision")
