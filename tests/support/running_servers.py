"""Dynamic servers across kills: each server without a delete request runs exactly once and keeps
its ports.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.rpc import InternalClient
from pyservice.runtime.run_folder import RunFolder
from tests.support import container_images, game_programs
from tests.support.full_service import Developer, FullService, eventually
from tests.support.upload_files import put

STUBBORN: Final = ("sh", "-c", "trap '' TERM; exec sleep 3600")
_ARCHIVE: Final = "archive"
_BUNDLE: Final = "oci_bundle"

_ENDED = ("stopping", "destroyed")


class RunningServers:
    def __init__(self, developer: Developer, game_id: str) -> None:
        self._developer = developer
        self._game_id = game_id
        self._environment: dict[str, Any] = {"game_id": game_id, "environment_id": "prod"}
        self._builds: dict[str, str] = {}
        self._build_id = ""
        self.of_other_games: set[str] = set()
        """Servers of other games, which the checks leave out."""

    async def prepare(self) -> None:
        await self._choose(_ARCHIVE)

    async def prepare_new(self) -> None:
        self._builds.pop(_ARCHIVE, None)
        await self._choose(_ARCHIVE)

    async def prepare_contained(self) -> None:
        await self._choose(_BUNDLE)

    async def _choose(self, kind: str) -> None:
        if kind not in self._builds:
            self._builds[kind] = await self._build(kind)
        self._build_id = self._builds[kind]
        await self.check()

    async def _build(self, kind: str) -> str:
        content = (
            container_images.bundle()
            if kind == _BUNDLE
            else game_programs.server_archive(*STUBBORN)
        )
        image = {"path": "server.tar", "content_length": len(content)}
        fields: dict[str, Any] = {"display_name": "server", "image_file": image, "kind": kind}
        response = await self._developer.good("create_game_build", game_id=self._game_id, **fields)
        assert (await put(response["image_presigned_request"], content)).status_code == 200
        await self._developer.good("complete_upload", upload_id=response["upload_id"])
        return str(response["build_id"])

    def request(self) -> dict[str, Any]:
        return {
            **self._environment,
            "datacenter": "local",
            "network": {"ports": {"game": {"protocol": "tcp"}}},
            "resources": {"cpu": 10, "memory": 16},
            "runtime": {"build": self._build_id, "environment": {"PLAY": "ignore-sigterm"}},
            "tags": {"name": uuid4().hex},
        }

    async def add(self, *, is_contained: bool = False) -> str:
        await (self.prepare_contained() if is_contained else self.prepare())
        response = await self._developer.good("create_server", **self.request())
        await self.check()
        return str(response["server"]["id"])

    async def add_of_new_build(self) -> str:
        """Creates a server of a new build, and waits until it runs. Its end takes no time."""
        self._build_id = await self._build(_ARCHIVE)
        request = {**self.request(), "lifecycle": {"kill_timeout": 0}}
        response = await self._developer.good("create_server", **request)
        server_id = str(response["server"]["id"])

        async def is_running() -> bool:
            return server_id in processes_of_runs(self._developer.full_service)

        await eventually(is_running)
        return server_id

    async def check(self) -> None:
        try:
            await eventually(self._match_the_request)
        except AssertionError:
            raise AssertionError(await self._differences()) from None

    async def _match_the_request(self) -> bool:
        return not any((await self._differences()).values())

    async def _differences(self) -> dict[str, Any]:
        statuses = await self._statuses()
        expected = {one for one in statuses if statuses[one] not in _ENDED}
        processes = processes_of_runs(self._developer.full_service)
        others = self.of_other_games
        return {
            "not running as desired": expected
            ^ {one for one in statuses if statuses[one] == "running"},
            "kept": expected ^ (self._kept() - others),
            "leased": expected ^ (await self._leased() - others),
            "processes": expected ^ (processes.keys() - others),
            "twice": {one for one, count in processes.items() if count > 1},
        }

    async def has_begun(self, server_id: str) -> bool:
        """Returns whether a server has a process, the lease of its ports, and a kept run folder."""
        processes = processes_of_runs(self._developer.full_service)
        held = {*processes, *self._kept(), *await self._leased()}
        return server_id in held

    @property
    def _servers(self) -> Path:
        return self._developer.full_service.data_dir / "servers"

    async def _leased(self) -> set[str]:
        async with InternalClient(self._developer.full_service.data_dir / "admin.sock") as client:
            requested = runtime_pb2.LeasesRequest()
            return set(
                (await client.call("hosting.internal.v1.Runtime.Leases", requested)).server_ids
            )

    def _kept(self) -> set[str]:
        folders = self._servers.iterdir()
        return {path.name for path in folders if path.is_dir() and RunFolder(path).is_kept()}

    async def _statuses(self) -> dict[str, str]:
        page = await self._developer.good(
            "list_servers", **self._environment, include_destroyed=True
        )
        assert "cursor" not in page
        return {one["id"]: one["status"] for one in page["servers"]}


def processes_of_runs(full_service: FullService) -> Counter[str]:
    """Counts processes by run id, without keepers and container runtimes."""
    api_url = f"http://{full_service.ready['http']}"
    counts = Counter[str]()
    for path in Path("/proc").glob("[0-9]*"):
        # The process may end during the read.
        with contextlib.suppress(OSError):
            words = (path / "environ").read_text("utf-8", "replace").split("\0")
            pairs = (word.partition("=") for word in words)
            variables = {name: value for name, _, value in pairs}
            if variables.get("HOSTING_API_URL") == api_url:
                run_id = variables.get("HOSTING_SERVER_ID") or variables["HOSTING_LOBBY_ID"]
                counts[run_id] += 1
    return counts
