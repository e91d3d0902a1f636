"""Lobbies that the service starts as processes: how each refusal of create comes about, and what of find and join no
attached lobby can show.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import httpx

from tests.contract.areas.matchmaker import WAIT_S, detach, find, join, tagged
from tests.contract.provocations import elsewhere, provokes
from tests.contract.scene import SOURCE_LIMIT, Lobby, Scene

# create -------------------------------------------------------------------------------------------


def create(scene: Scene, mode: str = "hosted", **fields: Any) -> httpx.Response:
    return scene.call("create", fields={"game_mode": mode, "publicity": None, **fields})


@provokes("create", "MATCHMAKER_GAME_MODE_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "nothing")


@provokes("create", "MATCHMAKER_REGION_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return create(scene, region="nowhere")


@provokes("create", "MATCHMAKER_CREATE_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "duel")


@provokes("create", "MATCHMAKER_REGION_NOT_ENABLED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "elsewhere", region="local")


@provokes("create", "MATCHMAKER_TAGS_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "quiet", tags={"a": "b"})


@provokes("create", "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "quiet", max_players=2)


@provokes("create", "MATCHMAKER_PUBLICITY_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "quiet", publicity="public")


@provokes("create", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach("crowd")
    assert join(scene, lobby, party_size=SOURCE_LIMIT).status_code == 200
    return create(scene)


@provokes("create", "CAPACITY_EXHAUSTED")
def _(scene: Scene) -> httpx.Response:
    """Its mode has no image. `test_sweeps` shows it for one that nobody would start."""
    return create(scene, "empty")


@provokes("create", "DEADLINE_EXCEEDED")
def _(scene: Scene) -> httpx.Response:
    return create(scene, "mute")


@provokes("create", "MATCHMAKER_LOBBY_STOPPED")
def _(scene: Scene) -> httpx.Response:
    """A repetition gives the same lobby, which has ended meanwhile."""
    again = {"headers": {"idempotency-key": scene.name}}
    made = scene.good("create", **again)["lobby"]["lobby_id"]
    assert scene.good("create", **again)["lobby"]["lobby_id"] == made
    detach(scene, Lobby(made, ""))
    end = time.monotonic() + WAIT_S
    # Its process has its time to say goodbye.
    while (answer := scene.call("create", **again)).status_code == 200:
        assert time.monotonic() < end, "it does not end"
    return answer


@provokes("create", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    scene.good("create", headers=key)
    return scene.call("create", headers=key, fields={"party_size": 2})


# find and create ----------------------------------------------------------------------------------


def make(scene: Scene, slug: str, mode: str, **changes: Any) -> httpx.Response:
    """A find or a create that has to have a new lobby."""
    asked = {"game_mode": mode} if slug == "create" else {"game_modes": [mode]}
    return scene.call(slug, fields={**asked, "tags": tagged(scene)}, **changes)


def _making(slug: str) -> None:
    @provokes(slug, "MATCHMAKER_TOO_MANY_LOBBIES")
    def _(scene: Scene) -> httpx.Response:
        """Where one may be, and is."""
        token = scene.world.environment_tokens["small"]
        scene.call("attach", bearer=token, path={"namespace_id": "small"})
        return make(scene, slug, "hosted", bearer=token)

    @provokes(slug, "MATCHMAKER_LOBBY_START_FAILED")
    def _(scene: Scene) -> httpx.Response:
        answer = make(scene, slug, "broken")
        told = answer.json()["metadata"]
        assert (told["reason"], told["exit_code"]) == ("exited", "3")
        return answer

    elsewhere(
        slug,
        "PORTS_EXHAUSTED",
        "tests/dataplane/test_edge_routes.py::test_exhausted_ports_create_no_lobby",
        "there are 6,000 ports of either family, and no setting makes them fewer",
    )


for _slug in ("find", "create"):
    _making(_slug)


# join ---------------------------------------------------------------------------------------------


@provokes("join", "MATCHMAKER_LOBBY_DRAINING")
def _(scene: Scene) -> httpx.Response:
    """Its one player has left, so it is to stop, and does not listen."""
    found = find(scene, "deaf", tags=tagged(scene))
    assert found.status_code == 200, found.text
    told = found.json()
    lobby = Lobby(told["lobby"]["lobby_id"], "")
    assert is_listed(scene, lobby)
    visit(told["ports"]["game"], told["player"]["token"])
    end = time.monotonic() + WAIT_S
    while is_listed(scene, lobby):
        assert time.monotonic() < end, "an empty lobby goes on"
        time.sleep(0.02)
    return join(scene, lobby)


def visit(port: Any, player_token: str) -> None:
    """A player comes to the game server, hears from it, and leaves."""
    with socket.create_connection((port["hostname"], port["port"]), WAIT_S) as connection:
        connection.sendall(player_token.encode())
        assert connection.recv(65_536) == player_token.encode()


def is_listed(scene: Scene, lobby: Lobby) -> bool:
    return lobby.id in {one["lobby_id"] for one in scene.good("list")["lobbies"]}
