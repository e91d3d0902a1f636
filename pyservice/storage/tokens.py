"""Tokens by their hashes and ids: `cloud_` ones, and those of a namespace."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, bindparam, insert, or_, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import cloud_tokens, namespace_tokens

_BY_HASH = select(cloud_tokens).where(cloud_tokens.c.sha256 == bindparam("sha256"))
_ENVIRONMENT_BY_HASH = select(namespace_tokens).where(
    namespace_tokens.c.sha256 == bindparam("sha256")
)
_OF_NAMESPACE = (
    select(namespace_tokens)
    .where(namespace_tokens.c.namespace_id == bindparam("namespace_id"))
    .order_by(namespace_tokens.c.token_id.desc())
)
_OF_NAMESPACES = (
    select(namespace_tokens)
    .where(namespace_tokens.c.namespace_id.in_(bindparam("ids", expanding=True)))
    .order_by(namespace_tokens.c.token_id.desc())
)
_OF_GROUP = (
    select(cloud_tokens)
    .where(
        or_(
            cloud_tokens.c.group_id == bindparam("group_id"),
            and_(
                cloud_tokens.c.group_id.is_(None),
                cloud_tokens.c.identity_id == bindparam("identity_id"),
            ),
        )
    )
    .order_by(cloud_tokens.c.token_id.desc())
)


async def add_cloud(
    tx: Transaction,
    token_id: str,
    sha256: bytes,
    identity_id: str,
    group_id: str | None,
    game_id: str | None,
    now_ms: int,
    expires_ms: int | None = None,
) -> None:
    await tx.run(
        insert(cloud_tokens),
        {
            "token_id": token_id,
            "sha256": sha256,
            "identity_id": identity_id,
            "group_id": group_id,
            "game_id": game_id,
            "create_ms": now_ms,
            "expires_ms": expires_ms,
        },
    )


async def cloud_by_hash(tx: Transaction, sha256: bytes) -> Record | None:
    """Columns of `cloud_tokens`."""
    return await tx.first(_BY_HASH, {"sha256": sha256})


async def of_group(tx: Transaction, group_id: str, identity_id: str) -> Sequence[Record]:
    """Columns of `cloud_tokens`, newest first: of the group and its games, and those that the identity has for all its
    groups.
    """
    return await tx.all(_OF_GROUP, {"group_id": group_id, "identity_id": identity_id})


async def revoke_cloud(tx: Transaction, token_id: str, now_ms: int) -> None:
    """Once; the first time stays."""
    condition = and_(cloud_tokens.c.token_id == token_id, cloud_tokens.c.revoke_ms.is_(None))
    await tx.run(update(cloud_tokens).where(condition).values(revoke_ms=now_ms))


async def add_of_namespace(
    tx: Transaction,
    token_id: str,
    namespace_id: str,
    kind: str,
    now_ms: int,
    *,
    sha256: bytes | None = None,
    answers: bytes | None = None,
    expires_ms: int | None = None,
) -> None:
    await tx.run(
        insert(namespace_tokens),
        {
            "token_id": token_id,
            "namespace_id": namespace_id,
            "kind": kind,
            "sha256": sha256,
            "answers": answers,
            "create_ms": now_ms,
            "expires_ms": expires_ms,
        },
    )


async def environment_by_hash(tx: Transaction, sha256: bytes) -> Record | None:
    """Columns of `namespace_tokens` of an env_ token."""
    return await tx.first(_ENVIRONMENT_BY_HASH, {"sha256": sha256})


async def of_namespace(tx: Transaction, namespace_id: str) -> Sequence[Record]:
    """Columns of `namespace_tokens`, newest first."""
    return await tx.all(_OF_NAMESPACE, {"namespace_id": namespace_id})


async def of_namespaces(tx: Transaction, namespace_ids: Sequence[str]) -> Sequence[Record]:
    """Columns of `namespace_tokens` of several namespaces, newest first."""
    return await tx.all(_OF_NAMESPACES, {"ids": list(namespace_ids)})


async def revoke_of_namespace(tx: Transaction, token_id: str, now_ms: int) -> None:
    """Once; the first time stays."""
    condition = and_(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.revoke_ms.is_(None)
    )
    await tx.run(update(namespace_tokens).where(condition).values(revoke_ms=now_ms))


async def find_of_namespace(tx: Transaction, namespace_id: str, token_id: str) -> Record | None:
    """Columns of `namespace_tokens`."""
    statement = select(namespace_tokens).where(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.namespace_id == namespace_id
    )
    return await tx.first(statement)


async def cloud_by_id(tx: Transaction, token_id: str) -> Record | None:
    """Columns of `cloud_tokens`."""
    return await tx.first(select(cloud_tokens).where(cloud_tokens.c.token_id == token_id))
