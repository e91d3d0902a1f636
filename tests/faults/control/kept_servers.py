"""Dynamic servers of a game in a service that dies: what nobody wants ended runs, whatever happens to the planes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyservice.runtime.keeper import Folder
from tests import programs
from tests.control.files import put
from tests.household import Developer, eventually

_ENDED = ("stopping", "destroyed")


class KeptServers:
    """Of the environment `prod` of a game."""

    def __init__(self, developer: Developer, game_id: str) -> None:
        self._developer = developer
        self._game_id = game_id
        self._environment: dict[str, Any] = {"game_id": game_id, "environment_id": "prod"}
        self._build_id = ""

    async def prepare(self) -> None:
        """There is a build, and nothing becomes of earlier servers meanwhile."""
        self._build_id = self._build_id or await self._build()
        await self.check()

    async def _build(self) -> str:
        content = programs.server_archive("sleep", "3600")
        image = {"path": "server.tar", "content_length": len(content)}
        fields: dict[str, Any] = {"display_name": "server", "image_file": image}
        made = await self._developer.good("create_game_build", game_id=self._game_id, **fields)
        assert (await put(made["image_presigned_request"], content)).status_code == 200
        await self._developer.good("complete_upload", upload_id=made["upload_id"])
        return str(made["build_id"])

    def wanted(self) -> dict[str, Any]:
        """A server that goes on until it is ended."""
        return {
            **self._environment,
            "datacenter": "local",
            "network": {"ports": {"game": {"protocol": "tcp"}}},
            "resources": {"cpu": 10, "memory": 16},
            "runtime": {"build": self._build_id},
            "tags": {"name": uuid4().hex},
        }

    async def add(self) -> str:
        """Id of one that runs."""
        await self.prepare()
        made = await self._developer.good("create_server", **self.wanted())
        await self.check()
        return str(made["server"]["id"])

    async def check(self) -> None:
        """Those run that nobody wants ended, and no others."""
        statuses = await self._statuses()
        wanted = {one for one in statuses if statuses[one] not in _ENDED}

        async def is_so() -> bool:
            told = await self._statuses()
            return self._kept() == {one for one in told if told[one] == "running"} == wanted

        await eventually(is_so)

    def _kept(self) -> set[str]:
        """Ids of whatever is in the folders and has a keeper."""
        folders = (self._developer.house.data_dir / "servers").iterdir()
        return {path.name for path in folders if path.is_dir() and Folder(path).is_kept()}

    async def _statuses(self) -> dict[str, str]:
        page = await self._developer.good(
            "list_servers", **self._environment, include_destroyed=True
        )
        assert "cursor" not in page
        return {one["id"]: one["status"] for one in page["servers"]}
