"""Namespaces of lobbies and dynamic servers, as labels of metrics."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from pyservice.storage.database import Transaction
from pyservice.storage.tables import games, lobbies, namespaces, servers

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


async def namespace_labels(tx: Transaction, owner_ids: Sequence[str]) -> dict[str, str]:
    """Returns `game/namespace` of each lobby and server that has a record."""
    labels = {}
    for statement in _LABELS_OF:
        for row in await tx.all(statement, {"ids": list(owner_ids)}):
            labels[row.owner_id] = f"{row.game_name}/{row.name_id}"
    return labels
