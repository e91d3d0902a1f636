from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from pyservice.storage.database import (
    Database,
    Record,
    Transaction,
    batch_deletion,
    delete_in_batches,
    next_number,
)
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.storage.list_pages import (
    PAGE_LIMIT,
    ConditionByDatabase,
    MergedList,
    Page,
    PageBounds,
    PagedList,
    RowConditions,
)
from pyservice.storage.tables import (
    cloud_tokens,
    device_links,
    games,
    identities,
    members,
    namespace_tokens,
    namespaces,
)

_BY_HASHES = (
    select(cloud_tokens, identities.c.disable_ms, identities.c.display_name)
    .join(identities, identities.c.identity_id == cloud_tokens.c.identity_id)
    .where(cloud_tokens.c.sha256.in_(bindparam("hashes", expanding=True)))
)
_WITH_GROUP = (
    select(namespace_tokens, games.c.group_id, games.c.game_id)
    .join(namespaces, namespaces.c.namespace_id == namespace_tokens.c.namespace_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
)
_SERVICE_TOKEN_BY_HASH = _WITH_GROUP.add_columns(
    games.c.name_id.label("game_name"), namespaces.c.name_id.label("namespace_name")
).where(namespace_tokens.c.sha256 == bindparam("sha256"))
_CREATORS = cloud_tokens.alias("creators")
_OF_NAMESPACE = PagedList(
    select(namespace_tokens, _CREATORS.c.identity_id.label("creator_identity_id"))
    .outerjoin_from(
        namespace_tokens,
        _CREATORS,
        _CREATORS.c.token_id == namespace_tokens.c.creator_token_id,
    )
    .where(namespace_tokens.c.namespace_id == bindparam("namespace_id")),
    namespace_tokens.c.token_id,
)
_ONE_OF_NAMESPACES = _WITH_GROUP.where(namespace_tokens.c.token_id == bindparam("token_id"))
_NOW_MS: Any = bindparam("now_ms")
_IS_OVER = namespace_tokens.c.expires_ms <= _NOW_MS
_ENDED_MS = case(
    (namespace_tokens.c.revoke_ms.is_not(None), namespace_tokens.c.revoke_ms),
    (_IS_OVER, namespace_tokens.c.expires_ms),
)
_TO_FEED_RANKED = (
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
_TO_FEED = (
    select(_TO_FEED_RANKED)
    .where(
        or_(
            _TO_FEED_RANKED.c.kind != "env",
            _TO_FEED_RANKED.c.place <= bindparam("service_tokens_max"),
        )
    )
    .order_by(_TO_FEED_RANKED.c.token_id.desc())
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
_ACTS_ON_GROUP = or_(
    cloud_tokens.c.group_id == bindparam("group_id"),
    and_(
        cloud_tokens.c.group_id.is_(None),
        cloud_tokens.c.identity_id.in_(
            select(members.c.identity_id).where(members.c.group_id == bindparam("group_id"))
        ),
    ),
)
_ONE_OF_GROUP = select(cloud_tokens).where(
    _ACTS_ON_GROUP, cloud_tokens.c.token_id == bindparam("token_id")
)


def newest_of_group(conditions: RowConditions, *, is_following: bool) -> Select[Any]:
    """Selects the newest PAGE_LIMIT tokens that can act on the group and meet the conditions.

    A following page has only tokens before the parameter `page_after_0`. The other parameters are
    `group_id`, `page_limit`, and those of the conditions. The statement reads at most PAGE_LIMIT
    matching tokens of the group and of each member.
    """
    group_id: BindParameter[str] = bindparam("group_id")
    of_group = _newest(cloud_tokens, cloud_tokens.c.group_id, group_id, is_following=is_following)
    own = cloud_tokens.alias("own")
    of_member = _newest(own, own.c.identity_id, members.c.identity_id, is_following=is_following)
    of_member = of_member.where(own.c.group_id.is_(None), *conditions(own))
    ids = of_member.with_only_columns(own.c.token_id).correlate(members).scalar_subquery()
    is_newest_of_member = ConditionByDatabase(
        sqlite=cloud_tokens.c.token_id.in_(ids),
        # PostgreSQL would compare each token with the `IN` of each member.
        postgresql=cloud_tokens.c.token_id == func.any(func.array(ids)),
    )
    of_members = (
        select(cloud_tokens)
        .join_from(members, cloud_tokens, is_newest_of_member)
        .where(members.c.group_id == group_id)
    )
    parts = (of_group.where(*conditions(cloud_tokens)), of_members)
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery("merged")
    return select(merged).order_by(merged.c.token_id.desc()).limit(PAGE_LIMIT)


def _newest(table: Any, column: Any, owner: Any, *, is_following: bool) -> Select[Any]:
    """Selects the newest PAGE_LIMIT tokens with this owner in the column, from an index on both."""
    key = tuple_(column, table.c.token_id)
    before_id: BindParameter[str] = bindparam("page_after_0")
    is_before = (table.c.token_id < before_id,) if is_following else ()
    has_owner = ConditionByDatabase(
        sqlite=and_(column == owner, *is_before),
        # With an equality, PostgreSQL may read the tokens of all owners from the primary key,
        # which also has their order.
        postgresql=and_(
            column >= owner, key < tuple_(owner, before_id) if is_following else column <= owner
        ),
    )
    newest = (column.desc(), table.c.token_id.desc())
    return select(table).where(has_owner).order_by(*newest).limit(PAGE_LIMIT)


_OF_GROUP = MergedList(
    newest_of_group(lambda table: (), is_following=False),
    newest_of_group(lambda table: (), is_following=True),
    cloud_tokens.c.token_id,
)
_LINK_NUMBER = device_links.c.uncompleted_number
_ADD_LINK = insert(device_links).values(uncompleted_number=next_number(_LINK_NUMBER))
_GREATEST_LINK_NUMBER = select(func.max(_LINK_NUMBER).label("number"))
_REMOVE_UNCOMPLETED_LINKS = batch_deletion(_LINK_NUMBER)
_ERASE_LINK_SECRETS = (
    update(device_links)
    .where(
        device_links.c.token_secret.is_not(None), device_links.c.expires_ms <= bindparam("now_ms")
    )
    .values(token_secret=None)
)
_REMOVE_EXPIRED_LINKS = batch_deletion(device_links.c.expires_ms)


class NewCloudToken(NamedTuple):
    token_id: str
    sha256: bytes
    create_ms: int
    identity_id: str
    group_id: str | None = None
    game_id: str | None = None
    expires_ms: int | None = None
    creator_token_id: str | None = None


async def add_cloud(tx: Transaction, new: NewCloudToken) -> None:
    await tx.run(insert(cloud_tokens), new._asdict())


async def cloud_by_hashes(tx: Transaction, hashes: Collection[bytes]) -> dict[bytes, Record]:
    rows = await tx.all(_BY_HASHES, {"hashes": list(hashes)})
    return {row.sha256: row for row in rows}


async def of_group(tx: Transaction, group_id: str, bounds: PageBounds) -> Page:
    """Returns a page of the cloud tokens that can act on the group, newest first.

    These are the tokens of the group and its games, and the tokens of members for all groups.
    """
    return await _OF_GROUP.read(tx, {"group_id": group_id}, bounds)


async def find_of_group(tx: Transaction, group_id: str, token_id: str) -> Record | None:
    return await tx.first(_ONE_OF_GROUP, {"group_id": group_id, "token_id": token_id})


async def remove_cloud(tx: Transaction, token_id: str) -> None:
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
    creator_token_id: str | None = None,
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
            "creator_token_id": creator_token_id,
        },
    )


async def service_token_by_hash(tx: Transaction, sha256: bytes) -> Record | None:
    return await tx.first(_SERVICE_TOKEN_BY_HASH, {"sha256": sha256})


async def of_namespace(tx: Transaction, namespace_id: str, bounds: PageBounds) -> Page:
    """Returns a page of the namespace's tokens, newest first."""
    return await _OF_NAMESPACE.read(tx, {"namespace_id": namespace_id}, bounds)


async def tokens_to_feed(
    tx: Transaction, namespace_ids: Sequence[str], now_ms: int, service_tokens_max: int
) -> Sequence[Record]:
    """Returns the tokens that the data plane needs, newest first.

    These are service tokens (`env`), unexpired development tokens (`dev`), and revoked game client
    tokens (`pub`). Each namespace has at most `service_tokens_max` service tokens in the result:
    first the valid ones, then the ones that expired or were revoked last.
    """
    values = {
        "ids": list(namespace_ids),
        "now_ms": now_ms,
        "service_tokens_max": service_tokens_max,
    }
    return await tx.all(_TO_FEED, values)


class TokenCounts(NamedTuple):
    good: int
    remembered: int
    """Number of tokens that the data plane would store after a revocation: all `pub`, and unexpired
    `dev`.
    """


async def counts(tx: Transaction, namespace_id: str, kind: str, now_ms: int) -> TokenCounts:
    """Counts a namespace's tokens of one kind: `env`, `pub` or `dev`."""
    values = {"namespace_id": namespace_id, "kind": kind, "now_ms": now_ms}
    found = await tx.first(_COUNTS, values)
    return TokenCounts(0, 0) if found is None else TokenCounts(found.good, found.remembered)


async def newest_public(tx: Transaction, namespace_id: str) -> str | None:
    """Returns the id of the newest public token that is not revoked."""
    column = namespace_tokens.c
    statement = (
        select(column.token_id)
        .where(
            column.namespace_id == namespace_id, column.kind == "pub", column.revoke_ms.is_(None)
        )
        .order_by(column.create_ms.desc(), column.token_id.desc())
        .limit(1)
    )
    row = await tx.first(statement)
    return None if row is None else str(row.token_id)


async def revoke_of_namespace(tx: Transaction, token_id: str, now_ms: int) -> None:
    """Revokes a token of a namespace, unless it is already revoked."""
    condition = and_(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.revoke_ms.is_(None)
    )
    await tx.run(update(namespace_tokens).where(condition).values(revoke_ms=now_ms))


async def remove_of_namespace(tx: Transaction, token_id: str) -> None:
    await tx.run(delete(namespace_tokens).where(namespace_tokens.c.token_id == token_id))


async def find_of_namespace(tx: Transaction, namespace_id: str, token_id: str) -> Record | None:
    statement = select(namespace_tokens).where(
        namespace_tokens.c.token_id == token_id, namespace_tokens.c.namespace_id == namespace_id
    )
    return await tx.first(statement)


async def of_namespace_by_id(tx: Transaction, token_id: str) -> Record | None:
    """Returns a token of a namespace with `group_id` and `game_id`."""
    return await tx.first(_ONE_OF_NAMESPACES, {"token_id": token_id})


async def cloud_by_id(tx: Transaction, token_id: str) -> Record | None:
    return await tx.first(select(cloud_tokens).where(cloud_tokens.c.token_id == token_id))


async def add_device_link(
    tx: Transaction, device_link_id: str, now_ms: int, expires_ms: int, key_number: int
) -> None:
    await tx.run(
        _ADD_LINK,
        {
            "device_link_id": device_link_id,
            "create_ms": now_ms,
            "expires_ms": expires_ms,
            "key_number": key_number,
        },
    )


async def find_device_link(tx: Transaction, device_link_id: str) -> Record | None:
    statement = select(device_links).where(device_links.c.device_link_id == device_link_id)
    return await tx.first(statement)


async def complete_device_link(
    tx: Transaction, device_link_id: str, game_id: str, token_id: str, secret: bytes, now_ms: int
) -> bool:
    """Completes a device link with a game and a token. Returns False if it is already complete."""
    statement = (
        update(device_links)
        .where(
            device_links.c.device_link_id == device_link_id, device_links.c.complete_ms.is_(None)
        )
        .values(
            complete_ms=now_ms,
            game_id=game_id,
            token_id=token_id,
            token_secret=secret,
            uncompleted_number=None,
        )
    )
    return await tx.run(statement) > 0


async def trim_uncompleted_device_links(
    database: Database, kept_max: int, most: int | None = None
) -> int:
    """Removes uncompleted device links except the newest `kept_max` ones. Returns the number of
    removed links.
    """
    async with database.read() as tx:
        greatest = await tx.first(_GREATEST_LINK_NUMBER)
    if greatest is None or greatest.number is None:
        return 0
    return await delete_in_batches(
        database, _REMOVE_UNCOMPLETED_LINKS, greatest.number - kept_max, most
    )


async def erase_device_link_secrets(database: Database, now_ms: int) -> int:
    """Erases the token secrets of expired device links. Returns the number of changed links.

    Raises OVERLOADED after too many conflicts with other transactions.
    """

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(_ERASE_LINK_SECRETS, {"now_ms": now_ms})

    # A concurrent removal can lock rows in another order.
    return await retry_on_conflict(once)


async def remove_device_links_before(
    database: Database, before_ms: int, most: int | None = None
) -> int:
    """Removes device links that expired before `before_ms`, and returns their number."""
    return await delete_in_batches(database, _REMOVE_EXPIRED_LINKS, before_ms - 1, most)
