"""Dynamic servers: what their operations need, and how each refusal of create comes about."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests import programs
from tests.contract.provocations import elsewhere, provokes
from tests.contract.scene import Scene, before, place
from tests.support.data_plane_service import GAME

# What scenes need ---------------------------------------------------------------------------------

_BRIEF: Final = ("true",)
_PATIENT: Final = ("sh", "-c", "exec sleep 3600")
"""What a server runs: one that is over at once, as nobody ends those that examples make, and one that waits."""


def _build(scene: Scene, name: str, command: tuple[str, ...]) -> str:
    def made() -> str:
        archive = programs.server_archive(*command)
        return programs.upload_build(scene.world.cloud, GAME, archive, name)

    return scene.world.once(f"{name} build", made)


@place("environment_id", "Servers")
def _(scene: Scene) -> str:
    """The one that the scenes' service token is for."""
    return "prod"


@place("build_id", "Servers")
def _(scene: Scene) -> str:
    return _build(scene, "brief", _BRIEF)


def _server(scene: Scene) -> str:
    """It runs until it is ended."""
    runtime = {"build": _build(scene, "patient", _PATIENT)}
    small = {"cpu": 10, "memory": 16}
    made = scene.good("create_server", fields={"runtime": runtime, "resources": small})
    return str(made["server"]["id"])


@before("destroy_server")
def _(scene: Scene) -> str:
    """One for the scene alone."""
    return str(scene.once("server", lambda: _server(scene)))


@place("server_id")
def _(scene: Scene) -> str:
    return str(scene.once("server", lambda: scene.world.once("server", lambda: _server(scene))))


# Codes --------------------------------------------------------------------------------------------


def create(scene: Scene, **fields: Any) -> httpx.Response:
    return scene.call("create_server", fields=fields)


@provokes("create_server", "REGION_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return create(scene, datacenter="nowhere")


@provokes("create_server", "VALIDATION_FAILED")
def _(scene: Scene) -> httpx.Response:
    """Of a build that nobody has."""
    return create(scene, runtime={"build": scene.world.version_id})


@provokes("create_server", "CAPACITY_EXHAUSTED")
def _(scene: Scene) -> httpx.Response:
    """More than the node has, whatever runs on it."""
    most = {"cpu": programs.SETTINGS["cpu_millicores"], "memory": 524_288}
    return create(scene, resources=most)


elsewhere(
    "create_server",
    "PORTS_EXHAUSTED",
    "tests/dataplane/test_edge_routes.py::test_exhausted_ports_create_no_lobby",
    "there are 6,000 ports of either family, and no setting makes them fewer",
)


@provokes("list_servers", "QUERY_INVALID")
def _(scene: Scene) -> httpx.Response:
    return scene.call("list_servers", query={"tags_json": "[]"})


def _another_message(slug: str, **changes: Any) -> None:
    """Under the key of the example, which a back end asked for."""

    @provokes(slug, "IDEMPOTENCY_KEY_REUSED")
    def _(scene: Scene) -> httpx.Response:
        key = {"idempotency-key": scene.name}
        scene.good(slug, headers=key)
        return scene.call(slug, headers=key, **changes)


_another_message("create_server", fields={"tags": {"mode": "other"}})
_another_message("destroy_server", query={"override_kill_timeout": "4000"})
