"""Database rows in large numbers, for tests of the limits of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy import insert

from pyservice.control.tokens import new_secret
from pyservice.pb.hosting.internal.v1.configuration_pb2 import DevelopmentToken
from pyservice.storage import namespaces
from pyservice.storage.tables import auth_users, namespace_tokens, versions
from pyservice.timestamps import now_ms
from tests.support.namespace_scenario import IDS, Records


async def add_tokens(
    records: Records,
    namespace_id: str,
    kind: str,
    count: int,
    *,
    expires_ms: int | None = None,
    is_revoked: bool = False,
) -> None:
    now = now_ms()
    if kind == "dev" and expires_ms is None:
        expires_ms = now + 3_600_000
    rows = []
    for _ in range(count):
        token_id = IDS.new()
        answers = DevelopmentToken(token_id=token_id, expires_ms=expires_ms)
        rows.append(
            {
                "token_id": token_id,
                "namespace_id": namespace_id,
                "kind": kind,
                "sha256": new_secret("env").sha256 if kind == "env" else None,
                "answers": answers.SerializeToString() if kind == "dev" else None,
                "create_ms": now - 1_000,
                "expires_ms": expires_ms,
                "revoke_ms": now - 1_000 if is_revoked else None,
            }
        )
    async with records.database.write() as tx:
        await tx.run(insert(namespace_tokens), rows)


async def add_domains(records: Records, namespace_id: str, count: int) -> None:
    async with records.database.write() as tx:
        for _ in range(count):
            await namespaces.add_domain(tx, namespace_id, f"{uuid4().hex}.example", now_ms())


async def add_users(records: Records, namespace_id: str, count: int) -> None:
    rows = [
        {"namespace_id": namespace_id, "user": f"user-{number}", "password_hash": ""}
        for number in range(count)
    ]
    async with records.database.write() as tx:
        await tx.run(insert(auth_users), rows)


async def add_versions(records: Records, game_id: str, names: Sequence[str]) -> None:
    columns = {"game_id": game_id, "create_ms": now_ms(), "config": b"", "config_json": b"{}"}
    rows = [{**columns, "version_id": IDS.new(), "display_name": name} for name in names]
    async with records.database.write() as tx:
        await tx.run(insert(versions), rows)
