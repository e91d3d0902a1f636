"""Error cases of the operations of lobby servers and game back ends."""

from __future__ import annotations

import time

import httpx

from tests.contract.areas.matchmaker import WAIT_S, detach, ended, join, joined, served, tagged
from tests.contract.error_cases import error_case
from tests.contract.scenario import Lobby, Scenario


def connected(scenario: Scenario, lobby: Lobby, token: str) -> httpx.Response:
    return served(scenario, "connected", lobby, fields={"player_token": token})


@error_case("connected", "PLAYER_TOKEN_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    return connected(scenario, scenario.lobby, "player_AAAA")


@error_case("connected", "PLAYER_TOKEN_WRONG_LOBBY")
def _(scenario: Scenario) -> httpx.Response:
    return connected(scenario, scenario.attach(), scenario.value("player_token"))


@error_case("connected", "PLAYER_REMOVED")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach()
    token = joined(scenario, lobby)
    detach(scenario, lobby)
    return connected(scenario, lobby, token)


@error_case("connected", "PLAYER_TOKEN_CONSUMED")
def _(scenario: Scenario) -> httpx.Response:
    assert connected(scenario, scenario.lobby, scenario.value("player_token")).status_code == 200
    return connected(scenario, scenario.lobby, scenario.value("player_token"))


@error_case("connected", "PLAYER_TOKEN_EXPIRED")
def _(scenario: Scenario) -> httpx.Response:
    """The lobby has two slots. A third player can join only after the first token has expired."""
    lobby = scenario.attach("quick")
    second = joined(scenario, lobby)
    assert connected(scenario, lobby, second).status_code == 200
    first = joined(scenario, lobby)
    end = time.monotonic() + WAIT_S
    while join(scenario, lobby).status_code != 200:
        assert time.monotonic() < end, "the token does not expire"
    return connected(scenario, lobby, first)


@error_case("connected", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    other = joined(scenario, scenario.lobby)
    assert scenario.call("connected", headers=key).status_code == 200
    return scenario.call("connected", headers=key, fields={"player_token": other})


@error_case("disconnected", "PLAYER_TOKEN_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("disconnected", fields={"player_token": "player_AAAA"})


@error_case("disconnected", "PLAYER_TOKEN_WRONG_LOBBY")
def _(scenario: Scenario) -> httpx.Response:
    token = scenario.value("player_token")
    return served(scenario, "disconnected", scenario.attach(), fields={"player_token": token})


@error_case("disconnected", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    other = joined(scenario, scenario.lobby)
    assert scenario.call("disconnected", headers=key).status_code == 200
    return scenario.call("disconnected", headers=key, fields={"player_token": other})


def _after_its_end(slug: str) -> None:
    @error_case(slug, "MATCHMAKER_LOBBY_STOPPED")
    def _(scenario: Scenario) -> httpx.Response:
        return served(scenario, slug, ended(scenario))


for _slug in ("ready", "closed", "set_state", "heartbeat"):
    _after_its_end(_slug)


@error_case("get_state", "MATCHMAKER_LOBBY_STOPPED")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("get_state", token="env", path={"lobby_id": ended(scenario).id})


@error_case("attach", "MATCHMAKER_GAME_MODE_NOT_FOUND")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("attach", fields={"game_mode": "nothing"})


@error_case("attach", "MATCHMAKER_REGION_NOT_FOUND")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("attach", fields={"region": "nowhere"})


@error_case("attach", "MATCHMAKER_TAGS_DISABLED")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("attach", fields={"game_mode": "quiet", "tags": {"a": "b"}})


@error_case("attach", "MATCHMAKER_REGION_NOT_ENABLED")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("attach", fields={"game_mode": "elsewhere", "region": "local"})


@error_case("attach", "MATCHMAKER_TOO_MANY_LOBBIES")
def _(scenario: Scenario) -> httpx.Response:
    small = {
        "bearer": scenario.served_game.service_tokens["small"],
        "path": {"namespace_id": "small"},
    }
    scenario.call("attach", **small)
    return scenario.call("attach", **small)


@error_case("attach", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    scenario.good("attach", headers=key)
    return scenario.call("attach", headers=key, fields={"tags": tagged(scenario)})
