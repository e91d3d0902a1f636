"""Placeholders and error cases for dynamic servers."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests.contract.error_cases import elsewhere, error_case
from tests.contract.scenario import Scenario, before, placeholder
from tests.support import game_programs
from tests.support.data_plane_service import GAME

_BRIEF: Final = ("true",)
_PATIENT: Final = ("sh", "-c", "exec sleep 3600")
"""Programs of servers. `_BRIEF` exits at once, because the examples never delete their servers."""


def _build(scenario: Scenario, name: str, command: tuple[str, ...]) -> str:
    def create() -> str:
        archive = game_programs.server_archive(*command)
        return game_programs.upload_build(scenario.served_game.cloud, GAME, archive, name)

    return scenario.served_game.once(f"{name} build", create)


@placeholder("environment_id", "Servers")
def _(scenario: Scenario) -> str:
    return "prod"


@placeholder("build_id", "Servers")
def _(scenario: Scenario) -> str:
    return _build(scenario, "brief", _BRIEF)


def _server(scenario: Scenario) -> str:
    runtime = {"build": _build(scenario, "patient", _PATIENT)}
    small = {"cpu": 10, "memory": 16}
    response = scenario.good("create_server", fields={"runtime": runtime, "resources": small})
    return str(response["server"]["id"])


@before("destroy_server")
def _(scenario: Scenario) -> str:
    return str(scenario.once("server", lambda: _server(scenario)))


@placeholder("server_id")
def _(scenario: Scenario) -> str:
    return str(
        scenario.once(
            "server", lambda: scenario.served_game.once("server", lambda: _server(scenario))
        )
    )


def create(scenario: Scenario, **fields: Any) -> httpx.Response:
    return scenario.call("create_server", fields=fields)


@error_case("create_server", "REGION_NOT_FOUND")
def _(scenario: Scenario) -> httpx.Response:
    return create(scenario, datacenter="nowhere")


@error_case("create_server", "VALIDATION_FAILED")
def _(scenario: Scenario) -> httpx.Response:
    return create(scenario, runtime={"build": scenario.served_game.version_id})


@error_case("create_server", "CAPACITY_EXHAUSTED")
def _(scenario: Scenario) -> httpx.Response:
    most = {"cpu": game_programs.SETTINGS["cpu_millicores"], "memory": 524_288}
    return create(scenario, resources=most)


elsewhere(
    "create_server",
    "PORTS_EXHAUSTED",
    "tests/dataplane/test_edge_routes.py::test_exhausted_ports_create_no_lobby",
    "each family has 6,000 ports, and no setting reduces the number",
)


@error_case("list_servers", "QUERY_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("list_servers", query={"tags_json": "[]"})


def _another_message(slug: str, **changes: Any) -> None:
    @error_case(slug, "IDEMPOTENCY_KEY_REUSED")
    def _(scenario: Scenario) -> httpx.Response:
        key = {"idempotency-key": scenario.name}
        scenario.good(slug, headers=key)
        return scenario.call(slug, headers=key, **changes)


_another_message("create_server", fields={"tags": {"mode": "other"}})
_another_message("destroy_server", query={"override_kill_timeout": "4000"})
