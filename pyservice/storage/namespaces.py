from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    String,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import (
    auth_users,
    domains,
    games,
    lobbies,
    namespaces,
    servers,
    version_history,
    versions,
)

_BY_TEXT = select(namespaces).where(
    namespaces.c.game_id == bindparam("game_id"),
    or_(namespaces.c.namespace_id == bindparam("text"), namespaces.c.name_id == bindparam("text")),
)
_BY_ID = select(namespaces).where(namespaces.c.namespace_id == bindparam("namespace_id"))
_LOCK = (
    select(namespaces.c.namespace_id)
    .where(namespaces.c.namespace_id == bindparam("namespace_id"))
    .with_for_update(key_share=True)
)
_OF_GAME = select(namespaces).where(namespaces.c.game_id == bindparam("game_id"))
_ALL_OF_GAME = _OF_GAME.order_by(namespaces.c.namespace_id)
_PAGED_OF_GAME = PagedList(_OF_GAME, namespaces.c.namespace_id, is_descending=False)
_HISTORY = PagedList(
    select(version_history).where(version_history.c.namespace_id == bindparam("namespace_id")),
    version_history.c.deploy_ms,
)
_HISTORY_BEFORE = _HISTORY.where(version_history.c.deploy_ms < bindparam("before_ms"))
_ADD = insert(namespaces)
_ADD_HISTORY = insert(version_history)
_NOW_MS: Any = bindparam("now_ms", type_=BigInteger)
_NEWEST = (
    select(func.max(version_history.c.deploy_ms))
    .where(version_history.c.namespace_id == bindparam("namespace"))
    .scalar_subquery()
)
_ADD_NEWEST = insert(version_history).from_select(
    ["entry_id", "namespace_id", "version_id", "deploy_ms"],
    select(
        bindparam("entry", type_=String),
        bindparam("namespace", type_=String),
        bindparam("version", type_=String),
        case((_NEWEST >= _NOW_MS, _NEWEST + 1), else_=_NOW_MS),
    ),
)
_SET_VERSION = (
    update(namespaces)
    .where(
        namespaces.c.namespace_id == bindparam("id"),
        namespaces.c.version_id != bindparam("version"),
    )
    .values(version_id=bindparam("version"), revision=namespaces.c.revision + 1)
)
_ENTRY = select(version_history.c.entry_id).where(
    version_history.c.namespace_id == bindparam("namespace_id"),
    version_history.c.entry_id == bindparam("entry_id"),
)
_DOMAINS = (
    select(domains)
    .where(domains.c.namespace_id == bindparam("namespace_id"))
    .order_by(domains.c.create_ms, domains.c.domain)
)
_USERS = (
    select(auth_users)
    .where(auth_users.c.namespace_id == bindparam("namespace_id"))
    .order_by(auth_users.c.user)
)
_IDS: Any = bindparam("ids", expanding=True)
_WITH_GAMES = (
    select(
        namespaces,
        games.c.name_id.label("game_name_id"),
        games.c.display_name.label("game_display_name"),
        games.c.group_id.label("game_group_id"),
    )
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(namespaces.c.namespace_id.in_(_IDS))
)
_DOMAINS_OF = (
    select(domains.c.namespace_id, domains.c.domain)
    .where(domains.c.namespace_id.in_(_IDS))
    .order_by(domains.c.create_ms, domains.c.domain)
)
_VERSIONS = (
    select(versions.c.version_id, versions.c.display_name, versions.c.config)
    .where(versions.c.version_id.in_(_IDS))
    .order_by(versions.c.version_id)
)
_EXISTING_VERSIONS = select(versions.c.version_id).where(versions.c.version_id.in_(_IDS))
_IDS_OF_GROUP = (
    select(namespaces.c.game_id, namespaces.c.namespace_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(games.c.group_id == bindparam("group_id"))
)
_IDS_OF_GAMES = select(namespaces.c.game_id, namespaces.c.namespace_id).where(
    namespaces.c.game_id.in_(_IDS)
)
_WITH_PATH = (
    select(
        namespaces,
        games.c.group_id,
        games.c.name_id.label("game_name_id"),
    )
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(
        or_(games.c.game_id == bindparam("game"), games.c.name_id == bindparam("game")),
        or_(
            namespaces.c.namespace_id == bindparam("text"),
            namespaces.c.name_id == bindparam("text"),
        ),
    )
)
_WITH_PATH_AND_VERSION = _WITH_PATH.add_columns(
    exists()
    .where(versions.c.version_id == bindparam("version_id"), versions.c.game_id == games.c.game_id)
    .label("has_version")
)
_LABELS_OF = [
    select(owner_id.label("owner_id"), games.c.name_id.label("game_name"), namespaces.c.name_id)
    .join(namespaces, namespaces.c.namespace_id == namespace_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(owner_id.in_(bindparam("ids", expanding=True)))
    for owner_id, namespace_id in (
        (lobbies.c.lobby_id, lobbies.c.namespace_id),
        (servers.c.server_id, servers.c.namespace_id),
    )
]
_REVISIONS = (
    select(namespaces.c.namespace_id, namespaces.c.revision, games.c.group_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .order_by(namespaces.c.namespace_id)
)


async def find(tx: Transaction, game_id: str, text: str) -> Record | None:
    """Returns the namespace's columns, or None. `text` is an ID or name_id within the game."""
    return await tx.first(_BY_TEXT, {"game_id": game_id, "text": text})


async def get(tx: Transaction, namespace_id: str) -> Record | None:
    return await tx.first(_BY_ID, {"namespace_id": namespace_id})


async def by_path(
    tx: Transaction, game: str, text: str, version_id: str | None = None
) -> Record | None:
    """Returns the namespace's columns with the game's `group_id` and `game_name_id`. `game` and
    `text` are IDs or name_ids.

    With `version_id`, adds `has_version`: whether the version belongs to the game.
    """
    if version_id is None:
        return await tx.first(_WITH_PATH, {"game": game, "text": text})
    values = {"game": game, "text": text, "version_id": version_id}
    return await tx.first(_WITH_PATH_AND_VERSION, values)


async def lock(tx: Transaction, namespace_id: str) -> None:
    await tx.first(_LOCK, {"namespace_id": namespace_id})


async def ids_of_group(tx: Transaction, group_id: str) -> Sequence[Record]:
    return await tx.all(_IDS_OF_GROUP, {"group_id": group_id})


async def ids_of_games(tx: Transaction, game_ids: Sequence[str]) -> Sequence[Record]:
    """Returns `game_id` and `namespace_id` of the games' namespaces."""
    return await tx.all(_IDS_OF_GAMES, {"ids": list(game_ids)})


async def of_game(tx: Transaction, game_id: str) -> Sequence[Record]:
    return await tx.all(_ALL_OF_GAME, {"game_id": game_id})


async def page_of_game(tx: Transaction, game_id: str, bounds: PageBounds) -> Page:
    """Returns a page of the game's namespaces, oldest first."""
    return await _PAGED_OF_GAME.read(tx, {"game_id": game_id}, bounds)


class NewNamespace(NamedTuple):
    """Namespace to add. `entry_id` is the ID of the first entry in its version history."""

    namespace_id: str
    name_id: str
    display_name: str
    entry_id: str


async def add(
    tx: Transaction,
    game_id: str,
    version_id: str,
    several: Sequence[NewNamespace],
    limits: tuple[int, int],
    now_ms: int,
) -> None:
    """Adds namespaces of one game. `limits` are their lobby_count_max and max_players.

    Raises Conflict if a name_id is taken.
    """
    await tx.run(
        _ADD,
        [
            {
                "namespace_id": new.namespace_id,
                "game_id": game_id,
                "name_id": new.name_id,
                "display_name": new.display_name,
                "create_ms": now_ms,
                "version_id": version_id,
                "lobby_count_max": limits[0],
                "max_players": limits[1],
                "enable_domain_public_auth": True,
                "cdn_auth_type": "none",
                "revision": 1,
            }
            for new in several
        ],
    )
    await tx.run(
        _ADD_HISTORY,
        [
            {
                "entry_id": new.entry_id,
                "namespace_id": new.namespace_id,
                "version_id": version_id,
                "deploy_ms": now_ms,
            }
            for new in several
        ],
    )


async def change(
    tx: Transaction, namespace_id: str, values: Mapping[str, Any], *, is_fed: bool = True
) -> None:
    """Sets columns of a namespace, and locks its row.

    With `is_fed`, also increments the revision, so that the data plane receives the change.
    """
    await tx.run(_changing(tuple(values), is_fed), {**values, "id": namespace_id})


async def set_version(tx: Transaction, namespace_id: str, version_id: str) -> bool:
    """Sets a namespace's version. Returns False and changes nothing if it is already set."""
    return bool(await tx.run(_SET_VERSION, {"id": namespace_id, "version": version_id}))


@cache
def _changing(names: tuple[str, ...], is_fed: bool) -> Update:
    statement = update(namespaces).where(namespaces.c.namespace_id == bindparam("id"))
    if is_fed:
        statement = statement.values(revision=namespaces.c.revision + 1)
    return statement.values({name: bindparam(name) for name in names})


async def labels_of_owners(tx: Transaction, owner_ids: Sequence[str]) -> dict[str, str]:
    """Returns `game/namespace` of each lobby and dynamic server that has a record."""
    labels = {}
    for statement in _LABELS_OF:
        for row in await tx.all(statement, {"ids": list(owner_ids)}):
            labels[row.owner_id] = f"{row.game_name}/{row.name_id}"
    return labels


# Version history --------------------------------------------------------------------------------


async def add_history(
    tx: Transaction, entry_id: str, namespace_id: str, version_id: str, now_ms: int
) -> None:
    """Adds an entry to the version history of a namespace.

    Its time is always later than that of the previous entry. A time therefore identifies one entry.
    """
    await tx.run(
        _ADD_NEWEST,
        {
            "entry": entry_id,
            "namespace": namespace_id,
            "version": version_id,
            "now_ms": now_ms,
        },
    )


async def has_entry(tx: Transaction, namespace_id: str, entry_id: str) -> bool:
    values = {"namespace_id": namespace_id, "entry_id": entry_id}
    return await tx.first(_ENTRY, values) is not None


async def newest_history(tx: Transaction, namespace_id: str, limit: int) -> Sequence[Record]:
    page = await _HISTORY.read(tx, {"namespace_id": namespace_id}, PageBounds(limit))
    return page.rows


async def history(
    tx: Transaction, namespace_id: str, before_ms: int | None, bounds: PageBounds
) -> Page:
    """Returns a page of the namespace's version history, newest first.

    If `before_ms` is set, the page has only entries before this time.
    """
    values: dict[str, Any] = {"namespace_id": namespace_id}
    if before_ms is None:
        return await _HISTORY.read(tx, values, bounds)
    return await _HISTORY_BEFORE.read(tx, {**values, "before_ms": before_ms}, bounds)


# Domains and users --------------------------------------------------------------------------------


async def domains_of(tx: Transaction, namespace_id: str) -> Sequence[Record]:
    return await tx.all(_DOMAINS, {"namespace_id": namespace_id})


async def owner_of_domain(tx: Transaction, domain: str) -> str | None:
    found = await tx.first(select(domains.c.namespace_id).where(domains.c.domain == domain))
    return None if found is None else found.namespace_id


async def count_domains(tx: Transaction, namespace_id: str) -> int:
    statement = select(func.count()).where(domains.c.namespace_id == namespace_id)
    found = await tx.first(statement)
    return 0 if found is None else int(found[0])


async def add_domain(tx: Transaction, namespace_id: str, domain: str, now_ms: int) -> None:
    """Adds a domain to a namespace. Raises Conflict if any namespace already has it."""
    values = {"domain": domain, "namespace_id": namespace_id, "create_ms": now_ms}
    await tx.run(insert(domains), values)


async def remove_domain(tx: Transaction, namespace_id: str, domain: str) -> bool:
    condition = and_(domains.c.domain == domain, domains.c.namespace_id == namespace_id)
    return await tx.run(delete(domains).where(condition)) > 0


async def users_of(tx: Transaction, namespace_id: str) -> Sequence[Record]:
    return await tx.all(_USERS, {"namespace_id": namespace_id})


async def count_users(tx: Transaction, namespace_id: str) -> int:
    statement = select(func.count()).where(auth_users.c.namespace_id == namespace_id)
    found = await tx.first(statement)
    return 0 if found is None else int(found[0])


async def change_password(
    tx: Transaction, namespace_id: str, user: str, password_hash: str
) -> bool:
    condition = and_(auth_users.c.namespace_id == namespace_id, auth_users.c.user == user)
    statement = update(auth_users).where(condition).values(password_hash=password_hash)
    return await tx.run(statement) > 0


async def add_user(tx: Transaction, namespace_id: str, user: str, password_hash: str) -> None:
    """Adds a login to a namespace. Raises Conflict if the user exists."""
    values = {"namespace_id": namespace_id, "user": user, "password_hash": password_hash}
    await tx.run(insert(auth_users), values)


async def remove_user(tx: Transaction, namespace_id: str, user: str) -> bool:
    condition = and_(auth_users.c.namespace_id == namespace_id, auth_users.c.user == user)
    return await tx.run(delete(auth_users).where(condition)) > 0


# Configuration feed -----------------------------------------------------------------------------


class FeedRecords(NamedTuple):
    namespaces: Sequence[Record]
    """Rows also have `game_name_id` and `game_display_name`."""
    domains: Sequence[Record]


async def feed_records(tx: Transaction, namespace_ids: Sequence[str]) -> FeedRecords:
    ids = {"ids": list(namespace_ids)}
    return FeedRecords(await tx.all(_WITH_GAMES, ids), await tx.all(_DOMAINS_OF, ids))


async def versions_by_id(tx: Transaction, version_ids: Sequence[str]) -> Sequence[Record]:
    """Returns `version_id`, `display_name` and `config` of these versions, oldest first."""
    return await tx.all(_VERSIONS, {"ids": list(version_ids)}) if version_ids else ()


async def existing_versions(tx: Transaction, version_ids: Sequence[str]) -> set[str]:
    """Returns the ids that are versions of any game."""
    rows = await tx.all(_EXISTING_VERSIONS, {"ids": list(version_ids)})
    return {row.version_id for row in rows}


async def revisions(tx: Transaction) -> Sequence[Record]:
    """Returns `namespace_id`, `revision` and the game's `group_id` of all namespaces."""
    return await tx.all(_REVISIONS)


async def restore_version(
    tx: Transaction, namespace_id: str, refused_version_id: str, version_id: str, entry: str
) -> bool:
    """Restores the version `version_id` after the data plane refused a newer version.

    Changes nothing if the refused version is no longer current. Returns whether it was current.
    """
    statement = (
        update(namespaces)
        .where(
            namespaces.c.namespace_id == namespace_id,
            namespaces.c.version_id == refused_version_id,
        )
        .values(version_id=version_id, revision=namespaces.c.revision + 1)
    )
    if not await tx.run(statement):
        return False
    await tx.run(delete(version_history).where(version_history.c.entry_id == entry))
    return True


async def raise_revision(tx: Transaction, namespace_id: str, above: int) -> None:
    """Raises the namespace's stored revision to more than `above`, the revision in the data plane.

    After the restore of a backup, the stored revision can be too old.
    """
    statement = (
        update(namespaces)
        .where(namespaces.c.namespace_id == namespace_id, namespaces.c.revision <= above)
        .values(revision=above + 1)
    )
    await tx.run(statement)
