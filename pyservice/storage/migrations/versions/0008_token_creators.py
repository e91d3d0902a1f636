"""Adds the creators of tokens, and the time at which an identity was disabled."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for table in ("cloud_tokens", "namespace_tokens"):
        op.add_column(table, sa.Column("creator_token_id", sa.String(36), nullable=True))
        op.create_index(f"ix_{table}_creator_token_id", table, ["creator_token_id"], unique=False)
    op.add_column("identities", sa.Column("disable_ms", sa.BigInteger(), nullable=True))
