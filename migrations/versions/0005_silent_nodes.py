"""Add the last known values of silent nodes to the last tick, so that these nodes stay silent after a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("tick", sa.Column("silent", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("tick", "silent")
