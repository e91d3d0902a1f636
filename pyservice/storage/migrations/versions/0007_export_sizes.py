"""Adds group and size of exports. Earlier exports have none, and expire within hours."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("exports", sa.Column("group_id", sa.String(36), nullable=True))
    op.add_column(
        "exports",
        sa.Column("content_length", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.create_index("ix_exports_group_id", "exports", ["group_id"], unique=False)
