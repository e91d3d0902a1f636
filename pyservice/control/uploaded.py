"""Which builds and sites a version can name."""

from __future__ import annotations

from pyservice.control.configuration import Completeness
from pyservice.storage import builds, sites
from pyservice.storage.database import Transaction


class Uploaded:
    """What the records say of ids in a configuration."""

    async def builds(self, tx: Transaction, game_id: str, ids: set[str]) -> dict[str, Completeness]:
        """Those that are builds of the game."""
        return _told(await builds.completeness(tx, game_id, ids))

    async def sites(self, tx: Transaction, game_id: str, ids: set[str]) -> dict[str, Completeness]:
        """Those that are sites of the game."""
        return _told(await sites.completeness(tx, game_id, ids))


def _told(found: dict[str, bool]) -> dict[str, Completeness]:
    return {one: "complete" if is_complete else "incomplete" for one, is_complete in found.items()}
