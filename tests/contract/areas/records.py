"""Placeholders and error cases for past lobbies, rays and datacenters."""

from __future__ import annotations

import secrets
from typing import Any

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import Scenario, placeholder
from tests.support.data_plane_service import GAME
from tests.support.supervised_service import until


@placeholder("environment_id", "Platform")
def _(scenario: Scenario) -> str:
    return "prod"


@placeholder("namespace_id", "Logs")
def _(scenario: Scenario) -> str:
    return "prod"


def _response(scenario: Scenario, path: str) -> Any:
    return scenario.service.ask("GET", path, None, scenario.served_game.cloud_token)


@placeholder("lobby_id", "Logs")
def _(scenario: Scenario) -> str:
    def create() -> str:
        lobby = scenario.lobby
        path = f"/cloud/games/{GAME}/namespaces/prod/logs/lobbies/{lobby.id}"
        until(lambda: _response(scenario, path).status_code == 200)
        return lobby.id

    return scenario.served_game.once("recorded lobby", create)


@placeholder("ray_id")
def _(scenario: Scenario) -> str:
    def create() -> str:
        ray_id = secrets.token_hex(16)
        trace = {"traceparent": f"00-{ray_id}-{secrets.token_hex(8)}-00"}
        assert scenario.call("regions", headers=trace).headers["x-ray-id"] == ray_id
        until(lambda: _response(scenario, f"/cloud/rays/{ray_id}/perf").json()["perf_lists"])
        return ray_id

    return scenario.served_game.once("ray", create)


@error_case("export_lobby_history", "VALIDATION_FAILED")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("export_lobby_history", fields={"query_start": 2, "query_end": 1})
