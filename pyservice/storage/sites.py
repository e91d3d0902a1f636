"""Sites of games, and what a namespace shows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, insert, select

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import (
    auth_users,
    games,
    namespaces,
    sites,
    upload_files,
    uploads,
    versions,
)

_OF_GAME = (
    select(sites, uploads.c.content_length, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == sites.c.upload_id)
    .where(sites.c.game_id == bindparam("game_id"))
    .order_by(sites.c.site_id.desc())
)
_COMPLETENESS = (
    select(sites.c.site_id, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == sites.c.upload_id)
    .where(
        sites.c.game_id == bindparam("game_id"),
        sites.c.site_id.in_(bindparam("ids", expanding=True)),
    )
)
_SHOWN = (
    select(
        namespaces.c.namespace_id,
        namespaces.c.version_id,
        namespaces.c.cdn_auth_type,
        games.c.group_id,
        versions.c.site_id,
    )
    .join(games, games.c.game_id == namespaces.c.game_id)
    .join(versions, versions.c.version_id == namespaces.c.version_id)
    .where(games.c.name_id == bindparam("game"), namespaces.c.name_id == bindparam("namespace"))
)
_USERS = (
    select(auth_users.c.user, auth_users.c.password_hash)
    .where(auth_users.c.namespace_id == bindparam("namespace_id"))
    .order_by(auth_users.c.user)
)
_CONFIG = select(versions.c.config).where(versions.c.version_id == bindparam("version_id"))
_FILES = (
    select(
        upload_files.c.upload_id,
        upload_files.c.path,
        upload_files.c.content_length,
        upload_files.c.content_type,
        uploads.c.complete_ms,
    )
    .join(uploads, uploads.c.upload_id == upload_files.c.upload_id)
    .join(sites, sites.c.upload_id == uploads.c.upload_id)
    .where(sites.c.site_id == bindparam("site_id"), uploads.c.complete_ms.is_not(None))
)


async def add(
    tx: Transaction, site_id: str, game_id: str, upload_id: str, display_name: str, now_ms: int
) -> None:
    values = {
        "site_id": site_id,
        "game_id": game_id,
        "upload_id": upload_id,
        "display_name": display_name,
        "create_ms": now_ms,
    }
    await tx.run(insert(sites), values)


async def of_game(tx: Transaction, game_id: str) -> Sequence[Record]:
    """Columns of `sites`, `content_length`, `complete_ms`, newest first."""
    return await tx.all(_OF_GAME, {"game_id": game_id})


async def completeness(tx: Transaction, game_id: str, ids: Iterable[str]) -> dict[str, bool]:
    """Of these ids those that are sites of the game, and whether each is completely uploaded."""
    wanted = list(ids)
    if not wanted:
        return {}
    rows = await tx.all(_COMPLETENESS, {"game_id": game_id, "ids": wanted})
    return {row.site_id: row.complete_ms is not None for row in rows}


async def shown(tx: Transaction, game: str, namespace: str) -> Record | None:
    """`namespace_id`, `version_id`, `site_id`, `cdn_auth_type` of a namespace by its name_ids."""
    return await tx.first(_SHOWN, {"game": game, "namespace": namespace})


async def users(tx: Transaction, namespace_id: str) -> dict[str, bytes]:
    """User to bcrypt hash."""
    rows = await tx.all(_USERS, {"namespace_id": namespace_id})
    return {row.user: row.password_hash.encode() for row in rows}


async def config(tx: Transaction, version_id: str) -> bytes:
    """A version's configuration, as it is kept."""
    row = await tx.first(_CONFIG, {"version_id": version_id})
    if row is None:
        raise LookupError(version_id)
    content: bytes = row.config
    return content


async def files(tx: Transaction, site_id: str) -> Sequence[Record]:
    """`upload_id`, `path`, `content_length`, `content_type`, `complete_ms` of a complete site's files."""
    return await tx.all(_FILES, {"site_id": site_id})
