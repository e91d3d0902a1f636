"""What is told of what happened: lobbies of the past, rays, datacenters."""

from __future__ import annotations

import secrets
from typing import Any

import httpx

from tests.app.household import until
from tests.contract.provocations import provokes
from tests.contract.scene import Scene, place
from tests.support.data_plane_service import GAME


@place("environment_id", "Platform")
def _(scene: Scene) -> str:
    """The one that the scenes' service token is for."""
    return "prod"


@place("namespace_id", "Logs")
def _(scene: Scene) -> str:
    """The one of the scenes' lobbies."""
    return "prod"


def _asked(scene: Scene, path: str) -> Any:
    return scene.service.ask("GET", path, None, scene.world.cloud_token)


@place("lobby_id", "Logs")
def _(scene: Scene) -> str:
    """One that the control plane has heard of."""

    def made() -> str:
        lobby = scene.lobby
        path = f"/cloud/games/{GAME}/namespaces/prod/logs/lobbies/{lobby.id}"
        until(lambda: _asked(scene, path).status_code == 200)
        return lobby.id

    return scene.world.once("recorded lobby", made)


@place("ray_id")
def _(scene: Scene) -> str:
    """Of a request whose client wants to know."""

    def made() -> str:
        ray_id = secrets.token_hex(16)
        trace = {"traceparent": f"00-{ray_id}-{secrets.token_hex(8)}-00"}
        assert scene.call("regions", headers=trace).headers["x-ray-id"] == ray_id
        until(lambda: _asked(scene, f"/cloud/rays/{ray_id}/perf").json()["perf_lists"])
        return ray_id

    return scene.world.once("ray", made)


@provokes("export_lobby_history", "VALIDATION_FAILED")
def _(scene: Scene) -> httpx.Response:
    """Its end is before its begin."""
    return scene.call("export_lobby_history", fields={"query_start": 2, "query_end": 1})
