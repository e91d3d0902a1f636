"""Check that the stored uses of quotas are those of the records."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, func, select

from pyservice.storage.database import Transaction
from pyservice.storage.tables import games, groups, versions

_SIZE: Final = func.length(versions.c.config) + func.length(versions.c.config_json)
_GAMES: Final = select(func.count()).where(games.c.group_id == groups.c.group_id)
_BYTES: Final = (
    select(func.coalesce(func.sum(_SIZE), 0))
    .select_from(versions.join(games, games.c.game_id == versions.c.game_id))
    .where(games.c.group_id == groups.c.group_id)
)
_USES: Final[Select[Any]] = select(
    groups.c.game_count,
    groups.c.version_bytes,
    _GAMES.correlate(groups).scalar_subquery().label("counted_games"),
    _BYTES.correlate(groups).scalar_subquery().label("counted_bytes"),
)


async def check_stored_use(tx: Transaction) -> None:
    rows = await tx.all(_USES)
    assert rows
    for row in rows:
        assert (row.game_count, row.version_bytes) == (row.counted_games, row.counted_bytes)
