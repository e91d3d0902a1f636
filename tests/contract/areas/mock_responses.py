"""Mock responses for `dev_` tokens, for every operation that accepts one."""

from __future__ import annotations

from typing import Any, Final

import httpx

from pyservice.dataplane.development_mocks import LOBBY_ID, REGION_ID
from tests.contract.error_cases import elsewhere
from tests.contract.scenario import Scenario, credential

_PROD: Final = {"namespace_id": "prod"}


@credential("dev")
def _(scenario: Scenario) -> str:
    def create() -> str:
        return str(scenario.good("create_development_token", path=_PROD)["token"])

    return scenario.served_game.once("development token", create)


elsewhere(
    "connected",
    "RATE_LIMITED",
    "tests/native/test_engine.py::test_used_mock_players_of_a_group_are_limited",
    "a group has 10,000 mock players, and no setting reduces the number",
)


def ask_mock(scenario: Scenario, slug: str) -> httpx.Response:
    fields: dict[str, Any] = {}
    if slug in ("connected", "disconnected"):
        fields = {"player_token": _mock_player(scenario)}
    elif slug == "heartbeat":
        fields = {"player_tokens": [_mock_player(scenario)]}
    return scenario.call(slug, token="dev", fields=fields)


def _mock_player(scenario: Scenario) -> str:
    return str(scenario.good("find", token="dev")["player"]["token"])


def check_mock(slug: str, body: Any) -> None:
    match slug:
        case "find" | "join" | "create":
            lobby = body["lobby"]
            assert (lobby["lobby_id"], lobby["region"]["region_id"]) == (LOBBY_ID, REGION_ID)
            assert {name: port["port"] for name, port in body["ports"].items()} == {"game": 7777}
        case "list":
            assert [one["lobby_id"] for one in body["lobbies"]] == [LOBBY_ID]
        case "regions":
            assert [one["region_id"] for one in body["regions"]] == [REGION_ID]
        case "statistics":
            assert body["player_count"] == 0
        case _:
            assert body == {}
