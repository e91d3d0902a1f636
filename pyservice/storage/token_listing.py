"""Tokens of all groups, with their owners, for the operator."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import Select, and_, or_, select

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import (
    cloud_tokens,
    games,
    identities,
    members,
    namespace_tokens,
    namespaces,
)

PAGE: Final = 1_000


class TokenFilter(NamedTuple):
    """Conditions of a list. A condition that is None holds for every token."""

    identity_id: str | None = None
    group_id: str | None = None
    kind: str | None = None
    valid_at_ms: int | None = None
    """Only tokens that are neither revoked nor expired at this time."""
    before_token_id: str | None = None


_CLOUD: Final = (
    select(
        cloud_tokens.c.token_id,
        cloud_tokens.c.identity_id,
        identities.c.display_name,
        identities.c.disable_ms,
        cloud_tokens.c.group_id,
        cloud_tokens.c.game_id,
        cloud_tokens.c.creator_token_id,
        cloud_tokens.c.create_ms,
        cloud_tokens.c.expires_ms,
        cloud_tokens.c.revoke_ms,
        members.c.identity_id.label("member_id"),
    )
    .select_from(cloud_tokens)
    .join(identities, identities.c.identity_id == cloud_tokens.c.identity_id)
    .outerjoin(
        members,
        and_(
            members.c.group_id == cloud_tokens.c.group_id,
            members.c.identity_id == cloud_tokens.c.identity_id,
        ),
    )
)
_OF_NAMESPACES: Final = (
    select(
        namespace_tokens.c.token_id,
        namespace_tokens.c.kind,
        cloud_tokens.c.identity_id,
        identities.c.display_name,
        games.c.group_id,
        games.c.game_id,
        games.c.name_id.label("game_name"),
        namespaces.c.name_id.label("namespace_name"),
        namespace_tokens.c.creator_token_id,
        namespace_tokens.c.create_ms,
        namespace_tokens.c.expires_ms,
        namespace_tokens.c.revoke_ms,
    )
    .select_from(namespace_tokens)
    .join(namespaces, namespaces.c.namespace_id == namespace_tokens.c.namespace_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .outerjoin(cloud_tokens, cloud_tokens.c.token_id == namespace_tokens.c.creator_token_id)
    .outerjoin(identities, identities.c.identity_id == cloud_tokens.c.identity_id)
)


async def cloud_page(tx: Transaction, wanted: TokenFilter) -> list[Record]:
    """Returns up to PAGE `cloud_` tokens, newest first.

    `member_id` is None for a token of a group that its identity has left.
    """
    statement = _CLOUD
    if wanted.identity_id is not None:
        statement = statement.where(cloud_tokens.c.identity_id == wanted.identity_id)
    if wanted.group_id is not None:
        of_group = select(members.c.identity_id).where(members.c.group_id == wanted.group_id)
        statement = statement.where(
            or_(
                cloud_tokens.c.group_id == wanted.group_id,
                and_(cloud_tokens.c.group_id.is_(None), cloud_tokens.c.identity_id.in_(of_group)),
            )
        )
    return list(await tx.all(_page(statement, cloud_tokens, wanted)))


async def namespace_page(tx: Transaction, wanted: TokenFilter) -> list[Record]:
    """Returns up to PAGE tokens of namespaces, newest first."""
    statement = _OF_NAMESPACES
    if wanted.identity_id is not None:
        statement = statement.where(cloud_tokens.c.identity_id == wanted.identity_id)
    if wanted.group_id is not None:
        statement = statement.where(games.c.group_id == wanted.group_id)
    if wanted.kind is not None:
        statement = statement.where(namespace_tokens.c.kind == wanted.kind)
    return list(await tx.all(_page(statement, namespace_tokens, wanted)))


def _page(statement: Select[Any], table: Any, wanted: TokenFilter) -> Select[Any]:
    if wanted.valid_at_ms is not None:
        statement = statement.where(
            table.c.revoke_ms.is_(None),
            or_(table.c.expires_ms.is_(None), table.c.expires_ms > wanted.valid_at_ms),
        )
    if wanted.before_token_id is not None:
        statement = statement.where(table.c.token_id < wanted.before_token_id)
    return statement.order_by(table.c.token_id.desc()).limit(PAGE)
