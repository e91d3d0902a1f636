"""A game on the service: what a developer, or a CI job, does with a cloud token until a namespace runs a version.

Each step looks first whether it is done already, so it can be run again and again.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from examples.arena.hosting import HostingClient, ServiceAway

PATIENCE_S = 20.0
PAUSE_S = 0.2


class Deployment:
    """One game, by its name_id, and one of its namespaces."""

    def __init__(self, developer: HostingClient, game: str, namespace: str) -> None:
        self._developer = developer
        self._game = game
        self._namespace = namespace

    async def deploy(
        self, group_id: str, display_name: str, version: str, config: dict[str, Any]
    ) -> None:
        """The namespace runs this version afterwards. Raises ServiceRefused, TimeoutError."""
        await self._ensure_game(group_id, display_name)
        version_id = await self._ensure_version(version, config)
        path = f"/cloud/games/{self._game}/namespaces/{self._namespace}/version"
        await self._call("PUT", path, {"version_id": version_id})

    async def token(self, kind: str) -> str:
        """A new token: `public` for game clients, `environment` for a back end."""
        paths = {
            "public": f"/cloud/games/{self._game}/namespaces/{self._namespace}/tokens/public",
            "environment": f"/games/{self._game}/environments/{self._namespace}/tokens/service",
        }
        return str((await self._call("POST", paths[kind], {}))["token"])

    async def _ensure_game(self, group_id: str, display_name: str) -> None:
        games = (await self._call("GET", "/cloud/games"))["games"]
        if all(game["name_id"] != self._game for game in games):
            body = {
                "developer_group_id": group_id,
                "display_name": display_name,
                "name_id": self._game,
            }
            await self._call("POST", "/cloud/games", body)

    async def _ensure_version(self, name: str, config: dict[str, Any]) -> str:
        path = f"/cloud/games/{self._game}/versions"
        for version in (await self._call("GET", path))["versions"]:
            if version["display_name"] == name:
                return str(version["version_id"])
        body = {"display_name": name, "config": config}
        return str((await self._call("POST", path, body))["version_id"])

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One call, again while the service is not quite there: the key makes that one change."""
        content = b"" if body is None else json.dumps(body).encode()
        key = str(uuid.uuid4())
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer: dict[str, Any] = await self._developer.call(
                        method, path, content, idempotency_key=key
                    )
                except ServiceAway as away:
                    await asyncio.sleep(max(away.retry_after_s, PAUSE_S))
                else:
                    return answer
