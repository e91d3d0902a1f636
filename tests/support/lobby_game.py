"""A game with lobbies that run as processes."""

from __future__ import annotations

import csv
import io
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

import httpx

from tests.support import game_programs
from tests.support.full_service import Developer, ServiceResponse, eventually
from tests.support.game_back_end import GameBackEnd
from tests.support.waiting import PATIENCE_S

TIER = "basic-1d8"
REPORT_SCRIPT = b"""
import json, os, sys
names = [name for name in os.environ if name.startswith(("HOSTING_", "PORT", "THEIR_"))]
print(json.dumps({name: os.environ[name] for name in names if "TOKEN" not in name}), flush=True)
print("=1+1", flush=True)
print("to err", file=sys.stderr, flush=True)
os.execv(sys.executable, [sys.executable, "-S", "server.py"])
"""


COMMAND = ("python3", "-S", "report.py")


class Game:
    def __init__(self, developer: Developer, game_id: str) -> None:
        self.developer = developer
        self.game_id = game_id
        self.public_token = ""

    async def deploy(
        self,
        name: str = "1.0.0",
        command: Sequence[str] = COMMAND,
        archive: bytes | None = None,
        **modes: Any,
    ) -> str:
        """Uploads a build and sets a version. `archive` replaces the program that `command` starts."""
        version_id = await self.version(name, command, archive, **modes)
        await self.set_version(version_id)
        self.public_token = await self.developer.public_token(self.game_id)
        return version_id

    async def set_version(self, version_id: str) -> None:
        target = {"game_id": self.game_id, "namespace_id": "prod"}
        await self.developer.good("set_version", **target, version_id=version_id)

    async def version(
        self,
        name: str = "1.0.0",
        command: Sequence[str] = COMMAND,
        archive: bytes | None = None,
        **modes: Any,
    ) -> str:
        """Creates a version that no namespace runs, with a build of its own."""
        token = await self.developer.service_token(self.game_id)
        back_end_client = GameBackEnd(self.developer, self.game_id, token)
        archive = archive or game_programs.server_archive(*command, **{"report.py": REPORT_SCRIPT})
        build_id = await back_end_client.build(archive)
        docker = {"image_id": build_id, "ports": {"game": {"protocol": "tcp"}}}
        settings = {"tier": TIER, "max_players": 4}
        entries = {
            mode: {**settings, **values, "docker": {**docker, **values.get("docker", {})}}
            for mode, values in modes.items()
        }
        config = {"matchmaker": {"game_modes": entries}}
        return await self.developer.version(self.game_id, config, name)

    async def find(self, mode: str, **fields: Any) -> ServiceResponse:
        client = self.developer.client
        return await client.call("find", {"game_modes": [mode], **fields}, token=self.public_token)

    async def find_lobby(self, mode: str, **fields: Any) -> Any:
        answer = await self.find(mode, **fields)
        assert answer.code == "OK", answer
        return answer.body

    async def record(self, lobby_id: str) -> Any:
        answer = await self.developer.call(
            "get_lobby_record", game_id=self.game_id, namespace_id="prod", lobby_id=lobby_id
        )
        return answer.body["lobby"] if answer.code == "OK" else None

    async def over(self, lobby_id: str) -> Any:
        async def ended_record() -> Any:
            record = await self.record(lobby_id)
            return record if record and "stopped" in record["status"] else None

        return await eventually(ended_record)

    async def problem(self, lobby_id: str) -> str:
        async def written() -> Any:
            record = await self.record(lobby_id)
            return record and record.get("problem")

        return str(await eventually(written))

    async def first(self) -> str:
        async def listed() -> Any:
            target = {"game_id": self.game_id, "namespace_id": "prod"}
            return (await self.developer.good("list_lobby_records", **target))["lobbies"]

        return str((await eventually(listed))[0]["lobby_id"])

    async def logs(self, lobby_id: str, stream: str = "std_out") -> list[str]:
        answer = await self.developer.good(
            "get_lobby_logs", game_id=self.game_id, lobby_id=lobby_id, stream=stream
        )
        lines: list[str] = answer["lines"]
        return lines

    async def variables(self, lobby_id: str) -> dict[str, str]:
        """Returns the environment of the lobby's process. A lobby can be ready before its log is read."""

        async def written() -> list[str]:
            return await self.logs(lobby_id)

        variables: dict[str, str] = json.loads((await eventually(written))[0])
        return variables

    async def csv(self, slug: str, **fields: Any) -> list[dict[str, str]]:
        url = (await self.developer.good(slug, game_id=self.game_id, **fields))["url"]
        answer = httpx.get(url, timeout=PATIENCE_S)
        assert answer.headers["content-type"].startswith("text/csv")
        assert "attachment" in answer.headers["content-disposition"]
        assert answer.text.count("\r\n") == answer.text.count("\n")
        return list(csv.DictReader(io.StringIO(answer.text)))

    async def history(self, lobby_id: str) -> dict[str, str]:
        end_ms = int(time.time() * 1000)
        rows = await self.csv("export_lobby_history", query_start=0, query_end=end_ms)
        [row] = [row for row in rows if row["lobby_id"] == lobby_id]
        return row


def echoed(port: Any) -> bytes:
    with socket.create_connection((port["hostname"], port["port"]), 5) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)
