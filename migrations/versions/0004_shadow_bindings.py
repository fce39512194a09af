"""Create the table of shadow bindings, so that shadow mode can report on past bindings."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "shadow_binding",
        sa.Column("watcher", sa.Text, primary_key=True),
        sa.Column("time", sa.BigInteger, primary_key=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("shadow_binding")
