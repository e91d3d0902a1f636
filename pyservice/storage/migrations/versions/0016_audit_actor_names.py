"""Adds the name of the actor to entries of the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("actor_name", sa.String(128), nullable=True))
