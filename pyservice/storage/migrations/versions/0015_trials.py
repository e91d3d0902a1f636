"""Marks the lobbies that are trials of a version."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    column: sa.Column[bool] = sa.Column(
        "is_trial", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("lobbies", column)
