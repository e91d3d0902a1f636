"""Tokens by their hashes and ids: `cloud_` ones, and those of a namespace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, case, delete, func, insert, or_, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import cloud_tokens, namespace_tokens

_BY_HASHES = select(cloud_tokens).where(
    cloud_tokens.c.sha256.in_(bindparam("hashes", expanding=True))
)
_ENVIRONMENT_BY_HASH = select(namespace_tokens).where(
    namespace_tokens.c.sha256 == bindparam("sha256")
)
_OF_NAMESPACE = (
    select(namespace_tokens)
    .where(namespace_tokens.c.namespace_id == bindparam("namespace_id"))
    .order_by(namespace_tokens.c.token_id.desc())
)
_NOW_MS: Any = bindparam("now_ms")
_IS_OVER = namespace_tokens.c.expires_ms <= _NOW_MS
_ENDED_MS = case(
    (namespace_tokens.c.revoke_ms.is_not(None), namespace_tokens.c.revoke_ms),
    (_IS_OVER, namespace_tokens.c.expires_ms),
)
_NEEDED = (
    select(
        namespace_tokens,
        func.row_number()
        .over(
            partition_by=(namespace_tokens.c.namespace_id, namespace_tokens.c.kind),
            order_by=(
                case((_ENDED_MS.is_(None), 0), else_=1),
                _ENDED_MS.desc(),
                namespace_tokens.c.token_id.desc(),
            ),
        )
        .label("place"),
    )
    .where(
        namespace_tokens.c.namespace_id.in_(bindparam("ids", expanding=True)),
        or_(
            namespace_tokens.c.kind == "env",
            and_(namespace_tokens.c.kind == "pub", namespace_tokens.c.revoke_ms.is_not(None)),
            and_(namespace_tokens.c.kind == "dev", namespace_tokens.c.expires_ms > _NOW_MS),
        ),
    )
    .subquery()
)
_FED = (
    select(_NEEDED)
    .where(or_(_NEEDED.c.kind != "env", _NEEDED.c.place <= bindparam("environment_max")))
    .order_by(_NEEDED.c.token_id.desc())
)
_COUNTS = select(
    func.count(case((_ENDED_MS.is_(None), 1))).label("good"),
    func.count(
        case(
            (namespace_tokens.c.kind == "pub", 1),
            (and_(namespace_tokens.c.kind == "dev", namespace_tokens.c.expires_ms > _NOW_MS), 1),
        )
    ).label("remembered"),
).where(
    namespace_tokens.c.namespace_id == bindparam("namespace_id"),
    namespace_tokens.c.kind == bindparam("kind"),
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


async def cloud_by_hashes(tx: Transaction, hashes: Collection[bytes]) -> dict[bytes, Record]:
    """Columns of `cloud_tokens` of those that are there."""
    rows = await tx.all(_BY_HASHES, {"hashes": list(hashes)})
    return {row.sha256: row for row in rows}


async def of_group(tx: Transaction, group_id: str, identity_id: str) -> Sequence[Record]:
    """Columns of `cloud_tokens`, newest first: of the group and its games, and those that the identity has for all its
    groups.
    """
    return await tx.all(_OF_GROUP, {"group_id": group_id, "identity_id": identity_id})


async def revoke_cloud(tx: Transaction, token_id: str, now_ms: int) -> None:
    """Once; the first time stays."""
    condition = and_(cloud_tokens.c.token_id == token_id, cloud_tokens.c.revoke_ms.is_(None))
    await tx.run(update(cloud_tokens).where(condition).values(revoke_ms=now_ms))


async def remove_cloud(tx: Transaction, token_id: str) -> None:
    """As if it had never been made."""
    await tx.run(delete(cloud_tokens).where(cloud_tokens.c.token_id == token_id))


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


async def fed(
    tx: Transaction, namespace_ids: Sequence[str], now_ms: int, environment_max: int
) -> Sequence[Record]:
    """Columns of `namespace_tokens` that the data plane has to know of, newest first: `env` that are good, and as many
    ended ones, those that ended last, as there is room for; `dev` that are not over; `pub` that are revoked.
    """
    values = {"ids": list(namespace_ids), "now_ms": now_ms, "environment_max": environment_max}
    return await tx.all(_FED, values)


class Counts(NamedTuple):
    """Tokens of one kind of a namespace."""

    good: int
    remembered: int
    """Those of which the data plane must know when they are revoked: all `pub`, and `dev` until they are over."""


async def counts(tx: Transaction, namespace_id: str, kind: str, now_ms: int) -> Counts:
    """`kind` env, pub or dev."""
    values = {"namespace_id": namespace_id, "kind": kind, "now_ms": now_ms}
    found = await tx.first(_COUNTS, values)
    return Counts(0, 0) if found is None else Counts(found.good, found.remembered)


async def revoke_of_namespace(tx: Transaction, token_id: str, now_ms: int) -> None:
    """Once; the first time stays."""
    condition = and_(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.revoke_ms.is_(None)
    )
    await tx.run(update(namespace_tokens).where(condition).values(revoke_ms=now_ms))


async def remove_of_namespace(tx: Transaction, token_id: str) -> None:
    """As if it had never been made."""
    await tx.run(delete(namespace_tokens).where(namespace_tokens.c.token_id == token_id))


async def find_of_namespace(tx: Transaction, namespace_id: str, token_id: str) -> Record | None:
    """Columns of `namespace_tokens`."""
    statement = select(namespace_tokens).where(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.namespace_id == namespace_id
    )
    return await tx.first(statement)


async def cloud_by_id(tx: Transaction, token_id: str) -> Record | None:
    """Columns of `cloud_tokens`."""
    return await tx.first(select(cloud_tokens).where(cloud_tokens.c.token_id == token_id))
