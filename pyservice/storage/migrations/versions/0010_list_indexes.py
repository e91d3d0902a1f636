"""Adds the indexes for pages of games, namespaces and tokens."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.drop_index("ix_games_group_id", "games")
    op.create_index("ix_games_group_id_game_id", "games", ["group_id", "game_id"], unique=False)
    op.create_index(
        "ix_namespaces_game_id_namespace_id",
        "namespaces",
        ["game_id", "namespace_id"],
        unique=False,
    )
    op.drop_index("ix_namespace_tokens_namespace_id", "namespace_tokens")
    op.create_index(
        "ix_namespace_tokens_namespace_id_token_id",
        "namespace_tokens",
        ["namespace_id", "token_id"],
        unique=False,
    )
