"""Conformance driver of the Python helper: reads commands as JSON lines and prints results.

`conformance/README.md` describes the commands.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import hosting_game

Fields = Mapping[str, Any]


class Driver:
    def __init__(self) -> None:
        self.reservations: dict[str, hosting_game.Reservation] = {}
        self.sessions: dict[str, hosting_game.Player] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def open_player(self, _: str, fields: Fields) -> None:
        timeout_s = fields.get("timeout_ms", 120_000) / 1000
        self.matchmaker = hosting_game.Matchmaker(fields["api_url"], fields["token"], timeout_s)

    async def find(self, name: str, fields: Fields) -> Any:
        rest = {key: value for key, value in fields.items() if key != "game_modes"}
        return self.reserved(name, await self.matchmaker.find(*fields["game_modes"], **rest))

    async def join(self, name: str, fields: Fields) -> Any:
        return self.reserved(name, await self.matchmaker.join(**fields))

    async def create(self, name: str, fields: Fields) -> Any:
        return self.reserved(name, await self.matchmaker.create(**fields))

    async def rejoin(self, name: str, fields: Fields) -> Any:
        earlier = self.reservations[fields["of"]]
        return self.reserved(name, await self.matchmaker.rejoin(earlier))

    async def list(self, _: str, fields: Fields) -> Any:
        lobbies = await self.matchmaker.list_lobbies(fields.get("include_state", False))
        return [dataclasses.asdict(lobby) for lobby in lobbies]

    def reserved(self, name: str, reservation: hosting_game.Reservation) -> Any:
        self.reservations[name] = reservation
        url = reservation.websocket_url() if reservation.port().port else ""
        return {**dataclasses.asdict(reservation), "websocket_url": url}

    async def open_server(self, _: str, fields: Fields) -> Any:
        self.server = hosting_game.LobbyServer.from_environment(fields["environment"])
        self.server.heartbeat_interval_s = fields.get("heartbeat_ms", 3000) / 1000
        await self.server.__aenter__()
        names = (
            *("is_local", "lobby_id", "game_mode", "region_id", "max_players"),
            *("tags", "config", "bind_address"),
        )
        values = {name: getattr(self.server, name) for name in names}
        return {**values, "port": self.server.port(), "game_port": self.server.port("game-udp")}

    async def close_server(self, _: str, fields: Fields) -> None:
        await self.server.__aexit__(None, None, None)

    async def ready(self, _: str, fields: Fields) -> None:
        await self.server.ready()

    async def stopping(self, _: str, fields: Fields) -> Any:
        await self.server.stopping()
        return self.server.stop_reason

    async def drained(self, _: str, fields: Fields) -> None:
        await self.server.drained(fields.get("timeout_ms", 20_000) / 1000)

    async def enter(self, name: str, fields: Fields) -> None:
        player = self.server.player(fields["token"], fields.get("hold_ms", 0))
        await player.__aenter__()
        self.sessions[name] = player

    async def leave(self, _: str, fields: Fields) -> None:
        await self.sessions.pop(fields["of"]).__aexit__(None, None, None)

    async def set_state(self, _: str, fields: Fields) -> None:
        self.server.set_state(fields["value"])

    async def set_closed(self, _: str, fields: Fields) -> None:
        self.server.set_closed(fields["is_closed"])

    async def log(self, _: str, fields: Fields) -> None:
        hosting_game.log(fields["message"], **fields["fields"])

    async def cancel(self, _: str, fields: Fields) -> None:
        self.tasks[fields["of"]].cancel()

    async def run(self, command: Mapping[str, Any]) -> None:
        name, answer = command["id"], {"id": command["id"]}
        try:
            answer["ok"] = await getattr(self, command["do"])(name, command.get("with", {}))
        except hosting_game.HostingError as error:
            details = {"detail": error.detail, "ray_id": error.ray_id, "errors": error.errors}
            metadata = dict(error.metadata)
            answer["error"] = {"code": error.code, "status": error.status, **details}
            answer["error"]["metadata"] = metadata
        except asyncio.CancelledError:
            answer["error"] = {"code": "CANCELLED"}
        except ValueError as error:
            answer["error"] = {"code": "INVALID", "detail": str(error)}
        print(json.dumps(answer), flush=True)

    async def main(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            self.tasks[command["id"]] = asyncio.create_task(self.run(command))


if __name__ == "__main__":
    asyncio.run(Driver().main())
