"""Lobbies and player tokens of a scenario, and error cases of the matchmaker."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.contract.error_cases import error_case, error_cases
from tests.contract.scenario import SOURCE_LIMIT, Lobby, Scenario, before, credential, placeholder

WAIT_S = 20.0


@credential("pub")
def _(scenario: Scenario) -> str:
    return scenario.served_game.public_token


@credential("env")
def _(scenario: Scenario) -> str:
    return scenario.served_game.service_tokens["prod"]


@credential("lobby")
def _(scenario: Scenario) -> str:
    return scenario.lobby.token


@placeholder("lobby_id")
def _(scenario: Scenario) -> str:
    return scenario.lobby.id


@placeholder("player_token")
def _(scenario: Scenario) -> str:
    return joined(scenario, scenario.lobby)


@before("find")
def _(scenario: Scenario) -> Lobby:
    return scenario.lobby


def joined(scenario: Scenario, lobby: Lobby, **fields: Any) -> str:
    request_fields = {"lobby_id": lobby.id, "party_size": None, **fields}
    return str(scenario.good("join", fields=request_fields)["player"]["token"])


def detach(scenario: Scenario, lobby: Lobby) -> None:
    scenario.good("detach", path={"lobby_id": lobby.id})


def ended(scenario: Scenario) -> Lobby:
    lobby = scenario.attach()
    detach(scenario, lobby)
    return lobby


def served(scenario: Scenario, slug: str, lobby: Lobby, **changes: Any) -> httpx.Response:
    return scenario.call(slug, bearer=lobby.token, token=None, **changes)


def while_it_starts(scenario: Scenario, lobby: Lobby, slug: str, **changes: Any) -> httpx.Response:
    request = scenario.request(slug, **changes)
    before_it = held_slots(scenario)
    with ThreadPoolExecutor(1) as pool:
        waiting_request = pool.submit(scenario.service.client.send, request)
        end = time.monotonic() + WAIT_S
        while held_slots(scenario) <= before_it and not waiting_request.done():
            assert time.monotonic() < end, "no request waits for the lobby"
        detach(scenario, lobby)
        return waiting_request.result(WAIT_S)


def held_slots(scenario: Scenario) -> float:
    lines = scenario.service.probe("/metrics").text.splitlines()
    slots = [line for line in lines if line.startswith("hosting_slots{") and '"held"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in slots)


def find(scenario: Scenario, mode: str, **fields: Any) -> httpx.Response:
    return scenario.call("find", fields={"game_modes": [mode], **fields})


def tagged(scenario: Scenario) -> dict[str, str]:
    return {"scenario": scenario.name}


error_cases(
    "find",
    {
        "MATCHMAKER_GAME_MODE_NOT_FOUND": lambda scenario: find(scenario, "nothing"),
        "MATCHMAKER_REGION_NOT_FOUND": lambda scenario: find(scenario, "duel", regions=["nowhere"]),
        "MATCHMAKER_FIND_DISABLED": lambda scenario: find(scenario, "invited"),
        "MATCHMAKER_REGION_NOT_ENABLED": lambda scenario: find(
            scenario, "elsewhere", regions=["local"]
        ),
        "MATCHMAKER_TAGS_DISABLED": lambda scenario: find(scenario, "quiet", tags={"a": "b"}),
        "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED": lambda scenario: find(
            scenario, "duel", max_players=2
        ),
        "MATCHMAKER_NO_AVAILABLE_LOBBIES": lambda scenario: find(scenario, "empty"),
    },
)


@error_case("find", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scenario: Scenario) -> httpx.Response:
    scenario.attach("large")
    large: dict[str, Any] = {"mode": "large", "party_size": SOURCE_LIMIT, "tags": tagged(scenario)}
    assert find(scenario, **large).status_code == 200
    return find(scenario, **large)


@error_case("find", "DEADLINE_EXCEEDED")
def _(scenario: Scenario) -> httpx.Response:
    scenario.attach("pair", is_ready=False)
    return find(scenario, "pair", tags=tagged(scenario))


@error_case("find", "MATCHMAKER_LOBBY_STOPPED")
def _(scenario: Scenario) -> httpx.Response:
    """A repeated request with the same idempotency key returns the same lobby until the lobby has
    ended.
    """
    lobby = scenario.attach("pair")
    again = {
        "fields": {"game_modes": ["pair"], "tags": tagged(scenario)},
        "headers": {"idempotency-key": scenario.name},
    }
    assert scenario.good("find", **again)["lobby"]["lobby_id"] == lobby.id
    detach(scenario, lobby)
    return scenario.call("find", **again)


@error_case("find", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    scenario.good("find", headers=key)
    return scenario.call("find", headers=key, fields={"party_size": 2})


def join(scenario: Scenario, lobby: Lobby, **fields: Any) -> httpx.Response:
    return scenario.call("join", fields={"lobby_id": lobby.id, "party_size": None, **fields})


error_cases(
    "join",
    {
        "MATCHMAKER_LOBBY_STOPPED": lambda scenario: join(scenario, ended(scenario)),
        "MATCHMAKER_JOIN_DISABLED": lambda scenario: join(scenario, scenario.attach("public")),
        "DEADLINE_EXCEEDED": lambda scenario: join(
            scenario, scenario.attach("pair", is_ready=False)
        ),
        "PLAYER_TOKEN_INVALID": lambda scenario: join(
            scenario, scenario.lobby, rejoin_token="player_AAAA"
        ),
        "PLAYER_TOKEN_WRONG_LOBBY": lambda scenario: join(
            scenario, scenario.attach(), rejoin_token=scenario.value("player_token")
        ),
    },
)


@error_case("join", "MATCHMAKER_LOBBY_CLOSED")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach()
    assert served(scenario, "closed", lobby).status_code == 200
    return join(scenario, lobby)


@error_case("join", "MATCHMAKER_LOBBY_FULL")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach("pair")
    joined(scenario, lobby, party_size=2)
    return join(scenario, lobby)


@error_case("join", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach("large")
    joined(scenario, lobby, party_size=SOURCE_LIMIT)
    return join(scenario, lobby)


@error_case("join", "MATCHMAKER_LOBBY_START_FAILED")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach("pair", is_ready=False)
    return while_it_starts(scenario, lobby, "join", fields={"lobby_id": lobby.id})


@error_case("join", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    scenario.good("join", headers=key)
    return scenario.call("join", headers=key, fields={"party_size": 2})
