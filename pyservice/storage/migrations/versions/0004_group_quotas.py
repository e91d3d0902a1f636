"""Adds the limits that the operator sets for a group."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "group_quotas",
        sa.Column("group_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("quota_limit", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.group_id"], name="fk_group_quotas_group_id_groups"
        ),
        sa.PrimaryKeyConstraint("group_id", "name", name="pk_group_quotas"),
    )
