"""Adds the number of games and the bytes of versions of each group."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    for name in ("game_count", "version_bytes"):
        op.add_column(
            "groups", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        )
    op.execute(
        """
        UPDATE groups SET
          game_count = (SELECT count(*) FROM games WHERE games.group_id = groups.group_id),
          version_bytes = (
            SELECT coalesce(sum(length(versions.config) + length(versions.config_json)), 0)
            FROM versions JOIN games ON games.game_id = versions.game_id
            WHERE games.group_id = groups.group_id)
        """
    )
