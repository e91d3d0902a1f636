"""Adds the node of ended game servers."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    for table in ("servers", "lobby_runs"):
        op.add_column(table, sa.Column("node", sa.String(253), nullable=True))
