"""The records of a running service, under its feet: what only the command line makes (tokens of a group, of other
identities, ended ones), written with the service's own queries, and two ways to see what a caller changed.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Select, Table, delete, insert, select, update

from pyservice.control.changes import now_ms
from pyservice.control.tokens import new_secret
from pyservice.ids import RecordIds
from pyservice.storage import groups, namespaces, tokens
from pyservice.storage.database import Database
from pyservice.storage.tables import groups as groups_table
from pyservice.storage.tables import lobbies, members, metadata

PAID_MS: Final = 1
PAID_TS: Final = "1970-01-01T00:00:00.001Z"
MOVING: Final = frozenset({"rays", "service_state", "lobbies", "alembic_version"})
"""Tables that are written without anybody having called."""
MOVING_COLUMNS: Final = {
    "servers": {
        *("start_ms", "destroy_ms", "is_placed", "exit_code", "failure", "failure_message"),
    }
}
"""And columns: what becomes of a process."""

IDS: Final = RecordIds()


class Records:
    """The records of a running service, under its feet."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def identity(self, *group_names: str) -> tuple[str, list[str]]:
        """A new identity, and new groups that it owns."""
        identity_id, group_ids = IDS.new(), []
        async with self.database.write() as tx:
            await groups.add_identity(tx, identity_id, "Somebody", now_ms())
            for name in group_names:
                group_ids.append(IDS.new())
                await groups.add(tx, group_ids[-1], name, identity_id, now_ms())
        return identity_id, group_ids

    async def cloud_token(
        self,
        identity_id: str,
        group_id: str | None = None,
        game_id: str | None = None,
        *,
        expires_ms: int | None = None,
        is_revoked: bool = False,
    ) -> tuple[str, str]:
        """Token and id."""
        secret, token_id = new_secret("cloud"), IDS.new()
        async with self.database.write() as tx:
            await tokens.add_cloud(
                tx,
                token_id,
                secret.sha256,
                identity_id,
                group_id,
                game_id,
                now_ms(),
                expires_ms=expires_ms,
            )
            if is_revoked:
                await tokens.revoke_cloud(tx, token_id, now_ms())
        return secret.token, token_id

    async def environment_token(self, namespace_id: str, expires_ms: int) -> str:
        """An env_ token that ends; the data plane learns of it with the next change."""
        secret = new_secret("env")
        async with self.database.write() as tx:
            await tokens.add_of_namespace(
                tx,
                IDS.new(),
                namespace_id,
                "env",
                now_ms(),
                sha256=secret.sha256,
                expires_ms=expires_ms,
            )
        return secret.token

    async def leave(self, identity_id: str, group_id: str) -> None:
        async with self.database.write() as tx:
            await tx.run(
                delete(members).where(
                    members.c.identity_id == identity_id, members.c.group_id == group_id
                )
            )

    async def past_lobby(self, namespace_id: str, version_id: str) -> str:
        """Id of a lobby that has ended."""
        values = {
            "lobby_id": str(uuid4()),
            "namespace_id": namespace_id,
            "game_mode": "arena",
            "region_id": "local",
            "version_id": version_id,
            "publicity": "public",
            "is_closed": False,
            "is_stopping": False,
            "create_ms": now_ms(),
            "stop_ms": now_ms(),
            "stop_reason": "removed",
        }
        async with self.database.write() as tx:
            await tx.run(insert(lobbies), values)
        return str(values["lobby_id"])

    async def site_user(self, namespace_id: str, user: str) -> None:
        """A user of the site whose password nobody knows."""
        async with self.database.write() as tx:
            await namespaces.add_user(tx, namespace_id, user, "")

    async def pay(self, group_id: str) -> None:
        """Something for the billing to tell."""
        values = {"payment_failed_ms": PAID_MS}
        async with self.database.write() as tx:
            await tx.run(
                update(groups_table).where(groups_table.c.group_id == group_id).values(**values)
            )

    async def tables(self) -> dict[str, int]:
        """A number per table that is another one when any row is."""
        told = {}
        async with self.database.read() as tx:
            for table in metadata.sorted_tables:
                if table.name not in MOVING:
                    rows = await tx.all(still(table))
                    told[table.name] = hash(frozenset(tuple(row) for row in rows))
        return told


def still(table: Table) -> Select[Any]:
    """Rows of a table as callers left them."""
    moving = MOVING_COLUMNS.get(table.name, ())
    return select(*(column for column in table.columns if column.name not in moving))
