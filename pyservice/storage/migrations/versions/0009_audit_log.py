"""Adds the audit log of changes."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("group_id", sa.String(36), nullable=False),
        sa.Column("audit_id", sa.String(36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(16), nullable=False),
        sa.Column("identity_id", sa.String(36), nullable=True),
        sa.Column("token_id", sa.String(36), nullable=True),
        sa.Column("address", sa.String(45), nullable=True),
        sa.Column("operation", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
        sa.Column("game_id", sa.String(36), nullable=True),
        sa.Column("namespace_id", sa.String(36), nullable=True),
        sa.Column("object_type", sa.String(16), nullable=True),
        sa.Column("object_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("group_id", "audit_id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_create_ms", "audit_log", ["create_ms"], unique=False)
