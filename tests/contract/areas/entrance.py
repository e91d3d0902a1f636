"""Captcha and verification before a place: how each of their refusals comes about, in find, join and create alike."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.gates import HUMAN, ROBOT, UNJUDGED
from tests.contract.provocations import provokes
from tests.contract.scene import VERIFIED, Lobby, Scene
from tests.support.data_plane_service import GAME

# Captcha ------------------------------------------------------------------------------------------


def guarded_lobby(scene: Scene) -> Lobby:
    """The scene's lobby in the namespace whose version asks for a captcha."""

    def attach() -> Lobby:
        made = scene.good(
            "attach",
            path={"game_id": GAME, "namespace_id": "guarded"},
            bearer=scene.world.environment_tokens["guarded"],
            fields={"game_mode": "duel", "tags": {"scene": scene.name}},
        )
        lobby = Lobby(made["lobby_id"], made["lobby_token"])
        scene.good("ready", bearer=lobby.token, token=None)
        return lobby

    found: Lobby = scene.once("guarded lobby", attach)
    return found


def ask_guarded(scene: Scene, slug: str, captcha: Any = None) -> httpx.Response:
    """A find or a join of the scene's guarded lobby, or one more lobby, with an answer of the client."""
    fields: dict[str, Any] = {"captcha": captcha}
    if slug == "find":
        guarded_lobby(scene)
        fields |= {"game_modes": ["duel"], "tags": {"scene": scene.name}}
    elif slug == "join":
        fields |= {"lobby_id": guarded_lobby(scene).id, "party_size": None}
    return scene.call(slug, bearer=scene.world.guarded_public_token, fields=fields)


def _captcha(slug: str) -> None:
    @provokes(slug, "CAPTCHA_REQUIRED")
    def _(scene: Scene) -> httpx.Response:
        """Who shows an answer is let in, so it is the captcha that is in the way."""
        assert ask_guarded(scene, slug, HUMAN).status_code == 200
        answer = ask_guarded(scene, slug)
        told = answer.json()["metadata"]
        assert told == {"provider": "captcha_a", "site_key": "site-a"}
        return answer

    @provokes(slug, "CAPTCHA_FAILED")
    def _(scene: Scene) -> httpx.Response:
        return ask_guarded(scene, slug, ROBOT)


# Verification -------------------------------------------------------------------------------------


def ask_verified(scene: Scene, slug: str, mode: str) -> httpx.Response:
    """A find, a join or a create of a lobby whose game server is asked, which has to be so."""
    if slug == "create":
        fields: dict[str, Any] = {"game_mode": mode, "publicity": None}
    elif slug == "find":
        scene.attach(mode)
        fields = {"game_modes": [mode], "tags": {"scene": scene.name}}
    else:
        fields = {"lobby_id": scene.attach(mode).id, "party_size": None}
    server = scene.world.gates.game_server
    before = len(server.asked)
    answer = scene.call(slug, fields=fields)
    assert server.asked[before:] == [f"/{VERIFIED[mode]}"], answer.text
    return answer


def _verification(slug: str) -> None:
    @provokes(slug, "MATCHMAKER_VERIFICATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        assert ask_verified(scene, slug, "allowed").status_code == 200
        return ask_verified(scene, slug, "denied")

    @provokes(slug, "MATCHMAKER_VERIFICATION_UNAVAILABLE")
    def _(scene: Scene) -> httpx.Response:
        """A captcha provider that is broken is told with the same code."""
        told = ask_guarded(scene, slug, UNJUDGED)
        assert told.status_code == 502, told.text
        assert told.json()["code"] == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
        return ask_verified(scene, slug, "unanswered")


for _slug in ("find", "join", "create"):
    _captcha(_slug)
    _verification(_slug)
