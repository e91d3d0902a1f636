"""Error cases of captcha and verification in find, join and create."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.admission_servers import HUMAN, ROBOT, UNJUDGED
from tests.contract.error_cases import error_case
from tests.contract.scenario import VERIFIED, Lobby, Scenario
from tests.support.data_plane_service import GAME


def guarded_lobby(scenario: Scenario) -> Lobby:
    def attach() -> Lobby:
        response = scenario.good(
            "attach",
            path={"game_id": GAME, "namespace_id": "guarded"},
            bearer=scenario.served_game.service_tokens["guarded"],
            fields={"game_mode": "duel", "tags": {"scenario": scenario.name}},
        )
        lobby = Lobby(response["lobby_id"], response["lobby_token"])
        scenario.good("ready", bearer=lobby.token, token=None)
        return lobby

    guarded: Lobby = scenario.once("guarded lobby", attach)
    return guarded


def ask_guarded(scenario: Scenario, slug: str, captcha: Any = None) -> httpx.Response:
    fields: dict[str, Any] = {"captcha": captcha}
    if slug == "find":
        guarded_lobby(scenario)
        fields |= {"game_modes": ["duel"], "tags": {"scenario": scenario.name}}
    elif slug == "join":
        fields |= {"lobby_id": guarded_lobby(scenario).id, "party_size": None}
    return scenario.call(slug, bearer=scenario.served_game.guarded_public_token, fields=fields)


def _captcha(slug: str) -> None:
    @error_case(slug, "CAPTCHA_REQUIRED")
    def _(scenario: Scenario) -> httpx.Response:
        """Only the captcha response is missing: the same request with a captcha response succeeds."""
        assert ask_guarded(scenario, slug, HUMAN).status_code == 200
        answer = ask_guarded(scenario, slug)
        returned = answer.json()["metadata"]
        assert returned == {"provider": "captcha_a", "site_key": "site-a"}
        return answer

    @error_case(slug, "CAPTCHA_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return ask_guarded(scenario, slug, ROBOT)


def ask_verified(scenario: Scenario, slug: str, mode: str) -> httpx.Response:
    if slug == "create":
        fields: dict[str, Any] = {"game_mode": mode, "publicity": None}
    elif slug == "find":
        scenario.attach(mode)
        fields = {"game_modes": [mode], "tags": {"scenario": scenario.name}}
    else:
        fields = {"lobby_id": scenario.attach(mode).id, "party_size": None}
    server = scenario.served_game.admission_servers.game_server
    before = len(server.paths)
    answer = scenario.call(slug, fields=fields)
    assert server.paths[before:] == [f"/{VERIFIED[mode]}"], answer.text
    return answer


def _verification(slug: str) -> None:
    @error_case(slug, "MATCHMAKER_VERIFICATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        assert ask_verified(scenario, slug, "allowed").status_code == 200
        return ask_verified(scenario, slug, "denied")

    @error_case(slug, "MATCHMAKER_VERIFICATION_UNAVAILABLE")
    def _(scenario: Scenario) -> httpx.Response:
        """A request with a broken captcha provider returns the same code as a failed verification."""
        returned = ask_guarded(scenario, slug, UNJUDGED)
        assert returned.status_code == 502, returned.text
        assert returned.json()["code"] == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
        return ask_verified(scenario, slug, "unanswered")


for _slug in ("find", "join", "create"):
    _captcha(_slug)
    _verification(_slug)
