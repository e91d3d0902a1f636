from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import and_, bindparam, delete, insert, or_, select, update

from pyservice.storage.database import DELETION_BATCH_ROWS, Record, Transaction
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import (
    auth_users,
    build_tags,
    builds,
    exports,
    games,
    namespaces,
    sites,
    upload_files,
    uploads,
    versions,
)

ABANDONED = "gone"
"""Kind of an upload with objects that must be removed."""

_ADD = insert(uploads)
_ADD_FILES = insert(upload_files)
_WITH_GAME = (
    select(uploads, games.c.group_id)
    .join(games, games.c.game_id == uploads.c.game_id)
    .where(uploads.c.upload_id == bindparam("upload_id"))
)
_FILES = (
    select(upload_files)
    .where(upload_files.c.upload_id == bindparam("upload_id"))
    .order_by(upload_files.c.path)
)
_OF_KIND = PagedList(
    select(
        uploads.c.upload_id,
        uploads.c.display_name,
        uploads.c.content_length,
        uploads.c.create_ms,
        uploads.c.complete_ms,
        upload_files.c.path,
    )
    .join(upload_files, upload_files.c.upload_id == uploads.c.upload_id)
    .where(uploads.c.game_id == bindparam("game_id"), uploads.c.kind == bindparam("kind")),
    uploads.c.create_ms,
    uploads.c.upload_id,
)
_ABANDONED = (
    select(uploads.c.upload_id)
    .where(
        or_(
            uploads.c.kind == ABANDONED,
            and_(uploads.c.complete_ms.is_(None), uploads.c.create_ms < bindparam("before_ms")),
        ),
        uploads.c.upload_id > bindparam("after"),
    )
    .order_by(uploads.c.upload_id)
    .limit(bindparam("limit"))
)
_INCOMPLETE = select(uploads.c.upload_id).where(
    uploads.c.kind != ABANDONED, uploads.c.complete_ms.is_(None)
)
_INCOMPLETE_AMONG = _INCOMPLETE.where(uploads.c.upload_id.in_(bindparam("ids", expanding=True)))
_INCOMPLETE_OF_GAME = _INCOMPLETE.where(uploads.c.game_id == bindparam("game_id"))
_BUILD_FORMAT = select(builds.c.kind, builds.c.compression, builds.c.image_tag).where(
    builds.c.upload_id == bindparam("upload_id")
)
_SITES_OF_GAME = PagedList(
    select(sites, uploads.c.content_length, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == sites.c.upload_id)
    .where(sites.c.game_id == bindparam("game_id")),
    sites.c.site_id,
)
_SITE_COMPLETENESS = (
    select(sites.c.site_id, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == sites.c.upload_id)
    .where(
        sites.c.game_id == bindparam("game_id"),
        sites.c.site_id.in_(bindparam("ids", expanding=True)),
    )
)
_UPLOAD_OF_SITE = select(sites.c.upload_id).where(
    sites.c.game_id == bindparam("game_id"), sites.c.site_id == bindparam("site_id")
)
_NAMESPACE_SITE = (
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
_SITE_USERS = (
    select(auth_users.c.user, auth_users.c.password_hash)
    .where(auth_users.c.namespace_id == bindparam("namespace_id"))
    .order_by(auth_users.c.user)
)
_VERSION_CONFIG = select(versions.c.config).where(versions.c.version_id == bindparam("version_id"))
_SITE_FILES = (
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
_SOURCE_SITES = 8
"""Number of sites of a game from which a new site can take files. It bounds the search."""
_NEWEST_SITES = (
    select(uploads.c.upload_id)
    .where(
        uploads.c.game_id == bindparam("game_id"),
        uploads.c.kind == "site",
        uploads.c.complete_ms.is_not(None),
    )
    .order_by(uploads.c.create_ms.desc(), uploads.c.upload_id.desc())
    .limit(_SOURCE_SITES)
)
_WITH_DIGESTS = select(
    upload_files.c.upload_id,
    upload_files.c.path,
    upload_files.c.content_length,
    upload_files.c.sha256,
).where(
    upload_files.c.upload_id.in_(_NEWEST_SITES),
    upload_files.c.sha256.in_(bindparam("digests", expanding=True)),
)
_EXPIRED_BATCH_ROWS = 100


@dataclass(frozen=True, slots=True)
class NewFile:
    """File of a new upload. `part_bytes` is set only for a multipart upload."""

    path: str
    content_length: int
    content_type: str | None = None
    sha256: bytes | None = None
    part_bytes: int | None = None


class NewUpload(NamedTuple):
    upload_id: str
    game_id: str
    kind: str
    display_name: str
    create_ms: int
    files: Sequence[NewFile]


async def add(tx: Transaction, new: NewUpload) -> None:
    values = new._asdict()
    files = values.pop("files")
    content_length = sum(file.content_length for file in files)
    await tx.run(_ADD, {**values, "content_length": content_length})
    for first in range(0, len(files), DELETION_BATCH_ROWS):
        if first:
            await asyncio.sleep(0)
        rows = [
            {
                "upload_id": new.upload_id,
                "path": file.path,
                "content_length": file.content_length,
                "content_type": file.content_type,
                "sha256": file.sha256,
                "part_bytes": file.part_bytes,
            }
            for file in files[first : first + DELETION_BATCH_ROWS]
        ]
        await tx.run(_ADD_FILES, rows)


async def find(tx: Transaction, upload_id: str) -> Record | None:
    """Returns the upload's columns with the game's `group_id`, or None."""
    return await tx.first(_WITH_GAME, {"upload_id": upload_id})


async def files_of(tx: Transaction, upload_id: str) -> Sequence[Record]:
    return await tx.all(_FILES, {"upload_id": upload_id})


async def of_kind(tx: Transaction, game_id: str, kind: str, bounds: PageBounds) -> Page:
    """Returns a page of the game's uploads of a kind with one file each, such as `avatar`.

    The newest uploads come first.

    Each row includes the `path` of the file.
    """
    return await _OF_KIND.read(tx, {"game_id": game_id, "kind": kind}, bounds)


async def complete(tx: Transaction, upload_id: str, kind: str, now_ms: int) -> bool:
    """Marks an upload as complete. Returns False if no incomplete upload has this ID and kind."""
    statement = (
        update(uploads)
        .where(
            uploads.c.upload_id == upload_id,
            uploads.c.kind == kind,
            uploads.c.complete_ms.is_(None),
        )
        .values(complete_ms=now_ms)
    )
    return await tx.run(statement) > 0


async def set_digest(tx: Transaction, upload_id: str, path: str, sha256: bytes) -> None:
    condition = and_(upload_files.c.upload_id == upload_id, upload_files.c.path == path)
    await tx.run(update(upload_files).where(condition).values(sha256=sha256))


async def abandon(tx: Transaction, upload_id: str) -> None:
    await tx.run(update(uploads).where(uploads.c.upload_id == upload_id).values(kind=ABANDONED))


async def abandon_incomplete(tx: Transaction, upload_id: str) -> bool:
    """Marks an incomplete upload as abandoned, so that it can no longer complete.

    Returns whether the upload is now abandoned. A complete upload stays complete.
    """
    condition = and_(
        uploads.c.upload_id == upload_id,
        or_(uploads.c.kind == ABANDONED, uploads.c.complete_ms.is_(None)),
    )
    return await tx.run(update(uploads).where(condition).values(kind=ABANDONED)) > 0


async def find_abandoned(tx: Transaction, before_ms: int, after: str, limit: int) -> list[str]:
    """Returns the IDs of abandoned uploads, and of incomplete uploads created before `before_ms`.

    The IDs are sorted, and start after the ID `after`.
    """
    values = {"before_ms": before_ms, "after": after, "limit": limit}
    return [row.upload_id for row in await tx.all(_ABANDONED, values)]


async def incomplete_among(tx: Transaction, upload_ids: Collection[str]) -> set[str]:
    """Returns those of the ids that belong to uploads which are incomplete and not abandoned."""
    rows = await tx.all(_INCOMPLETE_AMONG, {"ids": list(upload_ids)}) if upload_ids else ()
    return {row.upload_id for row in rows}


async def incomplete_of_game(tx: Transaction, game_id: str) -> list[str]:
    return [row.upload_id for row in await tx.all(_INCOMPLETE_OF_GAME, {"game_id": game_id})]


async def build_format(tx: Transaction, upload_id: str) -> tuple[str, str, str | None] | None:
    row = await tx.first(_BUILD_FORMAT, {"upload_id": upload_id})
    return None if row is None else (row.kind, row.compression, row.image_tag)


async def remove(tx: Transaction, upload_id: str) -> None:
    of_build = select(builds.c.build_id).where(builds.c.upload_id == upload_id)
    await tx.run(delete(build_tags).where(build_tags.c.build_id.in_(of_build)))
    for table in (builds, sites, upload_files):
        await tx.run(delete(table).where(table.c.upload_id == upload_id))
    await tx.run(
        delete(uploads).where(uploads.c.upload_id == upload_id, uploads.c.kind == ABANDONED)
    )


async def add_site(
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


async def sites_of_game(tx: Transaction, game_id: str, bounds: PageBounds) -> Page:
    """Returns a page of the game's sites, newest first.

    Each row includes the `content_length` and `complete_ms` of the site's upload.
    """
    return await _SITES_OF_GAME.read(tx, {"game_id": game_id}, bounds)


async def upload_of_site(tx: Transaction, game_id: str, site_id: str) -> str | None:
    """Returns the id of a site's upload, or None if the game has no such site."""
    found = await tx.first(_UPLOAD_OF_SITE, {"game_id": game_id, "site_id": site_id})
    return None if found is None else found.upload_id


async def remove_site(tx: Transaction, site_id: str) -> None:
    await tx.run(delete(sites).where(sites.c.site_id == site_id))


async def site_completeness(tx: Transaction, game_id: str, ids: Iterable[str]) -> dict[str, bool]:
    """Maps each of the `ids` that is a site of the game to whether its upload is complete."""
    site_ids = list(ids)
    if not site_ids:
        return {}
    rows = await tx.all(_SITE_COMPLETENESS, {"game_id": game_id, "ids": site_ids})
    return {row.site_id: row.complete_ms is not None for row in rows}


async def namespace_site(tx: Transaction, game: str, namespace: str) -> Record | None:
    """Returns the IDs of a namespace and of its version, site and group, and its CDN auth type.

    `game` and `namespace` are readable names (`name_id`), not IDs.
    """
    return await tx.first(_NAMESPACE_SITE, {"game": game, "namespace": namespace})


async def site_users(tx: Transaction, namespace_id: str) -> dict[str, bytes]:
    rows = await tx.all(_SITE_USERS, {"namespace_id": namespace_id})
    return {row.user: row.password_hash.encode() for row in rows}


async def version_config(tx: Transaction, version_id: str) -> bytes:
    """Returns a version's encoded configuration. Raises LookupError for an unknown version."""
    row = await tx.first(_VERSION_CONFIG, {"version_id": version_id})
    if row is None:
        raise LookupError(version_id)
    content: bytes = row.config
    return content


async def site_files(tx: Transaction, site_id: str) -> Sequence[Record]:
    return await tx.all(_SITE_FILES, {"site_id": site_id})


async def site_files_with_digests(
    tx: Transaction, game_id: str, digests: Sequence[bytes]
) -> Sequence[Record]:
    """Returns the files with one of the SHA-256 in the newest complete sites of a game."""
    return await tx.all(_WITH_DIGESTS, {"game_id": game_id, "digests": list(digests)})


async def add_export(
    tx: Transaction, export_id: str, expires_ms: int, group_id: str | None = None
) -> None:
    values = {"export_id": export_id, "expires_ms": expires_ms, "group_id": group_id}
    await tx.run(insert(exports), values)


async def set_export_length(tx: Transaction, export_id: str, content_length: int) -> None:
    statement = update(exports).where(exports.c.export_id == export_id)
    await tx.run(statement.values(content_length=content_length))


async def expired_exports(tx: Transaction, now_ms: int) -> Sequence[str]:
    statement = (
        select(exports.c.export_id).where(exports.c.expires_ms < now_ms).limit(_EXPIRED_BATCH_ROWS)
    )
    return [row.export_id for row in await tx.all(statement)]


async def remove_exports(tx: Transaction, export_ids: Sequence[str]) -> None:
    await tx.run(delete(exports).where(exports.c.export_id.in_(export_ids)))
