"""Users of a record that may be deleted, and records that await the removal of their contents."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import (
    ColumnElement,
    Select,
    Update,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import (
    auth_users,
    build_tags,
    builds,
    cloud_tokens,
    device_links,
    domains,
    games,
    groups,
    lobbies,
    lobby_runs,
    namespace_tokens,
    namespaces,
    removals,
    server_host_ports,
    server_tags,
    servers,
    sites,
    upload_files,
    uploads,
    version_builds,
    version_history,
    versions,
)
from pyservice.storage.uploads import ABANDONED

_NAMESPACES_OF_VERSION = (
    select(namespaces.c.namespace_id.label("id"))
    .where(namespaces.c.version_id == bindparam("id"))
    .order_by(namespaces.c.namespace_id)
)
_LOBBIES_OF_VERSION = (
    select(lobbies.c.lobby_id.label("id"))
    .where(lobbies.c.stop_ms.is_(None), lobbies.c.version_id == bindparam("id"))
    .order_by(lobbies.c.lobby_id)
)
_VERSIONS_OF_BUILD = (
    select(version_builds.c.version_id.label("id"))
    .where(version_builds.c.build_id == bindparam("id"))
    .order_by(version_builds.c.version_id)
)
_SERVERS_OF_BUILD = (
    select(servers.c.server_id.label("id"))
    .where(servers.c.build_id == bindparam("id"), servers.c.destroy_ms.is_(None))
    .order_by(servers.c.server_id)
)
_VERSIONS_OF_SITE = (
    select(versions.c.version_id.label("id"))
    .where(versions.c.game_id == bindparam("game_id"), versions.c.site_id == bindparam("id"))
    .order_by(versions.c.version_id)
)
_LIVE_LOBBIES = (
    select(lobbies.c.lobby_id.label("id"))
    .where(lobbies.c.stop_ms.is_(None), lobbies.c.namespace_id == bindparam("id"))
    .order_by(lobbies.c.lobby_id)
)
_LIVE_SERVERS = (
    select(servers.c.server_id.label("id"))
    .where(servers.c.namespace_id == bindparam("id"), servers.c.destroy_ms.is_(None))
    .order_by(servers.c.server_id)
)
_ENDED_LOBBIES = (
    select(lobbies.c.lobby_id.label("id"))
    .where(lobbies.c.stop_ms.is_not(None), lobbies.c.namespace_id == bindparam("id"))
    .limit(bindparam("limit"))
)
_BYTES = func.coalesce(
    func.sum(func.length(versions.c.config) + func.length(versions.c.config_json)), 0
)


def _subtract_bytes(which: ColumnElement[bool]) -> Update:
    """Subtracts the bytes of versions from the use of their group."""
    size = select(_BYTES).where(which).scalar_subquery()
    group_id = (
        select(games.c.group_id)
        .join(versions, versions.c.game_id == games.c.game_id)
        .where(which)
        .limit(1)
        .scalar_subquery()
    )
    return (
        update(groups)
        .where(groups.c.group_id == group_id)
        .values(version_bytes=groups.c.version_bytes - size)
    )


_SUBTRACT_VERSION = _subtract_bytes(versions.c.version_id == bindparam("id"))
_SUBTRACT_VERSIONS = _subtract_bytes(versions.c.game_id == bindparam("id"))
_SUBTRACT_GAME = (
    update(groups)
    .where(
        groups.c.group_id
        == select(games.c.group_id).where(games.c.game_id == bindparam("id")).scalar_subquery()
    )
    .values(game_count=groups.c.game_count - 1)
)
_REMOVALS = (
    select(removals)
    .where(removals.c.subject_id > bindparam("after"))
    .order_by(removals.c.subject_id)
    .limit(bindparam("limit"))
)
_ABANDONED = (
    select(uploads.c.upload_id)
    .where(uploads.c.kind == ABANDONED, uploads.c.upload_id > bindparam("after"))
    .order_by(uploads.c.upload_id)
    .limit(bindparam("limit"))
)


async def _ids(tx: Transaction, statement: Select[tuple[str]], **values: str) -> list[str]:
    return [row.id for row in await tx.all(statement, values)]


async def namespaces_of_version(tx: Transaction, version_id: str) -> list[str]:
    return await _ids(tx, _NAMESPACES_OF_VERSION, id=version_id)


async def namespaces_that_ran(
    tx: Transaction, namespace_ids: Collection[str], version_id: str
) -> list[str]:
    """Returns those of the namespaces that have the version in their version history."""
    history = version_history.c
    statement = select(history.namespace_id).distinct()
    rows = await tx.all(
        statement.where(
            history.namespace_id.in_(list(namespace_ids)), history.version_id == version_id
        )
    )
    return [row.namespace_id for row in rows]


async def lobbies_of_version(tx: Transaction, version_id: str) -> list[str]:
    """Returns the lobbies of a version that have not ended."""
    return await _ids(tx, _LOBBIES_OF_VERSION, id=version_id)


async def versions_of_build(tx: Transaction, build_id: str) -> list[str]:
    return await _ids(tx, _VERSIONS_OF_BUILD, id=build_id)


async def servers_of_build(tx: Transaction, build_id: str) -> list[str]:
    """Returns the servers of a build that have not ended."""
    return await _ids(tx, _SERVERS_OF_BUILD, id=build_id)


async def versions_of_site(tx: Transaction, game_id: str, site_id: str) -> list[str]:
    return await _ids(tx, _VERSIONS_OF_SITE, game_id=game_id, id=site_id)


async def remove_version(tx: Transaction, version_id: str) -> None:
    """Removes a version. Raises Conflict if a concurrent transaction made a namespace run it."""
    await tx.run(_SUBTRACT_VERSION, {"id": version_id})
    await tx.run(delete(version_builds).where(version_builds.c.version_id == version_id))
    await tx.run(delete(versions).where(versions.c.version_id == version_id))


async def abandon_pictures(tx: Transaction, game_id: str, kind: str) -> int:
    """Abandons the complete banners or logos of a game, and clears the shown one.

    `kind` is `banner` or `logo`. Returns the number of abandoned uploads.
    """
    shown = {f"{kind}_upload_id": None, f"{kind}_kind": None}
    await tx.run(update(games).where(games.c.game_id == game_id).values(shown))
    complete = update(uploads).where(
        uploads.c.game_id == game_id, uploads.c.kind == kind, uploads.c.complete_ms.is_not(None)
    )
    return await tx.run(complete.values(kind=ABANDONED))


async def abandoned_uploads(tx: Transaction, after: str, limit: int) -> Sequence[str]:
    """Returns the sorted ids of abandoned uploads, starting after the id `after`."""
    rows = await tx.all(_ABANDONED, {"after": after, "limit": limit})
    return [row.upload_id for row in rows]


async def live_lobbies(tx: Transaction, namespace_id: str) -> list[str]:
    return await _ids(tx, _LIVE_LOBBIES, id=namespace_id)


async def live_servers(tx: Transaction, namespace_id: str) -> list[str]:
    return await _ids(tx, _LIVE_SERVERS, id=namespace_id)


async def ended_lobbies(tx: Transaction, namespace_id: str, limit: int) -> list[str]:
    rows = await tx.all(_ENDED_LOBBIES, {"id": namespace_id, "limit": limit})
    return [row.id for row in rows]


async def remove_lobbies(tx: Transaction, lobby_ids: Sequence[str]) -> None:
    for table in (lobby_runs, lobbies):
        await tx.run(delete(table).where(table.c.lobby_id.in_(list(lobby_ids))))


async def remove_namespace(tx: Transaction, namespace_id: str, revision: int) -> None:
    """Removes a namespace with its servers, tokens and settings, and adds their removals.

    `revision` must be greater than each revision of the namespace. Raises Conflict if a concurrent
    transaction added a record to the namespace.
    """
    of_namespace = select(servers.c.server_id).where(servers.c.namespace_id == namespace_id)
    runs = select(servers.c.server_id, literal_column("'run'"), literal_column("0")).where(
        servers.c.namespace_id == namespace_id
    )
    await tx.run(insert(removals).from_select(["subject_id", "kind", "revision"], runs))
    for child in (server_tags, server_host_ports):
        await tx.run(delete(child).where(child.c.server_id.in_(of_namespace)))
    for table in (servers, namespace_tokens, domains, auth_users, version_history, namespaces):
        await tx.run(delete(table).where(table.c.namespace_id == namespace_id))
    values = {"subject_id": namespace_id, "kind": "namespace", "revision": revision}
    await tx.run(insert(removals), values)


async def remove_game(tx: Transaction, game_id: str) -> None:
    """Removes a game without namespaces, with its content, and adds the removals of its objects.

    Raises Conflict if a concurrent transaction added a record to the game.
    """
    objects = select(uploads.c.upload_id, literal_column("'upload'"), literal_column("0")).where(
        uploads.c.game_id == game_id
    )
    await tx.run(insert(removals).from_select(["subject_id", "kind", "revision"], objects))
    for subtraction in (_SUBTRACT_VERSIONS, _SUBTRACT_GAME):
        await tx.run(subtraction, {"id": game_id})
    of_versions = select(versions.c.version_id).where(versions.c.game_id == game_id)
    of_builds = select(builds.c.build_id).where(builds.c.game_id == game_id)
    of_uploads = select(uploads.c.upload_id).where(uploads.c.game_id == game_id)
    await tx.run(delete(version_builds).where(version_builds.c.version_id.in_(of_versions)))
    await tx.run(delete(build_tags).where(build_tags.c.build_id.in_(of_builds)))
    await tx.run(delete(upload_files).where(upload_files.c.upload_id.in_(of_uploads)))
    for table in (versions, builds, sites, uploads, cloud_tokens, device_links, games):
        await tx.run(delete(table).where(table.c.game_id == game_id))


async def removals_after(tx: Transaction, after: str, limit: int) -> Sequence[Record]:
    """Returns removals in the order of their `subject_id`, starting after the id `after`."""
    return await tx.all(_REMOVALS, {"after": after, "limit": limit})


async def removals_of(tx: Transaction, subject_ids: Collection[str]) -> Sequence[Record]:
    statement = select(removals).where(removals.c.subject_id.in_(list(subject_ids)))
    return await tx.all(statement) if subject_ids else ()


async def finish_removal(tx: Transaction, subject_id: str) -> None:
    await tx.run(delete(removals).where(removals.c.subject_id == subject_id))
