"""Lobby and dynamic server of a game, built from `tests.programs.server`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.support import game_programs
from tests.support.full_service import Developer, eventually
from tests.support.upload_files import put


class Hosted:
    def __init__(self, owner: Developer, game_id: str) -> None:
        self._owner = owner
        self._game_id = game_id
        self.server_line = uuid4().hex

    async def upload(self) -> None:
        content = game_programs.server_archive()
        of_build: dict[str, Any] = {
            "game_id": self._game_id,
            "display_name": "server",
            "image_file": {"path": "server.tar", "content_length": len(content)},
        }
        response = await self._owner.good("create_game_build", **of_build)
        assert (await put(response["image_presigned_request"], content)).status_code == 200
        await self._owner.good("complete_upload", upload_id=response["upload_id"])
        self.build_id = str(response["build_id"])

    def mode(self) -> dict[str, Any]:
        return {
            "player_token_ttl": 3_600_000,
            "tier": "basic-1d16",
            "actions": {"create": {"enabled": True, "enable_public": True}},
            "docker": {"image_id": self.build_id, "ports": {"game": {"protocol": "tcp"}}},
        }

    async def begin(self) -> None:
        """Starts a server that exits and a lobby that keeps running. Both have written a log line."""
        self.server_id = await self.server(play="exit:0", arguments=[self.server_line])
        token = await self._owner.public_token(self._game_id)
        response = await self._owner.client.call("create", {"game_mode": "hosted"}, token=token)
        assert response.code == "OK", response
        self.lobby_id = str(response.body["lobby"]["lobby_id"])
        await eventually(self._has_logs)

    async def _has_logs(self) -> bool:
        query: dict[str, Any] = {"game_id": self._game_id, "stream": "std_out"}
        of_server = {**query, "environment_id": "prod", "server_id": self.server_id}
        response = await self._owner.good("get_server_logs", **of_server)
        lobby = await self._owner.call("get_lobby_logs", **query, lobby_id=self.lobby_id)
        return bool(response["lines"] and lobby.code == "OK" and lobby.body["lines"])

    async def server(self, **more: Any) -> str:
        response = await self._owner.good("create_server", **self.server_fields(**more))
        return str(response["server"]["id"])

    def server_fields(self, play: str = "", arguments: list[str] | None = None) -> dict[str, Any]:
        """Returns the fields to create a server. `play` is the program's action. Without it, the program runs until
        it is stopped.
        """
        return {
            "game_id": self._game_id,
            "environment_id": "prod",
            "datacenter": "local",
            "network": {"ports": {}},
            "resources": {"cpu": 10, "memory": 64},
            "runtime": {
                "build": self.build_id,
                "arguments": arguments or [],
                "environment": {"PLAY": play},
            },
            "tags": {"mode": "duel"},
        }
