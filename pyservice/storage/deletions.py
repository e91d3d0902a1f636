"""Users of a record that may be deleted, and records that await the removal of their contents."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, bindparam, delete, select, update

from pyservice.storage.database import Transaction
from pyservice.storage.tables import (
    games,
    lobbies,
    namespaces,
    servers,
    uploads,
    version_builds,
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
