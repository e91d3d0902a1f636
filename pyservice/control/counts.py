"""How many players are connected, as the data plane last said (at most a second old)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PlayerCounts:
    """Connected players by namespace."""

    def __init__(self) -> None:
        self._players: dict[str, int] = {}

    def players(self, namespace_ids: Iterable[str]) -> int:
        """Of these namespaces together."""
        return sum(self._players.get(namespace_id, 0) for namespace_id in namespace_ids)

    def take(self, players: Mapping[str, int]) -> list[str]:
        """What the data plane said of some namespaces; those whose number is another one now."""
        changed = [one for one, count in players.items() if self._players.get(one, 0) != count]
        self._players.update(players)
        return changed
