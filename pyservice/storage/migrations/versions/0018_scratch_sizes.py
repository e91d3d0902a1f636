"""Adds the size of the scratch folder that a build requests."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("builds", sa.Column("scratch_mb", sa.Integer, nullable=True))
