"""Store the bindings of shadow mode as decisions of a kind, so that one table has all decisions.

The pod of an earlier shadow binding is in its payload; its columns are empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("decision", sa.Column("kind", sa.Text, nullable=False, server_default="placement"))
    _separate_times()
    op.execute(
        "INSERT INTO decision (watcher, time, namespace, pod, uid, node, outcome, payload, kind)"
        " SELECT watcher, time, '', '', '', '', '', payload, 'shadow' FROM shadow_binding"
    )
    op.drop_table("shadow_binding")
    op.create_index("ix_decision_watcher_kind_time", "decision", ["watcher", "kind", "time"])


def _separate_times() -> None:
    """Move each shadow binding at the time of a decision to the next free time: the time becomes their common key."""
    connection = op.get_bind()
    common = "SELECT watcher, time FROM shadow_binding JOIN decision USING (watcher, time) ORDER BY time"
    at_time = "watcher = :watcher AND time = :time"
    taken = sa.text(f"SELECT 1 FROM decision WHERE {at_time} UNION ALL SELECT 1 FROM shadow_binding WHERE {at_time}")
    free = 0
    for watcher, time in connection.execute(sa.text(common)).all():
        free = max(free, time) + 1
        while connection.execute(taken, {"watcher": watcher, "time": free}).first() is not None:
            free += 1
        move = sa.text(f"UPDATE shadow_binding SET time = :free WHERE {at_time}")
        connection.execute(move, {"watcher": watcher, "time": time, "free": free})


def downgrade() -> None:
    op.create_table(
        "shadow_binding",
        sa.Column("watcher", sa.Text, primary_key=True),
        sa.Column("time", sa.BigInteger, primary_key=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.execute(
        "INSERT INTO shadow_binding (watcher, time, payload)"
        " SELECT watcher, time, payload FROM decision WHERE kind = 'shadow'"
    )
    op.execute("DELETE FROM decision WHERE kind = 'shadow'")
    op.drop_index("ix_decision_watcher_kind_time", "decision")
    op.drop_column("decision", "kind")
