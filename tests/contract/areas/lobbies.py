"""What lobby servers and back ends say of lobbies and players, and how each of it is refused."""

from __future__ import annotations

import time

import httpx

from tests.contract.areas.matchmaker import WAIT_S, detach, ended, join, joined, served, tagged
from tests.contract.provocations import provokes
from tests.contract.scene import Lobby, Scene

# Players ------------------------------------------------------------------------------------------


def connected(scene: Scene, lobby: Lobby, token: str) -> httpx.Response:
    return served(scene, "connected", lobby, fields={"player_token": token})


@provokes("connected", "PLAYER_TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    return connected(scene, scene.lobby, "player_AAAA")


@provokes("connected", "PLAYER_TOKEN_WRONG_LOBBY")
def _(scene: Scene) -> httpx.Response:
    return connected(scene, scene.attach(), scene.value("player_token"))


@provokes("connected", "PLAYER_REMOVED")
def _(scene: Scene) -> httpx.Response:
    lobby = scene.attach()
    token = joined(scene, lobby)
    detach(scene, lobby)
    return connected(scene, lobby, token)


@provokes("connected", "PLAYER_TOKEN_CONSUMED")
def _(scene: Scene) -> httpx.Response:
    assert connected(scene, scene.lobby, scene.value("player_token")).status_code == 200
    return connected(scene, scene.lobby, scene.value("player_token"))


@provokes("connected", "PLAYER_TOKEN_EXPIRED")
def _(scene: Scene) -> httpx.Response:
    """Two places, both taken; who gets the third was let in because the first token expired."""
    lobby = scene.attach("quick")
    second = joined(scene, lobby)
    assert connected(scene, lobby, second).status_code == 200
    first = joined(scene, lobby)
    end = time.monotonic() + WAIT_S
    while join(scene, lobby).status_code != 200:
        assert time.monotonic() < end, "the token does not expire"
    return connected(scene, lobby, first)


@provokes("connected", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    other = joined(scene, scene.lobby)
    assert scene.call("connected", headers=key).status_code == 200
    return scene.call("connected", headers=key, fields={"player_token": other})


@provokes("disconnected", "PLAYER_TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    return scene.call("disconnected", fields={"player_token": "player_AAAA"})


@provokes("disconnected", "PLAYER_TOKEN_WRONG_LOBBY")
def _(scene: Scene) -> httpx.Response:
    token = scene.value("player_token")
    return served(scene, "disconnected", scene.attach(), fields={"player_token": token})


@provokes("disconnected", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    other = joined(scene, scene.lobby)
    assert scene.call("disconnected", headers=key).status_code == 200
    return scene.call("disconnected", headers=key, fields={"player_token": other})


# Lobby servers ------------------------------------------------------------------------------------


def _after_its_end(slug: str) -> None:
    @provokes(slug, "MATCHMAKER_LOBBY_STOPPED")
    def _(scene: Scene) -> httpx.Response:
        return served(scene, slug, ended(scene))


for _slug in ("ready", "closed", "set_state", "heartbeat"):
    _after_its_end(_slug)


@provokes("get_state", "MATCHMAKER_LOBBY_STOPPED")
def _(scene: Scene) -> httpx.Response:
    return scene.call("get_state", token="env", path={"lobby_id": ended(scene).id})


# Operators ----------------------------------------------------------------------------------------


@provokes("attach", "MATCHMAKER_GAME_MODE_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return scene.call("attach", fields={"game_mode": "nothing"})


@provokes("attach", "MATCHMAKER_REGION_NOT_FOUND")
def _(scene: Scene) -> httpx.Response:
    return scene.call("attach", fields={"region": "nowhere"})


@provokes("attach", "MATCHMAKER_TAGS_DISABLED")
def _(scene: Scene) -> httpx.Response:
    return scene.call("attach", fields={"game_mode": "quiet", "tags": {"a": "b"}})


@provokes("attach", "MATCHMAKER_REGION_NOT_ENABLED")
def _(scene: Scene) -> httpx.Response:
    return scene.call("attach", fields={"game_mode": "elsewhere", "region": "local"})


@provokes("attach", "MATCHMAKER_TOO_MANY_LOBBIES")
def _(scene: Scene) -> httpx.Response:
    small = {"bearer": scene.world.environment_tokens["small"], "path": {"namespace_id": "small"}}
    scene.call("attach", **small)
    return scene.call("attach", **small)


@provokes("attach", "IDEMPOTENCY_KEY_REUSED")
def _(scene: Scene) -> httpx.Response:
    key = {"idempotency-key": scene.name}
    scene.good("attach", headers=key)
    return scene.call("attach", headers=key, fields={"tags": tagged(scene)})
