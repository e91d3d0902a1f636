"""Captcha and verification before a place: how each of their refusals comes about, in find, join and create alike."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.admission_servers import HUMAN, ROBOT, UNJUDGED
from tests.contract.error_cases import error_case
from tests.contract.scenario import VERIFIED, Lobby, Scenario
from tests.support.data_plane_service import GAME

# Captcha ------------------------------------------------------------------------------------------


def guarded_lobby(scenario: Scenario) -> Lobby:
    """The scenario's lobby in the namespace whose version asks for a captcha."""

    def attach() -> Lobby:
        made = scenario.good(
            "attach",
            path={"game_id": GAME, "namespace_id": "guarded"},
            bearer=scenario.world.environment_tokens["guarded"],
            fields={"game_mode": "duel", "tags": {"scenario": scenario.name}},
        )
        lobby = Lobby(made["lobby_id"], made["lobby_token"])
        scenario.good("ready", bearer=lobby.token, token=None)
        return lobby

    found: Lobby = scenario.once("guarded lobby", attach)
    return found


def ask_guarded(scenario: Scenario, slug: str, captcha: Any = None) -> httpx.Response:
    """A find or a join of the scenario's guarded lobby, or one more lobby, with an answer of the client."""
    fields: dict[str, Any] = {"captcha": captcha}
    if slug == "find":
        guarded_lobby(scenario)
        fields |= {"game_modes": ["duel"], "tags": {"scenario": scenario.name}}
    elif slug == "join":
        fields |= {"lobby_id": guarded_lobby(scenario).id, "party_size": None}
    return scenario.call(slug, bearer=scenario.world.guarded_public_token, fields=fields)


def _captcha(slug: str) -> None:
    @error_case(slug, "CAPTCHA_REQUIRED")
    def _(scenario: Scenario) -> httpx.Response:
        """Who shows an answer is let in, so it is the captcha that is in the way."""
        assert ask_guarded(scenario, slug, HUMAN).status_code == 200
        answer = ask_guarded(scenario, slug)
        told = answer.json()["metadata"]
        assert told == {"provider": "captcha_a", "site_key": "site-a"}
        return answer

    @error_case(slug, "CAPTCHA_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return ask_guarded(scenario, slug, ROBOT)


# Verification -------------------------------------------------------------------------------------


def ask_verified(scenario: Scenario, slug: str, mode: str) -> httpx.Response:
    """A find, a join or a create of a lobby whose game server is asked, which has to be so."""
    if slug == "create":
        fields: dict[str, Any] = {"game_mode": mode, "publicity": None}
    elif slug == "find":
        scenario.attach(mode)
        fields = {"game_modes": [mode], "tags": {"scenario": scenario.name}}
    else:
        fields = {"lobby_id": scenario.attach(mode).id, "party_size": None}
    server = scenario.world.admission_servers.game_server
    before = len(server.asked)
    answer = scenario.call(slug, fields=fields)
    assert server.asked[before:] == [f"/{VERIFIED[mode]}"], answer.text
    return answer


def _verification(slug: str) -> None:
    @error_case(slug, "MATCHMAKER_VERIFICATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        assert ask_verified(scenario, slug, "allowed").status_code == 200
        return ask_verified(scenario, slug, "denied")

    @error_case(slug, "MATCHMAKER_VERIFICATION_UNAVAILABLE")
    def _(scenario: Scenario) -> httpx.Response:
        """A captcha provider that is broken is told with the same code."""
        told = ask_guarded(scenario, slug, UNJUDGED)
        assert told.status_code == 502, told.text
        assert told.json()["code"] == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
        return ask_verified(scenario, slug, "unanswered")


for _slug in ("find", "join", "create"):
    _captcha(_slug)
    _verification(_slug)
