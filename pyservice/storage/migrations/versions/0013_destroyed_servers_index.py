"""Adds the index for the retention of destroyed servers."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    is_destroyed = sa.text("destroy_ms IS NOT NULL")
    op.create_index(
        "ix_servers_destroyed",
        "servers",
        ["namespace_id", "destroy_ms", "server_id"],
        unique=False,
        sqlite_where=is_destroyed,
        postgresql_where=is_destroyed,
    )
