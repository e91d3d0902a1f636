"""Adds end values of lobbies, an index of version names, and secrets of device links.

The migration invalidates open device links, because their key is no longer used.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for name, kind in (
        ("connections", sa.BigInteger()),
        ("reserved_count", sa.Integer()),
        ("connected_count", sa.Integer()),
    ):
        column = sa.Column(name, kind, server_default="0", nullable=False)
        op.add_column("lobbies", column)
    op.create_index(
        "ix_versions_game_id_display_name", "versions", ["game_id", "display_name"], unique=False
    )
    key_number = sa.Column("key_number", sa.Integer(), server_default="0", nullable=False)
    op.add_column("device_links", key_number)
    op.add_column("device_links", sa.Column("token_secret", sa.LargeBinary(), nullable=True))
    op.create_index(
        "ix_device_links_with_secret",
        "device_links",
        ["expires_ms"],
        unique=False,
        sqlite_where=sa.text("token_secret IS NOT NULL"),
        postgresql_where=sa.text("token_secret IS NOT NULL"),
    )
