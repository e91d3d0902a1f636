"""The matchmaker: its lobbies, players and tokens, and how each of its refusals comes about."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.contract.provocations import provokes
from tests.contract.scene import SOURCE_LIMIT, Lobby, Scene, before, credential, place

WAIT_S = 20.0


# What scenes need ---------------------------------------------------------------------------------


@credential("pub")
def _(scene: Scene) -> str:
    return scene.world.public_token


@credential("env")
def _(scene: Scene) -> str:
    return scene.world.environment_tokens["prod"]


@credential("lobby")
def _(scene: Scene) -> str:
    return scene.lobby.token


@place("lobby_id")
def _(scene: Scene) -> str:
    return scene.lobby.id


@place("player_token")
def _(scene: Scene) -> str:
    return joined(scene, scene.lobby)


@before("find")
def _(scene: Scene) -> Lobby:
    return scene.lobby


def joined(scene: Scene, lobby: Lobby, **fields: Any) -> str:
    """The token of a new player in a lobby."""
    wanted = {"lobby_id": lobby.id, "party_size": None, **fields}
    return str(scene.good("join", fields=wanted)["player"]["token"])


def detach(scene: Scene, lobby: Lobby) -> None:
    scene.good("detach", path={"lobby_id": lobby.id})


def ended(scene: Scene) -> Lobby:
    """A lobby that was, a moment ago."""
    lobby = scene.attach()
    detach(scene, lobby)
    return lobby


def served(scene: Scene, slug: str, lobby: Lobby, **changes: Any) -> httpx.Response:
    """A lobby server's call for its lobby."""
    return scene.call(slug, bearer=lobby.token, token=None, **changes)


def while_it_starts(scene: Scene, lobby: Lobby, slug: str, **changes: Any) -> httpx.Response:
    """The answer to a call that waits for a lobby that starts, and ends while it waits."""
    request = scene.request(slug, **changes)
    before_it = held(scene)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.service.client.send, request)
        end = time.monotonic() + WAIT_S
        while held(scene) <= before_it and not waiting.done():
            assert time.monotonic() < end, "nobody waits for the lobby"
        detach(scene, lobby)
        return waiting.result(WAIT_S)


def held(scene: Scene) -> float:
    """Places that are held for calls that wait."""
    lines = scene.service.probe("/metrics").text.splitlines()
    slots = [line for line in lines if line.startswith("hosting_slots{") and '"held"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in slots)


# find ---------------------------------------------------------------------------------------------


def find(scene: Scene, mode: str, **fields: Any) -> httpx.Response:
    return scene.call("find", fields={"game_modes": [mode], **fields})


def tagged(scene: Scene) -> dict[str, str]:
    """The tag that only lobbies of the scene have."""
    return {"scene": scene.name}


@provokes("find", "MATCHMAKER_GAME_MODE_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "nothing")


@provokes("find", "MATCHMAKER_REGION_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "duel", regions=["nowhere"])


@provokes("find", "MATCHMAKER_FIND_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "invited")


@provokes("find", "MATCHMAKER_REGION_NOT_ENABLED")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "elsewhere", regions=["local"])


@provokes("find", "MATCHMAKER_TAGS_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "quiet", tags={"a": "b"})


@provokes("find", "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "duel", max_players=2)


@provokes("find", "MATCHMAKER_NO_AVAILABLE_LOBBIES")
def _(scene: Scene) -> httpx.Response:
    return find(scene, "empty")


@provokes("find", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scene: Scene) -> httpx.Response:
    scene.attach("crowd")
    crowd: dict[str, Any] = {"mode": "crowd", "party_size": SOURCE_LIMIT, "tags": tagged(scene)}
    assert find(scene, **crowd).status_code == 200
    return find(scene, **crowd)


@provokes("find", "DEADLINE_EXCEEDED")
def _(scene: Scene) -> httpx.Response:
    scene.attach("pair", is_ready=False)
    return find(scene, "pair", tags=tagged(scene))


@provokes("find", "MATCHMAKER_LOBBY_STOPPED")
def _(scene: Scene) -> httpx.Response:
    """A repetition gives the same lobby, which has ended meanwhile."""
    lobby = scene.attach("pair")
    again = {
        "fields": {"game_modes": ["pair"], "tags": tagged(scene)},
        "headers": {"idempotency-key": scene.name},
    }
    assert scene.good("find", **again)["lobby"]["lobby_id"] == lobby.id
    detach(scene, lobby)
    return scene.call("find", **again)


@provokes("find", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    scene.good("find", headers=key)
    return scene.call("find", headers=key, fields={"party_size": 2})


# join ---------------------------------------------------------------------------------------------


def join(scene: Scene, lobby: Lobby, **fields: Any) -> httpx.Response:
    return scene.call("join", fields={"lobby_id": lobby.id, "party_size": None, **fields})


@provokes("join", "MATCHMAKER_LOBBY_STOPPED")
def _(scene: Scene) -> httpx.Response:
    return join(scene, ended(scene))


@provokes("join", "MATCHMAKER_JOIN_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return join(scene, scene.attach("public"))


@provokes("join", "MATCHMAKER_LOBBY_CLOSED")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach()
    assert served(scene, "closed", lobby).status_code == 200
    return join(scene, lobby)


@provokes("join", "MATCHMAKER_LOBBY_FULL")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach("pair")
    joined(scene, lobby, party_size=2)
    return join(scene, lobby)


@provokes("join", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach("crowd")
    joined(scene, lobby, party_size=SOURCE_LIMIT)
    return join(scene, lobby)


@provokes("join", "MATCHMAKER_LOBBY_START_FAILED")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach("pair", is_ready=False)
    return while_it_starts(scene, lobby, "join", fields={"lobby_id": lobby.id})


@provokes("join", "DEADLINE_EXCEEDED")
def _(scene: Scene) -> httpx.Response:
    return join(scene, scene.attach("pair", is_ready=False))


@provokes("join", "PLAYER_TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    return join(scene, scene.lobby, rejoin_token="player_AAAA")


@provokes("join", "PLAYER_TOKEN_WRONG_LOBBY")
def _(scene: Scene) -> httpx.Response:
    return join(scene, scene.attach(), rejoin_token=scene.value("player_token"))


@provokes("join", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    scene.good("join", headers=key)
    return scene.call("join", headers=key, fields={"party_size": 2})
