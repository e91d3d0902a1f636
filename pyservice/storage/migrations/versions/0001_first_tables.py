"""Creates the tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "device_links",
        sa.Column("device_link_id", sa.String(length=36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("complete_ms", sa.BigInteger(), nullable=True),
        sa.Column("game_id", sa.String(length=36), nullable=True),
        sa.Column("token_id", sa.String(length=36), nullable=True),
        sa.Column("uncompleted_number", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("device_link_id", name=op.f("pk_device_links")),
    )
    op.create_index("ix_device_links_expires_ms", "device_links", ["expires_ms"], unique=False)
    op.create_index(
        op.f("ix_device_links_uncompleted_number"),
        "device_links",
        ["uncompleted_number"],
        unique=False,
    )
    op.create_table(
        "idempotent_answers",
        sa.Column("caller_key", sa.LargeBinary(), nullable=False),
        sa.Column("message_hash", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("anonymous_number", sa.BigInteger(), nullable=True),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("caller_key", name=op.f("pk_idempotent_answers")),
    )
    op.create_index(
        op.f("ix_idempotent_answers_anonymous_number"),
        "idempotent_answers",
        ["anonymous_number"],
        unique=False,
    )
    op.create_index(
        op.f("ix_idempotent_answers_create_ms"), "idempotent_answers", ["create_ms"], unique=False
    )
    op.create_table(
        "identities",
        sa.Column("identity_id", sa.String(length=36), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("identity_id", name=op.f("pk_identities")),
    )
    op.create_table(
        "lobbies",
        sa.Column("lobby_id", sa.String(length=36), nullable=False),
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("game_mode", sa.String(length=64), nullable=False),
        sa.Column("region_id", sa.String(length=32), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("publicity", sa.String(length=8), nullable=False),
        sa.Column("is_closed", sa.Boolean(), nullable=False),
        sa.Column("is_stopping", sa.Boolean(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("ready_ms", sa.BigInteger(), nullable=True),
        sa.Column("stop_ms", sa.BigInteger(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("peak_players", sa.Integer(), server_default="0", nullable=False),
        sa.Column("player_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("lobby_id", name=op.f("pk_lobbies")),
    )
    op.create_index(
        "ix_lobbies_namespace_id_create_ms",
        "lobbies",
        ["namespace_id", "create_ms", "lobby_id"],
        unique=False,
    )
    op.create_index("ix_lobbies_stop_ms", "lobbies", ["stop_ms"], unique=False)
    op.create_table(
        "rays",
        sa.Column("ray_id", sa.String(length=36), nullable=False),
        sa.Column("span_id", sa.String(length=16), nullable=False),
        sa.Column("parent_span_id", sa.String(length=16), nullable=False),
        sa.Column("identity_id", sa.String(length=36), nullable=True),
        sa.Column("group_id", sa.String(length=36), nullable=True),
        sa.Column("game_id", sa.String(length=36), nullable=True),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("span_set", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("ray_id", "span_id", name=op.f("pk_rays")),
    )
    op.create_index(op.f("ix_rays_create_ms"), "rays", ["create_ms"], unique=False)
    op.create_table(
        "service_state",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_service_state")),
    )
    op.create_table(
        "groups",
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("bio", sa.Text(), nullable=False),
        sa.Column("publicity", sa.Text(), nullable=False),
        sa.Column("owner_identity_id", sa.String(length=36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("payment_failed_ms", sa.BigInteger(), nullable=True),
        sa.Column("payment_method_attached_ms", sa.BigInteger(), nullable=True),
        sa.Column("payment_method_valid_ms", sa.BigInteger(), nullable=True),
        sa.Column("payment_succeeded_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_identity_id"],
            ["identities.identity_id"],
            name=op.f("fk_groups_owner_identity_id_identities"),
        ),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_groups")),
    )
    op.create_table(
        "games",
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("name_id", sa.String(length=40), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("reserved_version_names", sa.Integer(), server_default="0", nullable=False),
        sa.Column("logo_upload_id", sa.String(length=36), nullable=True),
        sa.Column("banner_upload_id", sa.String(length=36), nullable=True),
        sa.Column("logo_kind", sa.String(length=8), nullable=True),
        sa.Column("banner_kind", sa.String(length=8), nullable=True),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.group_id"], name=op.f("fk_games_group_id_groups")
        ),
        sa.PrimaryKeyConstraint("game_id", name=op.f("pk_games")),
        sa.UniqueConstraint("name_id", name=op.f("uq_games_name_id")),
    )
    op.create_index(op.f("ix_games_group_id"), "games", ["group_id"], unique=False)
    op.create_table(
        "members",
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("identity_id", sa.String(length=36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.group_id"], name=op.f("fk_members_group_id_groups")
        ),
        sa.ForeignKeyConstraint(
            ["identity_id"],
            ["identities.identity_id"],
            name=op.f("fk_members_identity_id_identities"),
        ),
        sa.PrimaryKeyConstraint("group_id", "identity_id", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_identity_id"), "members", ["identity_id"], unique=False)
    op.create_table(
        "cloud_tokens",
        sa.Column("token_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("identity_id", sa.String(length=36), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=True),
        sa.Column("game_id", sa.String(length=36), nullable=True),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoke_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_cloud_tokens_game_id_games")
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.group_id"], name=op.f("fk_cloud_tokens_group_id_groups")
        ),
        sa.ForeignKeyConstraint(
            ["identity_id"],
            ["identities.identity_id"],
            name=op.f("fk_cloud_tokens_identity_id_identities"),
        ),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_cloud_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_cloud_tokens_sha256")),
    )
    op.create_index(op.f("ix_cloud_tokens_game_id"), "cloud_tokens", ["game_id"], unique=False)
    op.create_index(op.f("ix_cloud_tokens_group_id"), "cloud_tokens", ["group_id"], unique=False)
    op.create_index(
        op.f("ix_cloud_tokens_identity_id"), "cloud_tokens", ["identity_id"], unique=False
    )
    op.create_table(
        "uploads",
        sa.Column("upload_id", sa.String(length=36), nullable=False),
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("content_length", sa.BigInteger(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("complete_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_uploads_game_id_games")
        ),
        sa.PrimaryKeyConstraint("upload_id", name=op.f("pk_uploads")),
    )
    op.create_index(
        "ix_uploads_complete_ms_create_ms", "uploads", ["complete_ms", "create_ms"], unique=False
    )
    op.create_index(
        "ix_uploads_game_id_kind", "uploads", ["game_id", "kind", "create_ms"], unique=False
    )
    op.create_table(
        "versions",
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=False),
        sa.Column("config_json", sa.LargeBinary(), nullable=False),
        sa.Column("site_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_versions_game_id_games")
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_versions")),
    )
    op.create_index(
        "ix_versions_game_id_version_id", "versions", ["game_id", "version_id"], unique=False
    )
    op.create_table(
        "builds",
        sa.Column("build_id", sa.String(length=36), nullable=False),
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("upload_id", sa.String(length=36), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("compression", sa.String(length=8), nullable=False),
        sa.Column("image_tag", sa.Text(), nullable=True),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_builds_game_id_games")
        ),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.upload_id"], name=op.f("fk_builds_upload_id_uploads")
        ),
        sa.PrimaryKeyConstraint("build_id", name=op.f("pk_builds")),
        sa.UniqueConstraint("upload_id", name=op.f("uq_builds_upload_id")),
    )
    op.create_index("ix_builds_game_id_build_id", "builds", ["game_id", "build_id"], unique=False)
    op.create_table(
        "namespaces",
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("name_id", sa.String(length=20), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("lobby_count_max", sa.BigInteger(), nullable=False),
        sa.Column("max_players", sa.BigInteger(), nullable=False),
        sa.Column("enable_domain_public_auth", sa.Boolean(), nullable=False),
        sa.Column("cdn_auth_type", sa.String(length=16), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_namespaces_game_id_games")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.version_id"], name=op.f("fk_namespaces_version_id_versions")
        ),
        sa.PrimaryKeyConstraint("namespace_id", name=op.f("pk_namespaces")),
        sa.UniqueConstraint("game_id", "name_id", name=op.f("uq_namespaces_game_id_name_id")),
    )
    op.create_table(
        "sites",
        sa.Column("site_id", sa.String(length=36), nullable=False),
        sa.Column("game_id", sa.String(length=36), nullable=False),
        sa.Column("upload_id", sa.String(length=36), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["game_id"], ["games.game_id"], name=op.f("fk_sites_game_id_games")
        ),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.upload_id"], name=op.f("fk_sites_upload_id_uploads")
        ),
        sa.PrimaryKeyConstraint("site_id", name=op.f("pk_sites")),
        sa.UniqueConstraint("upload_id", name=op.f("uq_sites_upload_id")),
    )
    op.create_index("ix_sites_game_id_site_id", "sites", ["game_id", "site_id"], unique=False)
    op.create_table(
        "upload_files",
        sa.Column("upload_id", sa.String(length=36), nullable=False),
        sa.Column("path", sa.String(length=512), nullable=False),
        sa.Column("content_length", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("sha256", sa.LargeBinary(), nullable=True),
        sa.Column("part_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.upload_id"], name=op.f("fk_upload_files_upload_id_uploads")
        ),
        sa.PrimaryKeyConstraint("upload_id", "path", name=op.f("pk_upload_files")),
    )
    op.create_table(
        "auth_users",
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("user", sa.String(length=128), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"],
            ["namespaces.namespace_id"],
            name=op.f("fk_auth_users_namespace_id_namespaces"),
        ),
        sa.PrimaryKeyConstraint("namespace_id", "user", name=op.f("pk_auth_users")),
    )
    op.create_table(
        "build_tags",
        sa.Column("build_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["build_id"], ["builds.build_id"], name=op.f("fk_build_tags_build_id_builds")
        ),
        sa.PrimaryKeyConstraint("build_id", "name", name=op.f("pk_build_tags")),
    )
    op.create_table(
        "domains",
        sa.Column("domain", sa.String(length=253), nullable=False),
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"],
            ["namespaces.namespace_id"],
            name=op.f("fk_domains_namespace_id_namespaces"),
        ),
        sa.PrimaryKeyConstraint("domain", name=op.f("pk_domains")),
    )
    op.create_index(op.f("ix_domains_namespace_id"), "domains", ["namespace_id"], unique=False)
    op.create_table(
        "namespace_tokens",
        sa.Column("token_id", sa.String(length=36), nullable=False),
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=True),
        sa.Column("answers", sa.LargeBinary(), nullable=True),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoke_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"],
            ["namespaces.namespace_id"],
            name=op.f("fk_namespace_tokens_namespace_id_namespaces"),
        ),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_namespace_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_namespace_tokens_sha256")),
    )
    op.create_index(
        op.f("ix_namespace_tokens_namespace_id"), "namespace_tokens", ["namespace_id"], unique=False
    )
    op.create_table(
        "version_builds",
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("build_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["build_id"], ["builds.build_id"], name=op.f("fk_version_builds_build_id_builds")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.version_id"],
            name=op.f("fk_version_builds_version_id_versions"),
        ),
        sa.PrimaryKeyConstraint("version_id", "build_id", name=op.f("pk_version_builds")),
    )
    op.create_index(
        op.f("ix_version_builds_build_id"), "version_builds", ["build_id"], unique=False
    )
    op.create_table(
        "version_history",
        sa.Column("entry_id", sa.String(length=36), nullable=False),
        sa.Column("namespace_id", sa.String(length=36), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("deploy_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"],
            ["namespaces.namespace_id"],
            name=op.f("fk_version_history_namespace_id_namespaces"),
        ),
        sa.PrimaryKeyConstraint("entry_id", name=op.f("pk_version_history")),
        sa.UniqueConstraint(
            "namespace_id", "deploy_ms", name=op.f("uq_version_history_namespace_id_deploy_ms")
        ),
    )
