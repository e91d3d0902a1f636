"""Error cases of create, and of find and join with lobbies that run as processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.contract.areas.matchmaker import WAIT_S, detach, find, join, tagged
from tests.contract.error_cases import elsewhere, error_case, error_cases
from tests.contract.scenario import SOURCE_LIMIT, Lobby, Scenario

START_S: Final = 60.0


def started(request: Callable[[], httpx.Response]) -> httpx.Response:
    """Repeats a request while its lobby starts, which can take longer than `find_wait_ms`."""
    end = time.monotonic() + START_S
    while True:
        answer = request()
        if answer.status_code != httpx.codes.GATEWAY_TIMEOUT or time.monotonic() >= end:
            return answer


def create(scenario: Scenario, mode: str = "hosted", **fields: Any) -> httpx.Response:
    return scenario.call("create", fields={"game_mode": mode, "publicity": None, **fields})


error_cases(
    "create",
    {
        "MATCHMAKER_GAME_MODE_NOT_FOUND": lambda scenario: create(scenario, "nothing"),
        "MATCHMAKER_REGION_NOT_FOUND": lambda scenario: create(scenario, region="nowhere"),
        "MATCHMAKER_CREATE_DISABLED": lambda scenario: create(scenario, "duel"),
        "MATCHMAKER_REGION_NOT_ENABLED": lambda scenario: create(
            scenario, "elsewhere", region="local"
        ),
        "MATCHMAKER_TAGS_DISABLED": lambda scenario: create(scenario, "quiet", tags={"a": "b"}),
        "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED": lambda scenario: create(
            scenario, "quiet", max_players=2
        ),
        "MATCHMAKER_PUBLICITY_DISABLED": lambda scenario: create(
            scenario, "quiet", publicity="public"
        ),
        "DEADLINE_EXCEEDED": lambda scenario: create(scenario, "mute"),
    },
)


@error_case("create", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE")
def _(scenario: Scenario) -> httpx.Response:
    lobby = scenario.attach("large")
    assert join(scenario, lobby, party_size=SOURCE_LIMIT).status_code == 200
    return create(scenario)


@error_case("create", "CAPACITY_EXHAUSTED")
def _(scenario: Scenario) -> httpx.Response:
    """The mode has no image, so the service cannot start a lobby."""
    return create(scenario, "empty")


@error_case("create", "MATCHMAKER_LOBBY_STOPPED")
def _(scenario: Scenario) -> httpx.Response:
    """A repeated request with the same idempotency key returns the same lobby until the lobby has
    ended.
    """
    again = {"headers": {"idempotency-key": scenario.name}}
    first = started(lambda: scenario.call("create", **again))
    lobby_id = first.json()["lobby"]["lobby_id"]
    assert scenario.good("create", **again)["lobby"]["lobby_id"] == lobby_id
    detach(scenario, Lobby(lobby_id, ""))
    end = time.monotonic() + WAIT_S
    while (answer := scenario.call("create", **again)).status_code == 200:
        assert time.monotonic() < end, "the lobby does not end"
    return answer


@error_case("create", "IDEMPOTENCY_KEY_REUSED")
def _(scenario: Scenario) -> httpx.Response:
    key = {"idempotency-key": scenario.name}
    started(lambda: scenario.call("create", headers=key))
    return scenario.call("create", headers=key, fields={"party_size": 2})


def make(scenario: Scenario, slug: str, mode: str, **changes: Any) -> httpx.Response:
    requested = {"game_mode": mode} if slug == "create" else {"game_modes": [mode]}
    return scenario.call(slug, fields={**requested, "tags": tagged(scenario)}, **changes)


def _making(slug: str) -> None:
    @error_case(slug, "MATCHMAKER_TOO_MANY_LOBBIES")
    def _(scenario: Scenario) -> httpx.Response:
        """The namespace is at its limit of one lobby."""
        token = scenario.served_game.service_tokens["small"]
        scenario.call("attach", bearer=token, path={"namespace_id": "small"})
        return make(scenario, slug, "hosted", bearer=token)

    @error_case(slug, "MATCHMAKER_LOBBY_START_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        answer = started(lambda: make(scenario, slug, "broken"))
        returned = answer.json()["metadata"]
        assert (returned["reason"], returned["exit_code"]) == ("exited", "3")
        return answer

    elsewhere(
        slug,
        "PORTS_EXHAUSTED",
        "tests/dataplane/test_edge_routes.py::test_exhausted_ports_create_no_lobby",
        "each family has 6,000 ports, and no setting reduces the number",
    )


for _slug in ("find", "create"):
    _making(_slug)


@error_case("join", "MATCHMAKER_LOBBY_DRAINING")
def _(scenario: Scenario) -> httpx.Response:
    """The last player has left. The server ignores the stop request, so the lobby is draining."""
    placement = started(lambda: find(scenario, "unstoppable", tags=tagged(scenario)))
    assert placement.status_code == 200, placement.text
    returned = placement.json()
    lobby = Lobby(returned["lobby"]["lobby_id"], "")
    assert is_listed(scenario, lobby)
    visit(returned["ports"]["game"], returned["player"]["token"])
    end = time.monotonic() + WAIT_S
    while is_listed(scenario, lobby):
        assert time.monotonic() < end, "the empty lobby does not end"
        time.sleep(0.02)
    return join(scenario, lobby)


elsewhere(
    "join",
    "MATCHMAKER_LOBBY_UNREACHABLE",
    "tests/clients/test_causes.py::test_server_that_listens_elsewhere_gets_no_players",
    "a server has ten seconds to listen",
)


def visit(port: Any, player_token: str) -> None:
    with socket.create_connection((port["hostname"], port["port"]), WAIT_S) as connection:
        connection.sendall(player_token.encode())
        assert connection.recv(65_536) == player_token.encode()


def is_listed(scenario: Scenario, lobby: Lobby) -> bool:
    return lobby.id in {one["lobby_id"] for one in scenario.good("list")["lobbies"]}
