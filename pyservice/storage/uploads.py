"""Uploads, and what is made of them: builds and sites."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import bindparam, select

from pyservice.storage.database import Transaction
from pyservice.storage.tables import builds, sites, uploads

_BUILDS = (
    select(builds.c.build_id, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == builds.c.upload_id)
    .where(
        builds.c.game_id == bindparam("game_id"),
        builds.c.build_id.in_(bindparam("ids", expanding=True)),
    )
)
_SITES = (
    select(sites.c.site_id, uploads.c.complete_ms)
    .join(uploads, uploads.c.upload_id == sites.c.upload_id)
    .where(
        sites.c.game_id == bindparam("game_id"),
        sites.c.site_id.in_(bindparam("ids", expanding=True)),
    )
)


async def completeness_of_builds(
    tx: Transaction, game_id: str, build_ids: Iterable[str]
) -> dict[str, bool]:
    """Of these ids those that are builds of the game, and whether each is completely uploaded."""
    ids = list(build_ids)
    if not ids:
        return {}
    rows = await tx.all(_BUILDS, {"game_id": game_id, "ids": ids})
    return {row.build_id: row.complete_ms is not None for row in rows}


async def completeness_of_sites(
    tx: Transaction, game_id: str, site_ids: Iterable[str]
) -> dict[str, bool]:
    """The same for sites."""
    ids = list(site_ids)
    if not ids:
        return {}
    rows = await tx.all(_SITES, {"game_id": game_id, "ids": ids})
    return {row.site_id: row.complete_ms is not None for row in rows}
