"""Deployment of a game with a cloud token. A repeated deployment skips finished steps."""

from __future__ import annotations

import asyncio
import hashlib
import json
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from examples.arena.hosting import HostingClient, ServiceAway

PATIENCE_S = 20.0
PAUSE_S = 0.2
UPLOAD_TIMEOUT_S = 60.0


class Deployment:
    """Deployment of one game. Raises `ServiceRefused`, or `TimeoutError` without a response."""

    def __init__(self, developer: HostingClient, game: str, namespace: str) -> None:
        self._developer = developer
        self._game = game
        self._namespace = namespace

    async def ensure_game(self, group_id: str, display_name: str) -> None:
        games = (await self._call("GET", "/cloud/games"))["games"]
        if all(game["name_id"] != self._game for game in games):
            body = {
                "developer_group_id": group_id,
                "display_name": display_name,
                "name_id": self._game,
            }
            await self._call("POST", "/cloud/games", body)

    async def ensure_build(self, name: str, archive: bytes) -> str:
        """Returns the id of the build with this name. Uploads the archive if there is none."""
        path = f"/cloud/games/{self._game}/builds"
        for build in (await self._call("GET", path))["builds"]:
            if build["display_name"] == name and build["complete"]:
                return str(build["build_id"])
        file = {
            "path": "server.tar",
            "content_length": len(archive),
            "sha256": hashlib.sha256(archive).hexdigest(),
        }
        response = await self._call("POST", path, {"display_name": name, "image_file": file})
        await put(response["image_presigned_request"]["url"], archive)
        await self._complete(response["upload_id"])
        return str(response["build_id"])

    async def ensure_site(self, name: str, files: Mapping[str, tuple[bytes, str]]) -> str:
        """Returns the id of the site with this name. Uploads the files if there is none."""
        path = f"/cloud/games/{self._game}/cdn/sites"
        for site in (await self._call("GET", path))["sites"]:
            if site["display_name"] == name and site["complete"]:
                return str(site["site_id"])
        listed = [
            {"path": path, "content_length": len(content), "content_type": kind}
            for path, (content, kind) in files.items()
        ]
        response = await self._call("POST", path, {"display_name": name, "files": listed})
        for request in response["presigned_requests"]:
            await put(request["url"], files[request["path"]][0])
        await self._complete(response["upload_id"])
        return str(response["site_id"])

    async def deploy(self, version: str, config: dict[str, Any]) -> None:
        version_id = await self._ensure_version(version, config)
        path = f"/cloud/games/{self._game}/namespaces/{self._namespace}/version"
        await self._call("PUT", path, {"version_id": version_id})

    async def token(self, kind: str) -> str:
        paths = {
            "public": f"/cloud/games/{self._game}/namespaces/{self._namespace}/tokens/public",
            "environment": f"/games/{self._game}/environments/{self._namespace}/tokens/service",
        }
        return str((await self._call("POST", paths[kind], {}))["token"])

    async def _ensure_version(self, name: str, config: dict[str, Any]) -> str:
        path = f"/cloud/games/{self._game}/versions"
        for version in (await self._call("GET", path))["versions"]:
            if version["display_name"] == name:
                return str(version["version_id"])
        body = {"display_name": name, "config": config}
        return str((await self._call("POST", path, body))["version_id"])

    async def _complete(self, upload_id: str) -> None:
        await self._call("POST", f"/cloud/uploads/{upload_id}/complete", {})

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
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


async def put(url: str, content: bytes) -> None:
    request = urllib.request.Request(url, content, method="PUT")
    await asyncio.to_thread(_send, request)


def _send(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=UPLOAD_TIMEOUT_S):
        pass
