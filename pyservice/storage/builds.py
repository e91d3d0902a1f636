from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import and_, bindparam, delete, exists, insert, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import (
    build_tags,
    builds,
    games,
    namespaces,
    upload_files,
    uploads,
    version_builds,
)

IMAGE: Final = "image"
"""Kind of a build that is an image in a registry. Its `image_tag` is the reference of the image."""

_ROWS = select(builds, uploads.c.content_length, uploads.c.complete_ms).join(
    uploads, uploads.c.upload_id == builds.c.upload_id
)
_OF_GAME = PagedList(_ROWS.where(builds.c.game_id == bindparam("game_id")), builds.c.build_id)
_ONE = _ROWS.where(
    builds.c.game_id == bindparam("game_id"), builds.c.build_id == bindparam("build_id")
)
_GROUP = (
    select(games.c.group_id)
    .join(builds, builds.c.game_id == games.c.game_id)
    .where(builds.c.build_id == bindparam("build_id"))
)
_TAGS_OF_SEVERAL = (
    select(build_tags)
    .where(build_tags.c.build_id.in_(bindparam("ids", expanding=True)))
    .order_by(build_tags.c.name)
)
_TAGS = (
    select(build_tags)
    .where(build_tags.c.build_id == bindparam("build_id"))
    .order_by(build_tags.c.name)
)
_COMPLETENESS = (
    select(builds.c.build_id, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == builds.c.upload_id)
    .where(
        builds.c.game_id == bindparam("game_id"),
        builds.c.build_id.in_(bindparam("ids", expanding=True)),
    )
)


_ARCHIVE_WITH_DIGEST = (
    select(upload_files.c.upload_id, upload_files.c.path, upload_files.c.content_length)
    .join(builds, builds.c.upload_id == upload_files.c.upload_id)
    .join(uploads, uploads.c.upload_id == builds.c.upload_id)
    .where(
        upload_files.c.sha256 == bindparam("sha256"),
        builds.c.kind == "archive",
        uploads.c.complete_ms.is_not(None),
    )
    .order_by(upload_files.c.upload_id)
    .limit(1)
)


_IMAGES_OF_VERSION = (
    select(builds.c.build_id, builds.c.image_tag, games.c.group_id)
    .join(version_builds, version_builds.c.build_id == builds.c.build_id)
    .join(games, games.c.game_id == builds.c.game_id)
    .where(version_builds.c.version_id == bindparam("version_id"), builds.c.kind == IMAGE)
    .order_by(builds.c.build_id)
)
_ACTIVE_VERSIONS_WITH_IMAGES = (
    select(version_builds.c.version_id, games.c.group_id)
    .join(builds, builds.c.build_id == version_builds.c.build_id)
    .join(games, games.c.game_id == builds.c.game_id)
    .join(namespaces, namespaces.c.version_id == version_builds.c.version_id)
    .where(builds.c.kind == IMAGE)
    .distinct()
    .order_by(version_builds.c.version_id.desc())
)


async def add(
    tx: Transaction,
    build_id: str,
    game_id: str,
    upload_id: str,
    display_name: str,
    form: tuple[str, str, str | None],
    now_ms: int,
) -> None:
    """Adds a build. `form` has its kind, compression and image tag, in this order."""
    values = {
        "build_id": build_id,
        "game_id": game_id,
        "upload_id": upload_id,
        "display_name": display_name,
        "kind": form[0],
        "compression": form[1],
        "image_tag": form[2],
        "create_ms": now_ms,
    }
    await tx.run(insert(builds), values)


async def set_scratch_mb(tx: Transaction, upload_id: str, scratch_mb: int) -> None:
    """Stores the size of the scratch folder that the build of an upload requests."""
    statement = update(builds).where(builds.c.upload_id == upload_id).values(scratch_mb=scratch_mb)
    await tx.run(statement)


async def find(tx: Transaction, game_id: str, build_id: str) -> Record | None:
    """Returns the build's columns with `content_length` and `complete_ms` of its upload, or None."""
    return await tx.first(_ONE, {"game_id": game_id, "build_id": build_id})


async def group_of(tx: Transaction, build_id: str) -> str | None:
    """Returns the developer group of a build's game, or None for an unknown build."""
    row = await tx.first(_GROUP, {"build_id": build_id})
    return None if row is None else str(row.group_id)


async def archive_with_digest(tx: Transaction, sha256: bytes) -> Record | None:
    """Returns the file of a complete build of the kind `archive`, or None."""
    return await tx.first(_ARCHIVE_WITH_DIGEST, {"sha256": sha256})


async def images_of_version(tx: Transaction, version_id: str) -> Sequence[Record]:
    """Returns the builds of the kind `image` of a version, with the `group_id` of their game."""
    return await tx.all(_IMAGES_OF_VERSION, {"version_id": version_id})


async def active_versions_with_images(tx: Transaction) -> Sequence[Record]:
    """Returns `version_id` and `group_id` of the versions with images in use, newest first."""
    return await tx.all(_ACTIVE_VERSIONS_WITH_IMAGES)


async def of_game(
    tx: Transaction, game_id: str, tags: Mapping[str, str], bounds: PageBounds
) -> tuple[Page, dict[str, dict[str, str]]]:
    """Returns a page of the game's builds that have all of `tags`, newest first, and their tags.

    Each row has the columns of `find`. The tags are by build ID. A build without tags has no entry.
    """
    found = _OF_GAME
    for name, value in tags.items():
        condition = and_(
            build_tags.c.build_id == builds.c.build_id,
            build_tags.c.name == name,
            build_tags.c.value == value,
        )
        found = found.where(exists().where(condition))
    page = await found.read(tx, {"game_id": game_id}, bounds)
    tags_of_build = await _tags_of_several(tx, (row.build_id for row in page.rows))

    def tag_bytes(row: Record) -> int:
        tags = tags_of_build.get(row.build_id, {})
        return sum(len(name) + len(value.encode()) for name, value in tags.items())

    return found.cut(page, tag_bytes), tags_of_build


async def tags_of(tx: Transaction, build_id: str) -> dict[str, str]:
    rows = await tx.all(_TAGS, {"build_id": build_id})
    return {row.name: row.value for row in rows}


async def _tags_of_several(tx: Transaction, build_ids: Iterable[str]) -> dict[str, dict[str, str]]:
    tags: dict[str, dict[str, str]] = {}
    for row in await tx.all(_TAGS_OF_SEVERAL, {"ids": list(build_ids)}):
        tags.setdefault(row.build_id, {})[row.name] = row.value
    return tags


async def change_tags(
    tx: Transaction, build_id: str, set_: Mapping[str, str], removed_names: Iterable[str]
) -> None:
    names = [*set_, *removed_names]
    condition = and_(build_tags.c.build_id == build_id, build_tags.c.name.in_(names))
    await tx.run(delete(build_tags).where(condition))
    rows = [{"build_id": build_id, "name": name, "value": value} for name, value in set_.items()]
    if rows:
        await tx.run(insert(build_tags), rows)


async def remove_tags_from_other_builds(
    tx: Transaction, game_id: str, build_id: str, names: Sequence[str]
) -> None:
    other_builds = select(builds.c.build_id).where(
        builds.c.game_id == game_id, builds.c.build_id != build_id
    )
    condition = and_(build_tags.c.name.in_(names), build_tags.c.build_id.in_(other_builds))
    await tx.run(delete(build_tags).where(condition))


async def remove(tx: Transaction, build_id: str) -> None:
    """Removes a build with its tags. Raises Conflict if a concurrently added version uses the
    build.
    """
    await tx.run(delete(build_tags).where(build_tags.c.build_id == build_id))
    await tx.run(delete(builds).where(builds.c.build_id == build_id))


async def completeness(tx: Transaction, game_id: str, ids: Iterable[str]) -> dict[str, bool]:
    """Returns, for each ID of a build of the game, whether the build's upload is complete."""
    build_ids = list(ids)
    if not build_ids:
        return {}
    rows = await tx.all(_COMPLETENESS, {"game_id": game_id, "ids": build_ids})
    return {row.build_id: row.complete_ms is not None for row in rows}
