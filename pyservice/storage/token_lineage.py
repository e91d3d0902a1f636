"""Tokens that another token created: `cloud_` tokens end with their creator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Select, bindparam, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import cloud_tokens, games, namespace_tokens, namespaces

_LOCK: Final = (
    select(cloud_tokens)
    .where(cloud_tokens.c.token_id == bindparam("token_id"))
    .with_for_update(read=True)
)


def _descendants() -> Select[tuple[str]]:
    """Selects the ids of a cloud token and of all cloud tokens below it."""
    root = select(cloud_tokens.c.token_id).where(cloud_tokens.c.token_id == bindparam("root_id"))
    # SQLite reports no number of changed rows for a statement that begins with the CTE.
    tree = root.cte("tree", recursive=True, nesting=True)
    children = select(cloud_tokens.c.token_id).join(
        tree, cloud_tokens.c.creator_token_id == tree.c.token_id
    )
    return select(tree.union(children).c.token_id)


_DESCENDANTS: Final = _descendants()
_REVOKE_CLOUD: Final = (
    update(cloud_tokens)
    .where(cloud_tokens.c.token_id.in_(_descendants()), cloud_tokens.c.revoke_ms.is_(None))
    .values(revoke_ms=bindparam("now_ms"))
)
_CREATED_NAMESPACES: Final = (
    select(namespaces.c.namespace_id, games.c.group_id)
    .select_from(namespaces.join(games, games.c.game_id == namespaces.c.game_id))
    .where(
        namespaces.c.namespace_id.in_(
            select(namespace_tokens.c.namespace_id).where(
                namespace_tokens.c.creator_token_id.in_(_descendants())
            )
        )
    )
    .order_by(namespaces.c.namespace_id)
)
_REVOKE_CREATED: Final = (
    update(namespace_tokens)
    .where(
        namespace_tokens.c.creator_token_id.in_(_descendants()),
        namespace_tokens.c.namespace_id.in_(bindparam("namespace_ids", expanding=True)),
        namespace_tokens.c.revoke_ms.is_(None),
    )
    .values(revoke_ms=bindparam("now_ms"))
)


async def lock_creator(tx: Transaction, token_id: str) -> Record | None:
    """Returns a cloud token. No concurrent transaction can revoke the token before `tx` ends."""
    return await tx.first(_LOCK, {"token_id": token_id})


async def revoke_with_descendants(tx: Transaction, token_id: str, now_ms: int) -> Sequence[str]:
    """Revokes a cloud token and all cloud tokens below it. Returns their ids."""
    values = {"root_id": token_id, "now_ms": now_ms}
    # A token that a concurrent transaction has created becomes visible only after its creator's
    # lock is free, so a further pass finds it.
    while await tx.run(_REVOKE_CLOUD, values) > 0:
        pass
    return [row.token_id for row in await tx.all(_DESCENDANTS, {"root_id": token_id})]


async def namespaces_of_created(
    tx: Transaction, token_id: str, group_ids: Collection[str] | None
) -> Sequence[Record]:
    """Returns the namespaces in which a cloud token, or one below it, created tokens.

    Only namespaces of `group_ids`, or of all groups for None. The rows have `namespace_id` and
    `group_id`.
    """
    rows = await tx.all(_CREATED_NAMESPACES, {"root_id": token_id})
    return rows if group_ids is None else [row for row in rows if row.group_id in group_ids]


async def revoke_created(
    tx: Transaction, token_id: str, namespace_ids: Sequence[str], now_ms: int
) -> None:
    """Revokes the tokens of namespaces that a cloud token, or one below it, created."""
    values = {"root_id": token_id, "namespace_ids": list(namespace_ids), "now_ms": now_ms}
    await tx.run(_REVOKE_CREATED, values)
