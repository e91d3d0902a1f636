"""Writes a data directory of the current code for `test_data_directory.py`.

Run it once for each release with data directories that later code must open:
`python -m tests.compatibility.make_directory FOLDER`. Then pack `data` and `facts.json` of that folder as
`directory-<release>.tar.xz`, and store the keeper of that release beside it. `release-<release>.tar.xz` is its folder
`pyservice` with a native module that is built for size, without symbols and without `bin`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.support import game_programs
from tests.support.full_service import Developer, FullService, HttpClient
from tests.support.leftover_processes import end_leftovers
from tests.support.upload_files import put
from tests.support.waiting import eventually

PROGRAM: Final = ("sh", "-c", 'echo "token=$HOSTING_LOBBY_TOKEN"; exec sleep 3600')
"""Writes its token to its log, so that this script can act for the lobby."""
SETTINGS: Final = {"cpu_millicores": 64_000, "memory_mb": 64_000, "isolation": "landlock"}
PORTS: Final = {"game": {"protocol": "tcp"}}
TOKEN_TTL_MS: Final = 3_600_000


class DirectoryMaker:
    """Makes the content of the directory through the HTTP API."""

    def __init__(self, service: FullService, client: HttpClient) -> None:
        self._client = client
        self._owner = Developer(service, client)
        self.facts: dict[str, Any] = {"cloud_token": service.cloud_token}

    async def make(self) -> None:
        game = self.facts["game_id"] = await self._owner.game(display_name="Kept", name_id="kept")
        build = await self._build(game)
        mode = {"player_token_ttl": TOKEN_TTL_MS, "docker": {"ports": PORTS}}
        hosted = {**mode, "max_players": 3, "tier": "basic-1d16"}
        hosted["docker"] = {"image_id": build, "ports": PORTS}
        modes = {"attached": {**mode, "max_players": 2}, "hosted": hosted}
        version = await self._owner.version(game, {"matchmaker": {"game_modes": modes}})
        of_namespace = {"game_id": game, "namespace_id": "prod"}
        await self._owner.good("set_version", **of_namespace, version_id=version)
        self.facts["service_token"] = await self._owner.service_token(game)
        self.facts["public_token"] = await self._owner.public_token(game)
        self.facts["attached"] = await self._attached(game)
        self.facts["hosted"] = await self._hosted(game)
        self.facts["server_id"] = await self._server(game, build)

    async def _build(self, game: str) -> str:
        content = game_programs.server_archive(*PROGRAM)
        image = {"path": "server.tar", "content_length": len(content)}
        fields: dict[str, Any] = {"game_id": game, "display_name": "server", "image_file": image}
        response = await self._owner.good("create_game_build", **fields)
        assert (await put(response["image_presigned_request"], content)).status_code == 200
        await self._owner.good("complete_upload", upload_id=response["upload_id"])
        return str(response["build_id"])

    async def _attached(self, game: str) -> dict[str, str]:
        """A lobby with one connected player and one reservation."""
        lobby = await self._owner.lobby(game, self.facts["service_token"], "attached")
        connected = await self._find("attached")
        await self._connect(lobby["lobby_token"], connected, "socket-1")
        return {
            **lobby,
            "connected_token": connected,
            "connected_key": "socket-1",
            "reserved_token": await self._find("attached"),
        }

    async def _hosted(self, game: str) -> dict[str, str]:
        """A lobby that the service started, with one connected player."""
        finding = asyncio.create_task(self._find("hosted"))
        lobby_id = await eventually(lambda: self._lobby_id(game))
        line = await eventually(lambda: self._first_line(game, lobby_id))
        lobby_token = line.partition("token=")[2]
        assert (await self._client.call("ready", {}, token=lobby_token)).code == "OK"
        player = await finding
        await self._connect(lobby_token, player, "socket-2")
        return {
            "lobby_id": lobby_id,
            "lobby_token": lobby_token,
            "connected_token": player,
            "connected_key": "socket-2",
        }

    async def _server(self, game: str, build: str) -> str:
        """A dynamic server that runs."""
        of_environment = {"game_id": game, "environment_id": "prod"}
        fields: dict[str, Any] = {
            "datacenter": "local",
            "network": {"ports": PORTS},
            "resources": {"cpu": 10, "memory": 64},
            "runtime": {"build": build},
            "tags": {"name": "kept"},
        }
        response = await self._owner.good("create_server", **of_environment, **fields)

        async def is_running() -> bool:
            page = await self._owner.good("list_servers", **of_environment)
            return [one["status"] for one in page["servers"]] == ["running"]

        await eventually(is_running)
        return str(response["server"]["id"])

    async def _find(self, mode: str) -> str:
        token = self.facts["public_token"]
        response = await self._client.call("find", {"game_modes": [mode]}, token=token)
        assert response.code == "OK", response
        return str(response.body["player"]["token"])

    async def _connect(self, lobby_token: str, player: str, key: str) -> None:
        fields = {"player_token": player}
        response = await self._client.call("connected", fields, token=lobby_token, key=key)
        assert response.code == "OK", response

    async def _lobby_id(self, game: str) -> str | None:
        path = f"/cloud/games/{game}/namespaces/prod/logs/lobbies"
        records = (await self._get(path))["lobbies"]
        ids = [one["lobby_id"] for one in records if one["lobby_group_name_id"] == "hosted"]
        return ids[0] if ids else None

    async def _first_line(self, game: str, lobby_id: str) -> str | None:
        path = f"/cloud/games/{game}/matchmaker/lobbies/{lobby_id}/logs?stream=std_out"
        lines = (await self._get(path)).get("lines")
        return str(lines[0]) if lines else None

    async def _get(self, path: str) -> Any:
        return (await self._client.request("GET", path, token=self._owner.token)).json()


async def main(folder: Path) -> None:
    game_programs.PYTHON_PATH = "/usr/bin:/bin"  # type: ignore[misc]
    service = FullService(folder, runtime=SETTINGS).start()
    assert service.process is not None
    try:
        async with service.open_client("http") as client:
            assert isinstance(client, HttpClient)
            directory_maker = DirectoryMaker(service, client)
            await directory_maker.make()
        facts = {**directory_maker.facts, "folder": str(folder), "created_s": time.time()}
        (folder / "facts.json").write_text(json.dumps(facts, indent=2))
    finally:
        service.process.kill()
        service.process.wait()
        end_leftovers(service.data_dir)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
