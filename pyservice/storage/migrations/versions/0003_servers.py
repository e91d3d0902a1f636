"""Adds dynamic servers with tags and host ports, ended lobby processes, and exports."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("server_id", sa.String(36), nullable=False),
        sa.Column("namespace_id", sa.String(36), nullable=False),
        sa.Column("build_id", sa.String(36), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("create_ms", sa.BigInteger(), nullable=False),
        sa.Column("start_ms", sa.BigInteger(), nullable=True),
        sa.Column("stop_ms", sa.BigInteger(), nullable=True),
        sa.Column("stop_timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("destroy_ms", sa.BigInteger(), nullable=True),
        sa.Column("is_placed", sa.Boolean(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.namespace_id"], name="fk_servers_namespace_id_namespaces"
        ),
        sa.PrimaryKeyConstraint("server_id", name="pk_servers"),
    )
    op.create_index(
        "ix_servers_namespace_id_server_id", "servers", ["namespace_id", "server_id"], unique=False
    )
    op.create_index(
        "ix_servers_live",
        "servers",
        ["namespace_id", "server_id"],
        unique=False,
        sqlite_where=sa.text("destroy_ms IS NULL"),
        postgresql_where=sa.text("destroy_ms IS NULL"),
    )
    op.create_table(
        "server_tags",
        sa.Column("server_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.server_id"], name="fk_server_tags_server_id_servers"
        ),
        sa.PrimaryKeyConstraint("server_id", "name", name="pk_server_tags"),
    )
    op.create_table(
        "server_host_ports",
        sa.Column("is_datagram", sa.Boolean(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("server_id", sa.String(36), nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.server_id"], name="fk_server_host_ports_server_id_servers"
        ),
        sa.PrimaryKeyConstraint("is_datagram", "port", name="pk_server_host_ports"),
    )
    op.create_index(
        "ix_server_host_ports_server_id", "server_host_ports", ["server_id"], unique=False
    )
    _add_ends_and_exports()


def _add_ends_and_exports() -> None:
    op.create_table(
        "lobby_runs",
        sa.Column("lobby_id", sa.String(36), nullable=False),
        sa.Column("tier", sa.String(64), nullable=False),
        sa.Column("start_ms", sa.BigInteger(), nullable=True),
        sa.Column("end_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("lobby_id", name="pk_lobby_runs"),
    )
    op.create_index("ix_lobby_runs_end_ms", "lobby_runs", ["end_ms"], unique=False)
    op.create_table(
        "exports",
        sa.Column("export_id", sa.String(36), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("export_id", name="pk_exports"),
    )
    op.create_index("ix_exports_expires_ms", "exports", ["expires_ms"], unique=False)
