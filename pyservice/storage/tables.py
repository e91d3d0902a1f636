"""Tables of the control plane's database.

IDs are UUID texts, times are Unix milliseconds named `_ms`, and hashes are bytes. The only secrets
are captcha keys in configurations, and token secrets of unexpired device links.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id(name: str, *arguments: Any, **options: Any) -> Column[str]:
    return Column(name, String(36), *arguments, **options)


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text, nullable=options.pop("nullable", False), **options)


def _ms(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=options.pop("nullable", False), **options)


service_state: Final = Table(
    "service_state",
    metadata,
    Column("name", String(64), primary_key=True),
    _text("value"),
)

identities: Final = Table(
    "identities",
    metadata,
    _id("identity_id", primary_key=True),
    _text("display_name"),
    _ms("create_ms"),
    _ms("disable_ms", nullable=True),
)
"""`disable_ms` is set while the tokens of the identity are refused."""

groups: Final = Table(
    "groups",
    metadata,
    _id("group_id", primary_key=True),
    _text("display_name"),
    _text("bio"),
    _text("publicity"),
    _id("owner_identity_id", ForeignKey("identities.identity_id"), nullable=False),
    _ms("create_ms"),
    _ms("payment_failed_ms", nullable=True),
    _ms("payment_method_attached_ms", nullable=True),
    _ms("payment_method_valid_ms", nullable=True),
    _ms("payment_succeeded_ms", nullable=True),
    Column("game_count", BigInteger, nullable=False, server_default="0"),
    Column("version_bytes", BigInteger, nullable=False, server_default="0"),
)
"""`game_count` and `version_bytes` are the use of two quotas. Counting it would take time in
proportion to all games or versions of the group, at each creation.
"""

members: Final = Table(
    "members",
    metadata,
    _id("group_id", ForeignKey("groups.group_id"), primary_key=True),
    _id("identity_id", ForeignKey("identities.identity_id"), primary_key=True, index=True),
    _ms("create_ms"),
)

group_quotas: Final = Table(
    "group_quotas",
    metadata,
    _id("group_id", ForeignKey("groups.group_id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("quota_limit", BigInteger, nullable=False),
)
"""Limits that the operator set for a group, by the names of `settings.quotas`."""

games: Final = Table(
    "games",
    metadata,
    _id("game_id", primary_key=True),
    Column("name_id", String(40), nullable=False, unique=True),
    _text("display_name"),
    _id("group_id", ForeignKey("groups.group_id"), nullable=False),
    _ms("create_ms"),
    Column("reserved_version_names", Integer, nullable=False, server_default="0"),
    _id("logo_upload_id", nullable=True),
    _id("banner_upload_id", nullable=True),
    Column("logo_kind", String(8), nullable=True),
    Column("banner_kind", String(8), nullable=True),
    Index("ix_games_group_id_game_id", "group_id", "game_id"),
)
"""`logo_kind` and `banner_kind` are `png` or `jpeg`, by content."""

versions: Final = Table(
    "versions",
    metadata,
    _id("version_id", primary_key=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=False),
    _text("display_name"),
    _ms("create_ms"),
    Column("config", LargeBinary, nullable=False),
    Column("config_json", LargeBinary, nullable=False),
    _id("site_id", nullable=True),
    Index("ix_versions_game_id_version_id", "game_id", "version_id"),
    Index("ix_versions_game_id_display_name", "game_id", "display_name"),
)
"""`config` is a message, `config_json` the JSON text of responses."""

version_builds: Final = Table(
    "version_builds",
    metadata,
    _id("version_id", ForeignKey("versions.version_id"), primary_key=True),
    _id("build_id", ForeignKey("builds.build_id"), primary_key=True, index=True),
)

namespaces: Final = Table(
    "namespaces",
    metadata,
    _id("namespace_id", primary_key=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=False),
    Column("name_id", String(20), nullable=False),
    _text("display_name"),
    _ms("create_ms"),
    _id("version_id", ForeignKey("versions.version_id"), nullable=False),
    Column("lobby_count_max", BigInteger, nullable=False),
    Column("max_players", BigInteger, nullable=False),
    Column("enable_domain_public_auth", Boolean, nullable=False),
    Column("cdn_auth_type", String(16), nullable=False),
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("game_id", "name_id"),
    Index("ix_namespaces_game_id_namespace_id", "game_id", "namespace_id"),
)
"""`revision` grows with each change that the data plane needs."""

domains: Final = Table(
    "domains",
    metadata,
    Column("domain", String(253), primary_key=True),
    _id("namespace_id", ForeignKey("namespaces.namespace_id"), nullable=False, index=True),
    _ms("create_ms"),
)

auth_users: Final = Table(
    "auth_users",
    metadata,
    _id("namespace_id", ForeignKey("namespaces.namespace_id"), primary_key=True),
    Column("user", String(128), primary_key=True),
    _text("password_hash"),
)

version_history: Final = Table(
    "version_history",
    metadata,
    _id("entry_id", primary_key=True),
    _id("namespace_id", ForeignKey("namespaces.namespace_id"), nullable=False),
    _id("version_id", nullable=False),
    _ms("deploy_ms"),
    UniqueConstraint("namespace_id", "deploy_ms"),
)

cloud_tokens: Final = Table(
    "cloud_tokens",
    metadata,
    _id("token_id", primary_key=True),
    Column("sha256", LargeBinary, nullable=False, unique=True),
    _id("identity_id", ForeignKey("identities.identity_id"), nullable=False, index=True),
    _id("group_id", ForeignKey("groups.group_id"), nullable=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=True, index=True),
    _ms("create_ms"),
    _ms("expires_ms", nullable=True),
    _ms("revoke_ms", nullable=True),
    _id("creator_token_id", nullable=True, index=True),
    Index("ix_cloud_tokens_group_id_token_id", "group_id", "token_id"),
    Index(
        "ix_cloud_tokens_of_all_groups",
        "identity_id",
        "token_id",
        sqlite_where=text("group_id IS NULL"),
        postgresql_where=text("group_id IS NULL"),
    ),
)
"""Without group and game, the token covers all groups of the identity. A token of one game has
both. The operator's command creates tokens without a creator.
"""

namespace_tokens: Final = Table(
    "namespace_tokens",
    metadata,
    _id("token_id", primary_key=True),
    _id("namespace_id", ForeignKey("namespaces.namespace_id"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("sha256", LargeBinary, nullable=True, unique=True),
    Column("answers", LargeBinary, nullable=True),
    _ms("create_ms"),
    _ms("expires_ms", nullable=True),
    _ms("revoke_ms", nullable=True),
    _id("creator_token_id", nullable=True, index=True),
    Index("ix_namespace_tokens_namespace_id_token_id", "namespace_id", "token_id"),
)
"""`kind` is env, pub or dev. `sha256` is for env only. `answers` has the mock responses of dev."""

uploads: Final = Table(
    "uploads",
    metadata,
    _id("upload_id", primary_key=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=False),
    Column("kind", String(8), nullable=False),
    _text("display_name"),
    Column("content_length", BigInteger, nullable=False),
    _ms("create_ms"),
    _ms("complete_ms", nullable=True),
    Index("ix_uploads_game_id_kind", "game_id", "kind", "create_ms"),
    Index("ix_uploads_complete_ms_create_ms", "complete_ms", "create_ms"),
)
"""`kind` is build, site, avatar, banner or logo, or `gone` for an upload to be removed."""

upload_files: Final = Table(
    "upload_files",
    metadata,
    _id("upload_id", ForeignKey("uploads.upload_id"), primary_key=True),
    Column("path", String(512), primary_key=True),
    Column("content_length", BigInteger, nullable=False),
    _text("content_type", nullable=True),
    Column("sha256", LargeBinary, nullable=True),
    Column("part_bytes", BigInteger, nullable=True),
)
"""`sha256` is the announced digest, later the computed one. `part_bytes` is set for multipart
uploads.
"""

builds: Final = Table(
    "builds",
    metadata,
    _id("build_id", primary_key=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=False),
    _id("upload_id", ForeignKey("uploads.upload_id"), nullable=False, unique=True),
    _text("display_name"),
    Column("kind", String(16), nullable=False),
    Column("compression", String(8), nullable=False),
    _text("image_tag", nullable=True),
    _ms("create_ms"),
    Column("scratch_mb", Integer, nullable=True),
    Index("ix_builds_game_id_build_id", "game_id", "build_id"),
)
"""`scratch_mb` is that of `server.json` in an archive. NULL: none, or the upload is older than this
column. `image_tag` names an image in a container archive. For the kind `image` it is a
reference.
"""

build_tags: Final = Table(
    "build_tags",
    metadata,
    _id("build_id", ForeignKey("builds.build_id"), primary_key=True),
    Column("name", String(128), primary_key=True),
    _text("value"),
)

sites: Final = Table(
    "sites",
    metadata,
    _id("site_id", primary_key=True),
    _id("game_id", ForeignKey("games.game_id"), nullable=False),
    _id("upload_id", ForeignKey("uploads.upload_id"), nullable=False, unique=True),
    _text("display_name"),
    _ms("create_ms"),
    Index("ix_sites_game_id_site_id", "game_id", "site_id"),
)

lobbies: Final = Table(
    "lobbies",
    metadata,
    _id("lobby_id", primary_key=True),
    _id("namespace_id", nullable=False),
    Column("game_mode", String(64), nullable=False),
    Column("region_id", String(32), nullable=False),
    _id("version_id", nullable=False),
    Column("publicity", String(8), nullable=False),
    Column("is_closed", Boolean, nullable=False),
    Column("is_stopping", Boolean, nullable=False),
    _ms("create_ms"),
    _ms("ready_ms", nullable=True),
    _ms("stop_ms", nullable=True),
    _text("stop_reason", nullable=True),
    Column("exit_code", Integer, nullable=True),
    Column("peak_players", Integer, nullable=False, server_default="0"),
    Column("player_ms", BigInteger, nullable=False, server_default="0"),
    Column("connections", BigInteger, nullable=False, server_default="0"),
    # These values are set at the lobby's end. The data plane has the values of a live lobby.
    Column("reserved_count", Integer, nullable=False, server_default="0"),
    Column("connected_count", Integer, nullable=False, server_default="0"),
    # Of the lobby's tier. 0 for attached lobbies, and for lobbies from before revision 0011.
    Column("cpu_millicores", BigInteger, nullable=False, server_default="0"),
    Column("memory_mb", BigInteger, nullable=False, server_default="0"),
    Column("is_trial", Boolean, nullable=False, server_default=false()),
    Index("ix_lobbies_namespace_id_create_ms", "namespace_id", "create_ms", "lobby_id"),
    Index("ix_lobbies_stop_ms", "stop_ms"),
)

device_links: Final = Table(
    "device_links",
    metadata,
    _id("device_link_id", primary_key=True),
    _ms("create_ms"),
    _ms("expires_ms"),
    _ms("complete_ms", nullable=True),
    _id("game_id", nullable=True),
    _id("token_id", nullable=True),
    Column("uncompleted_number", BigInteger, nullable=True, index=True),
    Column("key_number", Integer, nullable=False, server_default="0"),
    Column("token_secret", LargeBinary, nullable=True),
    Index("ix_device_links_expires_ms", "expires_ms"),
    Index(
        "ix_device_links_with_secret",
        "expires_ms",
        sqlite_where=text("token_secret IS NOT NULL"),
        postgresql_where=text("token_secret IS NOT NULL"),
    ),
)
"""`uncompleted_number` grows with each link. A completed link has no number.

The device token is derived from `token_secret` and a key outside of the database. `token_secret` is
erased when the link expires.
"""

idempotent_answers: Final = Table(
    "idempotent_answers",
    metadata,
    Column("caller_key", LargeBinary, primary_key=True),
    Column("message_hash", LargeBinary, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("anonymous_number", BigInteger, nullable=True, index=True),
    _ms("create_ms", index=True),
)
"""`caller_key` is the hash of caller and key, `message_hash` the hash of operation and message.

`anonymous_number` grows with each response to a caller without a token. Other rows have none.
"""

rays: Final = Table(
    "rays",
    metadata,
    _id("ray_id", primary_key=True),
    Column("span_id", String(16), primary_key=True),
    Column("parent_span_id", String(16), nullable=False),
    _id("identity_id", nullable=True),
    _id("group_id", nullable=True),
    _id("game_id", nullable=True),
    _ms("create_ms", index=True),
    Column("span_set", LargeBinary, nullable=False),
)
"""Spans of one process for one request.

The owner is the first of game, group and identity that is set. If none is set, the owner is that of
the row with a `parent_span_id` equal to this `span_id`.
"""

servers: Final = Table(
    "servers",
    metadata,
    _id("server_id", primary_key=True),
    _id("namespace_id", ForeignKey("namespaces.namespace_id"), nullable=False),
    # `build_id` is no foreign key, because a build that no live server needs may be deleted.
    _id("build_id", nullable=False),
    Column("record", LargeBinary, nullable=False),
    _ms("create_ms"),
    _ms("start_ms", nullable=True),
    _ms("stop_ms", nullable=True),
    _ms("stop_timeout_ms", nullable=True),
    _ms("destroy_ms", nullable=True),
    Column("is_placed", Boolean, nullable=False),
    Column("exit_code", Integer, nullable=True),
    _text("failure", nullable=True),
    _text("failure_message", nullable=True),
    Column("cpu_millicores", BigInteger, nullable=False, server_default="0"),
    Column("memory_mb", BigInteger, nullable=False, server_default="0"),
    Column("node", String(253), nullable=True),
    Index("ix_servers_namespace_id_server_id", "namespace_id", "server_id"),
    Index(
        "ix_servers_live",
        "namespace_id",
        "server_id",
        sqlite_where=text("destroy_ms IS NULL"),
        postgresql_where=text("destroy_ms IS NULL"),
    ),
    Index(
        "ix_servers_destroyed",
        "namespace_id",
        "destroy_ms",
        "server_id",
        sqlite_where=text("destroy_ms IS NOT NULL"),
        postgresql_where=text("destroy_ms IS NOT NULL"),
    ),
)
"""`record` has the fields of the server as `hosting.v1.Server`. Only the binding of ports later
than the creation changes them. `stop_ms` is the time of
the stop request, `stop_timeout_ms` its timeout. The resources of servers that ended before
revision 0005 are 0. `is_placed` is true once the ports are assigned. `node` is the node of an ended
server, in a placement with nodes.
"""

server_tags: Final = Table(
    "server_tags",
    metadata,
    _id("server_id", ForeignKey("servers.server_id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    _text("value"),
)

server_host_ports: Final = Table(
    "server_host_ports",
    metadata,
    Column("is_datagram", Boolean, primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    _id("server_id", ForeignKey("servers.server_id"), nullable=False, index=True),
)
"""Host ports of live servers that are reached without edge-guard."""

lobby_runs: Final = Table(
    "lobby_runs",
    metadata,
    _id("lobby_id", primary_key=True),
    Column("tier", String(64), nullable=False),
    _ms("start_ms", nullable=True),
    _ms("end_ms", index=True),
    Column("reason", String(32), nullable=False),
    _text("message"),
    Column("exit_code", Integer),
    Column("node", String(253), nullable=True),
)
"""`node` is the node of the run, in a placement with nodes."""

exports: Final = Table(
    "exports",
    metadata,
    _id("export_id", primary_key=True),
    _ms("expires_ms", index=True),
    _id("group_id", nullable=True, index=True),
    Column("content_length", BigInteger, nullable=False, server_default="0"),
)
"""Lobby exports. The file of an export is the object `exports/<id>/csv`."""

removals: Final = Table(
    "removals",
    metadata,
    _id("subject_id", primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("revision", BigInteger, nullable=False),
)
"""Remains of deleted records that the background job removes.

`kind` is `namespace` (in the data plane, lobby records), `upload` (objects) or `run` (folder).
`revision` orders the removal of a namespace after its changes, and is 0 for other kinds.
"""

audit_log: Final = Table(
    "audit_log",
    metadata,
    # No foreign keys, because an entry outlives its objects.
    _id("group_id", primary_key=True),
    _id("audit_id", primary_key=True),
    _ms("create_ms", index=True),
    Column("actor", String(16), nullable=False),
    _id("identity_id", nullable=True),
    _id("token_id", nullable=True),
    Column("address", String(45), nullable=True),
    Column("operation", String(64), nullable=False),
    Column("outcome", String(64), nullable=False),
    _id("game_id", nullable=True),
    _id("namespace_id", nullable=True),
    Column("object_type", String(16), nullable=True),
    _text("object_id", nullable=True),
    Column("actor_name", String(128), nullable=True),
)
"""`audit_id` is ordered by time. `group_id` is empty if a change belongs to no group. `outcome` is
`OK` or an error code.
"""
