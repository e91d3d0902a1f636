"""Games, each with a group of its own, and records of ended lobbies."""

from __future__ import annotations

from pyservice.storage import games, groups, lobbies, namespaces
from tests.control.build_uploads import IDS, NOW_MS, BuildUploads


class LobbyRecords:
    def __init__(self, builds: BuildUploads) -> None:
        self.builds = builds
        self.group_ids: tuple[str, ...] = ()
        self._versions: dict[str, tuple[str, str]] = {}

    async def game(self) -> str:
        group_id, game_id, version_id, namespace_id = (IDS.new() for _ in range(4))
        identity_id = self.builds.scope.identity_id
        namespace = namespaces.NewNamespace(namespace_id, "prod", "Prod", IDS.new())
        async with self.builds.database.write() as tx:
            await groups.add(tx, group_id, "Group", identity_id, NOW_MS)
            await games.add(tx, game_id, f"g{game_id[-12:]}", "Game", group_id, NOW_MS)
            version = games.NewVersion(version_id, game_id, "1.0", NOW_MS, b"")
            await games.add_version(tx, version)
            await namespaces.add(tx, game_id, version_id, [namespace], (10, 10), NOW_MS)
        self._versions[game_id] = namespace_id, version_id
        self.group_ids += (group_id,)
        return game_id

    async def ended(self, game_id: str, count: int = 1) -> list[str]:
        namespace_id, version_id = self._versions[game_id]
        ids = [IDS.new() for _ in range(count)]
        columns = {
            "namespace_id": namespace_id,
            "version_id": version_id,
            "game_mode": "duel",
            "region_id": "local",
            "publicity": "public",
            "is_closed": False,
            "is_stopping": False,
            "create_ms": NOW_MS,
            "stop_ms": NOW_MS + 1,
        }
        async with self.builds.database.write() as tx:
            await lobbies.add_many(tx, [{**columns, "lobby_id": lobby_id} for lobby_id in ids])
        return ids
