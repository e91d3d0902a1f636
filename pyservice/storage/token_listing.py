"""Tokens of all groups, with their owners, for the operator."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Select, and_, or_, select

from pyservice.storage import tokens
from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import PAGE_LIMIT
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

    def conditions(table: FromClause) -> list[ColumnElement[bool]]:
        found = _conditions(table, wanted)
        if wanted.identity_id is not None:
            found.append(table.c.identity_id == wanted.identity_id)
        return found

    values: dict[str, Any] = {"page_limit": PAGE}
    if wanted.group_id is None:
        page = select(cloud_tokens).where(*conditions(cloud_tokens))
        page = page.order_by(cloud_tokens.c.token_id.desc()).limit(PAGE_LIMIT)
    else:
        is_following = wanted.before_token_id is not None
        page = tokens.newest_of_group(conditions, is_following=is_following)
        values |= {"group_id": wanted.group_id, "page_after_0": wanted.before_token_id}
    return list(await tx.all(_with_owners(page), values))


def _with_owners(page: Select[Any]) -> Select[Any]:
    token = page.subquery("token").c
    return (
        select(
            token.token_id,
            token.identity_id,
            identities.c.display_name,
            identities.c.disable_ms,
            token.group_id,
            token.game_id,
            token.creator_token_id,
            token.create_ms,
            token.expires_ms,
            token.revoke_ms,
            members.c.identity_id.label("member_id"),
        )
        .join(identities, identities.c.identity_id == token.identity_id)
        .outerjoin(
            members,
            and_(members.c.group_id == token.group_id, members.c.identity_id == token.identity_id),
        )
        .order_by(token.token_id.desc())
    )


async def namespace_page(tx: Transaction, wanted: TokenFilter) -> list[Record]:
    """Returns up to PAGE tokens of namespaces, newest first."""
    statement = _OF_NAMESPACES
    if wanted.identity_id is not None:
        statement = statement.where(cloud_tokens.c.identity_id == wanted.identity_id)
    if wanted.group_id is not None:
        statement = statement.where(games.c.group_id == wanted.group_id)
    if wanted.kind is not None:
        statement = statement.where(namespace_tokens.c.kind == wanted.kind)
    statement = statement.where(*_conditions(namespace_tokens, wanted))
    statement = statement.order_by(namespace_tokens.c.token_id.desc()).limit(PAGE)
    return list(await tx.all(statement))


def _conditions(table: FromClause, wanted: TokenFilter) -> list[ColumnElement[bool]]:
    """Returns the conditions on tokens of both tables."""
    conditions: list[ColumnElement[bool]] = []
    if wanted.valid_at_ms is not None:
        is_unexpired = or_(table.c.expires_ms.is_(None), table.c.expires_ms > wanted.valid_at_ms)
        conditions += [table.c.revoke_ms.is_(None), is_unexpired]
    if wanted.before_token_id is not None:
        conditions.append(table.c.token_id < wanted.before_token_id)
    return conditions
