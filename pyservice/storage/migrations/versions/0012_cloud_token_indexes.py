"""Adds the indexes for pages of the tokens that can act on a group."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.drop_index("ix_cloud_tokens_group_id", "cloud_tokens")
    op.create_index(
        "ix_cloud_tokens_group_id_token_id", "cloud_tokens", ["group_id", "token_id"], unique=False
    )
    of_all_groups = sa.text("group_id IS NULL")
    op.create_index(
        "ix_cloud_tokens_of_all_groups",
        "cloud_tokens",
        ["identity_id", "token_id"],
        unique=False,
        sqlite_where=of_all_groups,
        postgresql_where=of_all_groups,
    )
