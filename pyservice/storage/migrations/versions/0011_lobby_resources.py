"""Adds the resources of lobbies, so that the quotas of a group can be summed up."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    for name in ("cpu_millicores", "memory_mb"):
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("lobbies", column)
